//! Pre-content events of fanotify(7): the kernel asks before a file's contents are read, and waits
//! for the answer (Linux 6.14).
//!
//! A second event follows after the read has returned without an error, from the same thread.
//!
//! A group watches files and is read like a queue. Descriptors of a group may be shared with other
//! processes; the group exists, and readers wait, as long as one of them is open. Once none is, the
//! kernel lets waiting readers through.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Constants of `linux/fanotify.h` that C libraries of older systems lack.
const FAN_PRE_ACCESS: u64 = 0x0010_0000;
const FAN_CLASS_PRE_CONTENT: u32 = 0x8;
const FAN_EVENT_INFO_TYPE_RANGE: u8 = 6;
/// Position of an errno in a response that denies (`FAN_ERRNO_SHIFT`).
const ERRNO_SHIFT: u32 = 24;

/// Size in bytes of `struct fanotify_event_metadata`.
const METADATA_LEN: usize = size_of::<libc::fanotify_event_metadata>();

/// Interval of the check whether a read has ended without an event.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Size in bytes of the buffer for events: about 80 of them.
const BUFFER_LEN: usize = 4096;

/// A group of watched files. Methods may be called concurrently from any number of threads.
#[derive(Debug)]
pub struct Group(OwnedFd);

/// An event. Those of one thread are read in the order in which they were raised.
#[derive(Debug)]
pub enum Event {
    /// A read waits for an answer.
    Waits(WaitingRead),
    /// A read of this thread is over. Later ones of the thread may be over as well: equal events
    /// are merged while they are in the queue.
    Over {
        /// The thread, as [`WaitingRead::thread`].
        thread: i32,
    },
}

/// A read that waits for an answer: [`Group::answer`] with the descriptor's number.
#[derive(Debug)]
pub struct WaitingRead {
    /// The file, opened to read and write; its own reads and writes raise no events.
    pub file: OwnedFd,
    /// The bytes that will be read, in whole pages; the end of the file does not limit them.
    pub range: Range<u64>,
    /// The thread that reads, 0 if it is in no PID namespace of this process.
    pub thread: i32,
}

/// The answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The read goes on.
    Allow,
    /// The read fails with this error, which must be one of `EIO`, `EPERM`, `EBUSY`, `ETXTBSY`,
    /// `EAGAIN`, `ENOSPC` and `EDQUOT`.
    Deny(Errno),
}

impl Group {
    /// Creates a group. Requires `CAP_SYS_ADMIN`; returns `EINVAL` before Linux 6.14 only when a
    /// file is [added](Group::add).
    pub fn new() -> io::Result<Group> {
        // The kernel lets readers through that find a limited queue full.
        let queue = libc::FAN_UNLIMITED_QUEUE | libc::FAN_REPORT_TID;
        let flags = FAN_CLASS_PRE_CONTENT | libc::FAN_CLOEXEC | queue;
        let files = libc::O_RDWR | libc::O_LARGEFILE | libc::O_CLOEXEC;
        // SAFETY: the call has no pointers and returns a descriptor that nothing else owns.
        #[allow(unsafe_code)]
        let group = unsafe {
            let fd = crate::check(libc::fanotify_init(flags, files as u32))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Group(group))
    }

    /// Watches a file: from now on, reads and writes through other descriptors that are opened
    /// later wait for an answer. Returns `EINVAL` if the kernel or the file system has no such
    /// events.
    pub fn add(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.mark(file, libc::FAN_MARK_ADD, FAN_PRE_ACCESS)
    }

    /// Watches for [`Event::Over`] as well. This costs a few percent of the time of reads.
    pub fn add_over(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.mark(file, libc::FAN_MARK_ADD, libc::FAN_ACCESS)
    }

    /// Ends the watch of a file. Events that were raised before still wait for an answer.
    pub fn remove(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let events = FAN_PRE_ACCESS | libc::FAN_ACCESS;
        self.mark(file, libc::FAN_MARK_REMOVE, events)
    }

    fn mark(&self, file: BorrowedFd<'_>, change: u32, events: u64) -> io::Result<()> {
        let group = self.0.as_raw_fd();
        // SAFETY: without a path the file itself is meant, and no pointer is read.
        #[allow(unsafe_code)]
        let marked = unsafe {
            let path = std::ptr::null();
            libc::fanotify_mark(group, change, events, file.as_raw_fd(), path)
        };
        Ok(crate::check(marked).map(drop)?)
    }

