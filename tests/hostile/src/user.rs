//! Another user of this host: a separate client with respect to limits, on TCP and Unix sockets
//! alike.

use rustix::process::Uid;

/// A user other than the one running the tests (`nobody`).
pub const OTHER_UID: u32 = 65534;

/// Runs `attack` in a thread of user [`OTHER_UID`], whose sockets belong to that user. Returns
/// `None` if the process lacks the privileges.
///
/// # Panics
/// If `attack` panics.
pub fn run_as_other_user<T: Send>(attack: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let other = Uid::from_raw(OTHER_UID);
            let became = rustix::thread::set_thread_res_uid(other, other, other);
            became.is_ok().then(attack)
        });
        thread.join().expect("the attack is carried out")
    })
}
