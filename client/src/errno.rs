//! Errors for programs and languages that have numbers for them.

use std::io;

use remote::ConnectError;
use vfs::Errno;

/// Returns the errno of an error of this library, a number of Linux: the one that the source
/// returned, or else the closest, `EIO` by default.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let client = barge_client::Client::open("mem:")?;
/// let missing = client.read("none").expect_err("no such file");
/// assert_eq!(barge_client::errno(&missing), 2);
/// # Ok(())
/// # }
/// ```
pub fn errno(error: &io::Error) -> i32 {
    number(error).raw().into()
}

fn number(error: &io::Error) -> Errno {
    if let Some(raw) = error.raw_os_error() {
        return Errno::from_raw(raw);
    }
    let cause = error.get_ref();
    if let Some(connect) = cause.and_then(|cause| cause.downcast_ref::<ConnectError>()) {
        return connect.errno();
    }
    Errno::of_kind(error.kind())
}

/// Returns the message of an error of this library, without its number: that of strerror(3), or why
/// a source could not be opened.
///
/// ```
/// # let client = barge_client::Client::open("mem:").expect("a tree");
/// let missing = client.read("none").expect_err("no such file");
/// assert_eq!(barge_client::message(&missing), "No such file or directory");
/// ```
pub fn message(error: &io::Error) -> String {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno.map(Errno::text) {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => error.to_string(),
    }
}