    /// Returns a descriptor of `file`, which this group watches, whose own reads and writes raise
    /// no events, as those that come with events are. A descriptor that was opened before the file
    /// was watched would not do if other groups watch it, too. The group must not be read
    /// meanwhile. Returns `EBUSY` if another group denies a read of the first byte.
    pub fn quiet(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // The kernel decides at each open whether there will be events.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let read = move || {
            // Its result does not matter.
            let _ = file.read_at(&mut [0], 0);
        };
        let reader = Builder::new().name("fanotify".into()).spawn(read)?;
        let mut quiet = None;
        while quiet.is_none() && !reader.is_finished() {
            let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
            if rustix::io::retry_on_intr(|| poll(&mut ready, Some(&PAUSE)))? == 0 {
                continue;
            }
            self.read(&mut |event| {
                if let Event::Waits(read) = event {
                    // Its number stays reserved until it is answered.
                    quiet = Some(read.file.try_clone());
                    let _ = self.answer(read.file.as_raw_fd(), Answer::Allow);
                }
            })?;
        }
        quiet.unwrap_or_else(|| Err(Errno::BUSY.into()))
    }

    /// Waits for events, and passes each to `each`. An event whose file the process cannot open,
    /// for want of descriptors, is denied by the kernel.
    pub fn read(&self, each: &mut dyn FnMut(Event)) -> io::Result<()> {
        let mut buffer = [0; BUFFER_LEN];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut buffer))?;
        let mut rest = &buffer[..len];
        while let Some(parsed) = parse(rest) {
            rest = &rest[parsed.size..];
            let thread = parsed.thread;
            // SAFETY: the kernel has opened the file for the reader of this event, so that nothing
            // else owns the descriptor.
            #[allow(unsafe_code)]
            let file = (parsed.fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(parsed.fd) });
            if parsed.mask & FAN_PRE_ACCESS == 0 {
                each(Event::Over { thread });
            } else if let Some(file) = file {
                let range = parsed.range;
                each(Event::Waits(WaitingRead {
                    file,
                    range,
                    thread,
                }));
            }
        }
        Ok(())
    }

    /// Answers the event whose descriptor has the number `file` in the process that has read it.
    /// Returns `ENOENT` if no such event waits.
    pub fn answer(&self, file: RawFd, answer: Answer) -> io::Result<()> {
        let response = match answer {
            Answer::Allow => libc::FAN_ALLOW,
            Answer::Deny(error) => {
                libc::FAN_DENY | (error.raw_os_error() as u32 & 0xff) << ERRNO_SHIFT
            }
        };
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&file.to_ne_bytes());
        bytes[4..].copy_from_slice(&response.to_ne_bytes());
        rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &bytes))?;
        Ok(())
    }
}

