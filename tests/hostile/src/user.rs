//! Another user of this host: another client as limits count, on TCP and Unix sockets alike.

use rustix::process::Uid;

/// A user that is not the one who runs the tests (`nobody`).
pub const OTHER: u32 = 65534;

/// Runs `attack` in a thread of user [`OTHER`], whose sockets are that user's. `None` if this takes
/// privileges that the process does not have.
///
/// # Panics
/// If `attack` does.
pub fn as_another<T: Send>(attack: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let other = Uid::from_raw(OTHER);
            let became = rustix::thread::set_thread_res_uid(other, other, other);
            became.is_ok().then(attack)
        });
        thread.join().expect("the attack is carried out")
    })
}
