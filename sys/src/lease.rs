//! File leases: the kernel signals one thread when an access breaks a lease of any thread.
//!
//! The signal is directed to that thread alone, which blocks it and reads it from a descriptor; the
//! rest of the process never receives it.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};

/// The kind of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Broken when another process opens the file for writing, or truncates it (`F_RDLCK`).
    Read,
    /// Broken when another process opens the file (`F_WRLCK`).
    Write,
}

impl Kind {
    fn raw(self) -> libc::c_int {
        match self {
            Kind::Read => libc::F_RDLCK,
            Kind::Write => libc::F_WRLCK,
        }
    }
}

/// The thread that receives lease breaks.
#[derive(Clone, Copy, Debug)]
pub struct BreakTarget(libc::pid_t);

/// The signals of lease breaks, to be read by the thread that receives them.
pub struct BreakListener {
    signals: OwnedFd,
    /// Not `Send`: another thread would read its own signals.
    _here: PhantomData<*const ()>,
}

/// The scope of a lease break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseBreak {
    /// The lease of this descriptor, if it was not reused meanwhile.
    Descriptor(RawFd),
    /// Any lease: more were broken at a time than the kernel queues signals for.
    Any,
}

/// Constants of `fcntl.h`, which not every C library has.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// Returns the signal of lease breaks: a real-time signal, which carries the descriptor and can be
/// queued.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

impl BreakListener {
    /// Makes the calling thread receive lease breaks.
    pub fn on_this_thread() -> Result<(BreakListener, BreakTarget)> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls fill in and read one signal set that lives here; none keeps it. rustix
        // has neither.
        #[allow(unsafe_code)]
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal());
            // Sent instead when the queue of real-time signals is full.
            libc::sigaddset(set.as_mut_ptr(), libc::SIGIO);
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
                0 => {}
                error => return Err(Errno::from_raw_os_error(error)),
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        let fd = crate::check(fd)?;
        // SAFETY: the kernel has just created this descriptor for us; it has no other owner.
        #[allow(unsafe_code)]
        let signals = unsafe { OwnedFd::from_raw_fd(fd) };
        let listener = BreakListener {
            signals,
            _here: PhantomData,
        };
        let thread = rustix::thread::gettid();
        Ok((listener, BreakTarget(thread.as_raw_nonzero().get())))
    }

    /// Returns the next lease break, if any.
    pub fn next(&self) -> Result<Option<LeaseBreak>> {
        const LEN: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0; LEN];
        match rustix::io::read(&self.signals, &mut bytes) {
            Ok(LEN) => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        // `ssi_signo` is the first field, `ssi_fd` the sixth (signalfd(2)).
        let word = |at: usize| {
            i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Ok(Some(match word(0) == signal() {
            true => LeaseBreak::Descriptor(word(20)),
            false => LeaseBreak::Any,
        }))
    }
}

impl AsFd for BreakListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// Takes a lease on the open file `fd`, whose breaks are signalled to `target` (`F_SETLEASE`,
/// fcntl(2)). Returns `EAGAIN` if the file is open elsewhere in a conflicting way, `EACCES` if it
/// belongs to another user, `EINVAL` if the file system has no leases. For a read lease, `fd` must
/// be open for reading only.
pub fn take(fd: BorrowedFd<'_>, kind: Kind, target: BreakTarget) -> Result<()> {
    let owner = Owner {
        kind: F_OWNER_TID,
        pid: target.0,
    };
    // SAFETY: F_SETOWN_EX reads one `f_owner_ex` that outlives the call. rustix has none of these.
    #[allow(unsafe_code)]
    let owned = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, std::ptr::from_ref(&owner)) };
    crate::check(owned)?;
    control(fd, F_SETSIG, signal())?;
    control(fd, libc::F_SETLEASE, kind.raw()).map(drop)
}

/// Returns the lease of `fd`.
pub fn release(fd: BorrowedFd<'_>) -> Result<()> {
    control(fd, libc::F_SETLEASE, libc::F_UNLCK).map(drop)
}

/// Returns whether the lease of `fd`, which was of this `kind`, is being broken, or is gone
/// (`F_GETLEASE`).
pub fn is_breaking(fd: BorrowedFd<'_>, kind: Kind) -> Result<bool> {
    Ok(control(fd, libc::F_GETLEASE, 0)? != kind.raw())
}

fn control(fd: BorrowedFd<'_>, command: libc::c_int, value: libc::c_int) -> Result<libc::c_int> {
    // SAFETY: these commands take a number.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
    crate::check(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn who_wants_to_write_is_told_of_and_waits() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = |flags| open(file.path(), flags | OFlags::NONBLOCK, Mode::empty());
        let (listener, target) = BreakListener::on_this_thread().expect("signals");
        let reader = open(OFlags::RDONLY).expect("opens");
        // The named temporary file itself is open for writing.
        assert_eq!(take(reader.as_fd(), Kind::Read, target), Err(Errno::AGAIN));
        let path = file.into_temp_path();
        let open = |flags| rustix::fs::open(&*path, flags | OFlags::NONBLOCK, Mode::empty());
        take(reader.as_fd(), Kind::Read, target).expect("leased");
        assert_eq!(is_breaking(reader.as_fd(), Kind::Read), Ok(false));
        assert_eq!(listener.next(), Ok(None));

        open(OFlags::RDONLY).expect("reads");
        assert_eq!(open(OFlags::WRONLY).map(drop), Err(Errno::AGAIN));
        poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).expect("told");
        let reader_number = reader.as_raw_fd();
        assert_eq!(
            listener.next(),
            Ok(Some(LeaseBreak::Descriptor(reader_number)))
        );
        assert_eq!(is_breaking(reader.as_fd(), Kind::Read), Ok(true));

        release(reader.as_fd()).expect("given back");
        open(OFlags::WRONLY).expect("writes");
    }
}
