//! Linux error numbers, as a type that is never zero.

use core::fmt;
use core::num::NonZeroU16;

mod kind;
#[cfg_attr(not(target_os = "linux"), path = "errno/by_kind.rs")]
mod system;

/// A Linux errno, 1 to 4095, or one of the two signals internal to barge: [`Errno::WOULD_BLOCK`]
/// and [`Errno::PARKED`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroU16);

impl Errno {
    /// The operation would have to block and [`crate::Patience`] forbids it. It had no effect:
    /// retry where blocking is allowed. Never leaves the engine.
    pub const WOULD_BLOCK: Errno = Errno(NonZeroU16::new(0xfff0).unwrap());

    /// The operation waits for an event and keeps the call's waker: retry when the waker is woken.
    /// Never leaves the engine.
    pub const PARKED: Errno = Errno(NonZeroU16::new(0xfff1).unwrap());

    /// Returns the errno `raw`, or `EIO` for an invalid number (zero, negative, above 4095).
    pub const fn from_raw(raw: i32) -> Errno {
        if raw <= 0 || raw > 4095 {
            return Errno::EIO;
        }
        match NonZeroU16::new(raw as u16) {
            Some(n) => Errno(n),
            None => Errno::EIO,
        }
    }

    /// Returns the number that goes to a peer; `EIO` for a signal that leaked, which is a bug in
    /// barge.
    pub const fn raw(self) -> u16 {
        debug_assert!(!self.is_signal(), "an engine signal reached a peer");
        if self.is_signal() {
            Errno::EIO.0.get()
        } else {
            self.0.get()
        }
    }

    /// Returns whether this is [`Errno::WOULD_BLOCK`] or [`Errno::PARKED`].
    pub const fn is_signal(self) -> bool {
        self.0.get() > 4095
    }
}

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// The numbers of x86-64 Linux (`include/uapi/asm-generic/errno.h`), which 9P2000.L also
        /// uses, regardless of the machine that barge runs on.
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(NonZeroU16::new($value).unwrap());)*

            /// Returns the text of strerror(3), as 9P2000 sends it; empty for a number not listed
            /// here.
            pub const fn text(self) -> &'static str {
                match self.0.get() {
                    $($value => $text,)*
                    _ => "",
                }
            }

            const fn symbol(self) -> &'static str {
                match self.0.get() {
                    $($value => stringify!($name),)*
                    _ => "",
                }
            }

            /// Returns the errno whose strerror(3) text is `text`: the meaning of a 9P2000 server's
            /// Rerror.
            pub fn from_text(text: &[u8]) -> Option<Errno> {
                $(if text == $text.as_bytes() { return Some(Errno::$name); })*
                None
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Argument list too long";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Invalid cross-device link";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    ENFILE = 23, "Too many open files in system";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on device";
    ESPIPE = 29, "Illegal seek";
    EROFS = 30, "Read-only file system";
    EMLINK = 31, "Too many links";
    EPIPE = 32, "Broken pipe";
    ERANGE = 34, "Numerical result out of range";
    EDEADLK = 35, "Resource deadlock avoided";
    ENAMETOOLONG = 36, "File name too long";
    ENOLCK = 37, "No locks available";
    ENOSYS = 38, "Function not implemented";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many levels of symbolic links";
    ENODATA = 61, "No data available";
    EPROTO = 71, "Protocol error";
    EOVERFLOW = 75, "Value too large for defined data type";
    EILSEQ = 84, "Invalid or incomplete multibyte or wide character";
    EMSGSIZE = 90, "Message too long";
    EOPNOTSUPP = 95, "Operation not supported";
    ENOBUFS = 105, "No buffer space available";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ETIMEDOUT = 110, "Connection timed out";
    ESTALE = 116, "Stale file handle";
    EDQUOT = 122, "Disk quota exceeded";
    ECANCELED = 125, "Operation canceled";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.symbol()) {
            (Errno::WOULD_BLOCK, _) => f.write_str("WOULD_BLOCK"),
            (Errno::PARKED, _) => f.write_str("PARKED"),
            (_, "") => write!(f, "errno {}", self.0),
            (_, symbol) => f.write_str(symbol),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            "" => write!(f, "{self:?}"),
            text => f.write_str(text),
        }
    }
}

impl core::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_errno_becomes_eio() {
        for raw in [0, -1, 4096, i32::MIN, i32::MAX] {
            assert_eq!(Errno::from_raw(raw), Errno::EIO);
        }
        assert_eq!(Errno::from_raw(4095).raw(), 4095);
    }

    #[test]
    fn text_and_number_agree() {
        assert_eq!(Errno::from_text(b"Stale file handle"), Some(Errno::ESTALE));
        assert_eq!(Errno::from_text(b"no such text"), None);
        assert_eq!(Errno::from_raw(2).to_string(), "No such file or directory");
        assert_eq!(format!("{:?}", Errno::from_raw(200)), "errno 200");
    }
}
