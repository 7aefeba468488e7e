//! Panics of libraries, as errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use vfs::Errno;

use crate::request::RequestError;

/// The maximum number of characters of a panic's message that are repeated.
const MAX_MESSAGE_CHARS: usize = 200;

thread_local! {
    /// The number of calls of [`contained`] that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The beginning of the messages of errors that were panics.
pub(crate) const PREFIX: &str = "the library of the store failed: ";

/// Calls a library. Its panic becomes an error of one line, and prints nothing.
pub(crate) fn contained<T>(
    call: impl FnOnce() -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                previous(info);
            }
        }));
    });
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get() - 1);
    done.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or(payload.downcast_ref::<String>().map(String::as_str));
        let words: String = text
            .unwrap_or("panic")
            .chars()
            .take(MAX_MESSAGE_CHARS)
            .collect();
        let message = format!("{PREFIX}{}", words.escape_debug());
        Err(RequestError::permanent(Errno::EIO, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_library_is_an_error_of_one_line() {
        let failed = contained::<()>(|| panic!("first\nsecond")).expect_err("failed");
        assert_eq!(failed.message, format!("{PREFIX}first\\nsecond"));
        assert!(!failed.is_transient);
        let failed = contained::<()>(|| {
            let none: Option<()> = std::hint::black_box(None);
            none.expect("a message");
            Ok(())
        });
        assert!(failed.expect_err("failed").message.contains("a message"));
        contained(|| Ok(())).expect("called");
    }
}
