//! Results of `libc`.

/// Converts a result of `libc`, where -1 means that `errno` is set.
pub(crate) fn check(answer: libc::c_int) -> rustix::io::Result<libc::c_int> {
    if answer == -1 {
        Err(last_error())
    } else {
        Ok(answer)
    }
}

/// Returns the error in `errno`.
pub(crate) fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
    )
}
