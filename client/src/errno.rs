//! The error numbers of errors, for bindings to languages whose errors have one.

use std::io;

use remote::ConnectError;
use vfs::Errno;

/// Returns the errno of an error of this library: the number that the source returned, or else the
/// closest one, `EIO` by default.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let client = barge_client::Client::open("mem:")?;
/// let missing = client.read("none").expect_err("no such file");
/// assert_eq!(barge_client::errno(&missing).raw(), 2);
/// # Ok(())
/// # }
/// ```
pub fn errno(error: &io::Error) -> Errno {
    if let Some(raw) = error.raw_os_error() {
        return Errno::from_raw(raw);
    }
    let cause = error.get_ref();
    if let Some(connect) = cause.and_then(|cause| cause.downcast_ref::<ConnectError>()) {
        return connect.errno();
    }
    Errno::of_kind(error.kind())
}