impl From<OwnedFd> for Group {
    fn from(fd: OwnedFd) -> Group {
        Group(fd)
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event as it is in a buffer.
#[derive(Debug, PartialEq, Eq)]
struct ParsedEvent {
    mask: u64,
    fd: c_int,
    thread: i32,
    range: Range<u64>,
    /// Bytes in the buffer.
    size: usize,
}

/// Returns the first event in a buffer (`struct fanotify_event_metadata`, then
/// `struct fanotify_event_info_range`), or nothing if there is none. An event without a range is
/// for the whole file.
fn parse(buffer: &[u8]) -> Option<ParsedEvent> {
    let number = |at: usize| Some(u32::from_ne_bytes(*buffer.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*buffer.get(at..)?.first_chunk()?));
    let size = number(0)? as usize;
    if size < METADATA_LEN || size > buffer.len() {
        return None;
    }
    let (mask, fd, thread) = (long(8)?, number(16)? as c_int, number(20)? as i32);
    let mut range = 0..u64::MAX;
    let mut at = usize::from(u16::from_ne_bytes(*buffer.get(6..)?.first_chunk()?));
    while at + 4 <= size {
        let len = number(at)? >> 16;
        if buffer[at] == FAN_EVENT_INFO_TYPE_RANGE && len >= 24 && at + 24 <= size {
            let (offset, count) = (long(at + 8)?, long(at + 16)?);
            range = offset..offset.saturating_add(count);
        }
        at += (len as usize).max(4);
    }
    Some(ParsedEvent {
        mask,
        fd,
        thread,
        range,
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an event, with the extra records `infos`.
    fn event(fd: c_int, infos: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; METADATA_LEN];
        let len = (METADATA_LEN + infos.len()) as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4] = 3;
        bytes[6..8].copy_from_slice(&(METADATA_LEN as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&FAN_PRE_ACCESS.to_ne_bytes());
        bytes[16..20].copy_from_slice(&fd.to_ne_bytes());
        bytes[20..24].copy_from_slice(&9i32.to_ne_bytes());
        [bytes, infos.to_vec()].concat()
    }

    fn range(offset: u64, count: u64) -> Vec<u8> {
        let head = [FAN_EVENT_INFO_TYPE_RANGE, 0, 24, 0, 0, 0, 0, 0];
        [&head[..], &offset.to_ne_bytes(), &count.to_ne_bytes()].concat()
    }

    #[test]
    fn events_have_a_range_or_are_for_the_whole_file() {
        let parsed = |fd, range, size| {
            let (mask, thread) = (FAN_PRE_ACCESS, 9);
            Some(ParsedEvent {
                mask,
                fd,
                thread,
                range,
                size,
            })
        };
        let ranged = event(7, &range(8192, 4096));
        assert_eq!(parse(&ranged), parsed(7, 8192..12288, 48));
        let unknown = [&[9, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &range(1, 2)].concat();
        assert_eq!(parse(&event(7, &unknown)), parsed(7, 1..3, 60));
        assert_eq!(parse(&event(-1, &[])), parsed(-1, 0..u64::MAX, 24));
        assert_eq!(parse(&range(0, 1)), None);
        for len in 0..ranged.len() {
            assert_eq!(parse(&ranged[..len]), None, "{len}");
        }
        // A record without a length does not end the parser, nor does one beyond the end.
        let broken = [&[0; 4][..], &[6, 0, 255, 255]].concat();
        assert_eq!(parse(&event(3, &broken)), parsed(3, 0..u64::MAX, 32));
    }

    #[test]
    fn a_reader_waits_for_an_answer_that_may_be_an_error() {
        let dir = std::env::current_dir().expect("a directory");
        let named = tempfile::NamedTempFile::new_in(dir).expect("a file");
        named.as_file().set_len(16384).expect("sized");
        // Without privileges, or before Linux 6.14, there is nothing to test.
        let Ok(group) = Group::new() else { return };
        if group.add(named.as_file().as_fd()).is_err() {
            return;
        }
        group.add_over(named.as_file().as_fd()).expect("watched");
        let file = named.reopen().expect("opens");
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 5];
            let first = file.read_exact_at(&mut bytes, 4096).map(|()| bytes);
            let id = rustix::thread::gettid().as_raw_pid();
            (id, first, file.read_exact_at(&mut bytes, 8192))
        });
        let mut seen = Vec::new();
        let mut threads = Vec::new();
        while seen.len() < 2 {
            group
                .read(&mut |event| {
                    let event = match event {
                        Event::Over { thread } => {
                            assert_eq!(seen.len(), 1, "the denied read is not over");
                            return threads.push(thread);
                        }
                        Event::Waits(event) => event,
                    };
                    threads.push(event.thread);
                    let fd = event.file.as_raw_fd();
                    let file = File::from(event.file);
                    file.write_all_at(b"bytes", 4096).expect("writes");
                    let answer = match event.range.start {
                        4096 => Answer::Allow,
                        _ => Answer::Deny(Errno::IO),
                    };
                    group.answer(fd, answer).expect("it waits");
                    seen.push(event.range);
                })
                .expect("reads");
        }
        let (id, first, second) = reader.join().expect("no panic");
        assert_eq!(&first.expect("allowed"), b"bytes");
        assert_eq!(second.expect_err("denied").raw_os_error(), Some(libc::EIO));
        assert_eq!(seen, [4096..8192, 8192..12288]);
        assert_eq!(
            threads, [id; 3],
            "two reads, of which the first one is over"
        );
        let quiet = File::from(group.quiet(named.as_file().as_fd()).expect("allowed"));
        quiet.write_all_at(b"more", 4096).expect("no event");
        assert_eq!(
            group
                .answer(900, Answer::Allow)
                .expect_err("none")
                .raw_os_error(),
            Some(libc::ENOENT)
        );
        group.remove(named.as_file().as_fd()).expect("watched");
        let file = named.reopen().expect("opens");
        file.read_exact_at(&mut [0; 5], 0).expect("no event");
    }
}
