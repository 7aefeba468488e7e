//! Results of calls: a number, or a negative errno with a message.

use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_char;

thread_local! {
    /// The message of the last call that failed in this thread.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs `operation`, and returns its result or the negative errno of its error. A panic, which must
/// not cross into C, is `EIO`; its place in the code is printed on standard error.
pub(crate) fn call(operation: impl FnOnce() -> io::Result<i64>) -> i64 {
    // The data of the library stays consistent at each step (docs/design/dependencies.md, Locks).
    let (errno, message) = match catch_unwind(AssertUnwindSafe(operation)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => {
            let errno = barge_client::errno(&error);
            (errno, barge_client::message(&error))
        }
        Err(_) => (libc::EIO, "internal error".to_owned()),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    MESSAGE.with(|last| *last.borrow_mut() = message);
    -i64::from(errno)
}

/// Returns the message of the last call that failed in this thread, which the next one replaces.
pub(crate) fn message() -> *const c_char {
    MESSAGE.with(|last| last.borrow().as_ptr())
}

/// Returns the error for an argument that breaks the rules of the header.
pub(crate) fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        MESSAGE.with(|last| last.borrow().to_string_lossy().into_owned())
    }

    #[test]
    fn a_panic_is_eio() {
        assert_eq!(call(|| panic!("on purpose")), -5);
        assert_eq!(last(), "internal error");
        assert_eq!(call(|| Ok(7)), 7);
    }

    #[test]
    fn messages_belong_to_their_thread() {
        assert_eq!(call(|| Err(io::Error::from_raw_os_error(2))), -2);
        let other = std::thread::spawn(|| {
            assert_eq!(last(), "");
            assert_eq!(call(|| Err(invalid("a\0b"))), -22);
            last()
        });
        assert_eq!(other.join().expect("no panic"), "a b");
        assert_eq!(last(), "No such file or directory");
    }
}
