//! Notification of changes of files and directories by fanotify(7): events that name objects by
//! kernel handle, as they need neither descriptors nor answers (Linux 5.17).
//!
//! A group watches file systems or directories, and queues events up to
//! `/proc/sys/fs/fanotify/max_queued_events`; the kernel merges those of one object that have not
//! been read. A group's descriptor may be made by a process with privileges and read by another.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::handle::FileHandle;

/// Constants of `linux/fanotify.h` that C libraries of older systems lack.
const FAN_REPORT_TARGET_FID: u32 = 0x1000;
const FAN_RENAME: u64 = 0x1000_0000;
/// Types of information records.
const FID: u8 = 1;
const DFID_NAME: u8 = 2;
const DFID: u8 = 3;
const OLD_DFID_NAME: u8 = 10;
const NEW_DFID_NAME: u8 = 12;

/// Size in bytes of `struct fanotify_event_metadata`.
const METADATA_LEN: usize = size_of::<libc::fanotify_event_metadata>();

/// Offset of the file handle in an information record: its header and the file system's id.
const HANDLE_AT: usize = 12;

/// Size in bytes of the buffer for events: some hundreds of them.
const BUFFER_LEN: usize = 64 << 10;

/// The changes to report in any case, of directories too. `FAN_CLOSE_WRITE` reports writes through
/// a memory map, which raise no event of their own.
const CHANGES: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | FAN_RENAME
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;

/// The writes that raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEvents {
    /// None: a file that was open for writing raises an event when it is closed.
    OnClose,
    /// Each write, and each close of such a file. Every program that writes to a watched file pays
    /// for the event.
    Each,
}

impl WriteEvents {
    /// Returns the changes to report.
    fn changes(self) -> u64 {
        match self {
            WriteEvents::OnClose => CHANGES,
            WriteEvents::Each => CHANGES | libc::FAN_MODIFY,
        }
    }
}

/// The memory for the events of a read.
#[derive(Debug)]
pub struct EventBuffer(Box<[u8]>);

impl Default for EventBuffer {
    fn default() -> EventBuffer {
        EventBuffer(vec![0; BUFFER_LEN].into())
    }
}

/// A group of watched file systems and directories.
#[derive(Debug)]
pub struct ChangeGroup(OwnedFd);

/// An event. The kernel merges events of one object: several of the kinds may be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeEvent<'a> {
    /// A name was created: a new object or a hard link.
    pub created: bool,
    /// A name was removed.
    pub deleted: bool,
    /// The contents were written, or a file that was open for writing was closed.
    pub contents: bool,
    /// Attributes were changed, the number of links included.
    pub attributes: bool,
    /// The object was renamed from `old` to `name`.
    pub renamed: bool,
    /// Events were lost.
    pub overflow: bool,
    /// Whether the object is a directory.
    pub is_dir: bool,
    /// The process that made the change; 0 if it is in another PID namespace, or of another user
    /// and the group has no privileges.
    pub pid: u32,
    /// The object.
    pub object: Option<FileHandle>,
    /// The directory and name of the object, if the change was made by name or through an open
    /// file. A rename out of the watched directories has none.
    pub name: Option<ChangedName<'a>>,
    /// The old name of a rename. A rename into the watched directories has none.
    pub old: Option<ChangedName<'a>>,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedName<'a> {
    /// The directory.
    pub dir: FileHandle,
    /// The name; empty for the directory itself.
    pub name: &'a [u8],
}

impl ChangeGroup {
    /// Creates a group. Without `CAP_SYS_ADMIN` it may watch directories only. Returns `EINVAL`
    /// before Linux 5.17, `EMFILE` if the user has too many groups.
    pub fn new() -> rustix::io::Result<ChangeGroup> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_FID
            | libc::FAN_REPORT_DFID_NAME
            | FAN_REPORT_TARGET_FID;
        // SAFETY: the call has no pointers and returns a descriptor that nothing else owns.
        #[allow(unsafe_code)]
        let group = unsafe {
            let fd = crate::check(libc::fanotify_init(flags, libc::O_RDONLY as u32))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(ChangeGroup(group))
    }

    /// Watches the whole file system of `object`, mounted anywhere. Needs `CAP_SYS_ADMIN`. Returns
    /// `EOPNOTSUPP`, `ENODEV` or `EXDEV` if the file system has no usable handles.
    pub fn watch_file_system(
        &self,
        object: BorrowedFd<'_>,
        writes: WriteEvents,
    ) -> rustix::io::Result<()> {
        self.mark(object, libc::FAN_MARK_FILESYSTEM, writes.changes())
    }

    /// Watches a directory and its children, but not what is in directories below. Returns `ENOSPC`
    /// if the user watches too many.
    pub fn watch_directory(
        &self,
        dir: BorrowedFd<'_>,
        writes: WriteEvents,
    ) -> rustix::io::Result<()> {
        let changes = writes.changes() | libc::FAN_EVENT_ON_CHILD;
        self.mark(dir, libc::FAN_MARK_INODE, changes)
    }

    fn mark(&self, object: BorrowedFd<'_>, kind: u32, changes: u64) -> rustix::io::Result<()> {
        let (group, object) = (self.0.as_raw_fd(), object.as_raw_fd());
        let flags = libc::FAN_MARK_ADD | kind;
        // The path of a descriptor works with `O_PATH` too.
        let path = format!("/proc/self/fd/{object}\0");
        // SAFETY: the path ends with a NUL and outlives the call.
        #[allow(unsafe_code)]
        let marked = unsafe {
            libc::fanotify_mark(group, flags, changes, libc::AT_FDCWD, path.as_ptr().cast())
        };
        crate::check(marked).map(drop)
    }

    /// Waits for events, `time` at most, and passes each to `each`. Returns whether there were any.
    pub fn read(
        &self,
        buffer: &mut EventBuffer,
        time: Option<Duration>,
        each: &mut dyn FnMut(ChangeEvent<'_>),
    ) -> io::Result<bool> {
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut ready, time.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            polled => polled?,
        };
        let len = match rustix::io::read(&self.0, &mut *buffer.0) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut rest = &buffer.0[..len];
        while let Some((event, size)) = parse_change(rest) {
            rest = &rest[size..];
            each(event);
        }
        Ok(true)
    }
}

/// Parses the first event of a buffer (`struct fanotify_event_metadata`, then records of
/// `struct fanotify_event_info_fid`). Returns it with its size in bytes, `None` if it is not whole.
/// Records that are unknown or not whole are skipped.
pub fn parse_change(buffer: &[u8]) -> Option<(ChangeEvent<'_>, usize)> {
    let size = number(buffer, 0)? as usize;
    if size < METADATA_LEN || size > buffer.len() {
        return None;
    }
    let buffer = &buffer[..size];
    let mask = u64::from_ne_bytes(*buffer.get(8..)?.first_chunk()?);
    let has = |bits| mask & bits != 0;
    let mut event = ChangeEvent {
        created: has(libc::FAN_CREATE),
        deleted: has(libc::FAN_DELETE),
        contents: has(libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE),
        attributes: has(libc::FAN_ATTRIB),
        renamed: has(FAN_RENAME),
        overflow: has(libc::FAN_Q_OVERFLOW),
        is_dir: has(libc::FAN_ONDIR),
        pid: number(buffer, 20)?,
        ..ChangeEvent::default()
    };
    let mut at = usize::from(u16::from_ne_bytes(*buffer.get(6..)?.first_chunk()?));
    while let Some(&[kind, _, low, high]) = buffer.get(at..).and_then(|rest| rest.first_chunk()) {
        let len = usize::from(u16::from_ne_bytes([low, high]));
        let record = buffer.get(at..at + len);
        at += len.max(4);
        let Some((handle, name)) = record.and_then(parse_record) else {
            continue;
        };
        // The name of a directory itself is a dot.
        let name = if name == b"." { b"" } else { name };
        let name = ChangedName { dir: handle, name };
        match kind {
            FID => event.object = Some(handle),
            DFID | DFID_NAME | NEW_DFID_NAME => event.name = Some(name),
            OLD_DFID_NAME => event.old = Some(name),
            _ => {}
        }
    }
    Some((event, size))
}

/// Returns the handle and the name, without its NUL, of an information record.
fn parse_record(record: &[u8]) -> Option<(FileHandle, &[u8])> {
    let len = number(record, HANDLE_AT)? as usize;
    let kind = number(record, HANDLE_AT + 4)? as i32;
    let rest = record.get(HANDLE_AT + 8..)?;
    let (bytes, name) = rest.split_at_checked(len)?;
    let end = name.iter().position(|&byte| byte == 0);
    let name = &name[..end.unwrap_or(name.len())];
    Some((FileHandle::new(kind, bytes).ok()?, name))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn event(mask: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut bytes = vec![0; METADATA_LEN];
        let len = (METADATA_LEN + records.len()) as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4] = 3;
        bytes[6..8].copy_from_slice(&(METADATA_LEN as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&mask.to_ne_bytes());
        bytes[20..24].copy_from_slice(&7u32.to_ne_bytes());
        [bytes, records].concat()
    }

    fn record(kind: u8, handle: &[u8], name: &[u8]) -> Vec<u8> {
        let len = (HANDLE_AT + 8 + handle.len() + name.len()) as u16;
        let mut bytes = vec![kind, 0];
        bytes.extend(len.to_ne_bytes());
        bytes.extend([9; 8]);
        bytes.extend((handle.len() as u32).to_ne_bytes());
        bytes.extend(1u32.to_ne_bytes());
        [&bytes, handle, name].concat()
    }

    #[test]
    fn an_event_names_its_object_and_directories() {
        let handle = |byte| FileHandle::new(1, &[byte; 8]).expect("short");
        let name = |byte, name| {
            Some(ChangedName {
                dir: handle(byte),
                name,
            })
        };
        let old = record(OLD_DFID_NAME, &[1; 8], b"old\0\0");
        let new = record(NEW_DFID_NAME, &[2; 8], b"new\0");
        let object = record(FID, &[3; 8], b"");
        let bytes = event(FAN_RENAME, &[old, new, object]);
        let (renamed, size) = parse_change(&bytes).expect("whole");
        assert_eq!(size, bytes.len());
        assert!(renamed.renamed && !renamed.created && renamed.pid == 7);
        assert_eq!(renamed.object, Some(handle(3)));
        assert_eq!(renamed.name, name(2, &b"new"[..]));
        assert_eq!(renamed.old, name(1, &b"old"[..]));
        for len in 0..bytes.len() {
            assert!(parse_change(&bytes[..len]).is_none(), "{len}");
        }
        let itself = event(libc::FAN_ATTRIB, &[record(DFID_NAME, &[1; 8], b".\0")]);
        let (itself, _) = parse_change(&itself).expect("whole");
        assert_eq!(itself.name, name(1, &b""[..]));
    }

    #[test]
    fn broken_records_are_skipped() {
        let good = record(FID, &[3; 8], b"");
        let long = record(FID, &[3; 129], b"");
        let mut beyond = record(DFID_NAME, &[1; 8], b"x\0");
        beyond[HANDLE_AT] = 200;
        let bytes = event(
            libc::FAN_MODIFY,
            &[vec![0; 4], long, beyond, good, vec![1, 0, 255, 255]],
        );
        let (event, size) = parse_change(&bytes).expect("whole");
        assert_eq!(size, bytes.len());
        assert!(event.contents && event.object.is_some() && event.name.is_none());
    }

    #[test]
    fn a_watched_directory_reports_its_children_without_privileges() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = fs::File::open(dir.path()).expect("opens");
        let group = match ChangeGroup::new() {
            Err(error) => return eprintln!("skipped: no notification here: {error}"),
            Ok(group) => group,
        };
        if let Err(error) = group.watch_directory(open.as_fd(), WriteEvents::Each) {
            return eprintln!("skipped: no notification here: {error}");
        }
        fs::write(dir.path().join("file"), "contents").expect("writes");
        fs::rename(dir.path().join("file"), dir.path().join("other")).expect("renames");
        fs::remove_file(dir.path().join("other")).expect("removes");
        let (mut buffer, mut seen) = (EventBuffer::default(), Vec::new());
        while !seen.iter().any(|(_, deleted)| *deleted) {
            let read = group.read(&mut buffer, None, &mut |event| {
                assert_eq!(event.pid, std::process::id());
                let old = event.old.map(|old| old.name.to_owned());
                let name = event.name.expect("has a name").name.to_owned();
                seen.push(((old, name), event.deleted));
            });
            read.expect("reads");
        }
        let names: Vec<_> = seen.into_iter().map(|(names, _)| names).collect();
        assert_eq!(names.first(), Some(&(None, b"file".to_vec())));
        assert!(names.contains(&(Some(b"file".to_vec()), b"other".to_vec())));
        let more = group.read(&mut buffer, Some(Duration::ZERO), &mut |_| ());
        assert!(!more.expect("reads"));
    }

    #[test]
    fn a_write_raises_an_event_on_request_and_a_close_does_always() {
        for (writes, expected) in [
            (WriteEvents::OnClose, [false, true]),
            (WriteEvents::Each, [true, true]),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut file = fs::File::create(dir.path().join("file")).expect("made");
            let open = fs::File::open(dir.path()).expect("opens");
            let group = match ChangeGroup::new() {
                Err(error) => return eprintln!("skipped: no notification here: {error}"),
                Ok(group) => group,
            };
            if let Err(error) = group.watch_directory(open.as_fd(), writes) {
                return eprintln!("skipped: no notification here: {error}");
            }
            let mut buffer = EventBuffer::default();
            let mut contents = || {
                let mut contents = false;
                let read = group.read(&mut buffer, Some(Duration::ZERO), &mut |event| {
                    contents |= event.contents;
                });
                read.expect("reads") && contents
            };
            file.write_all(b"contents").expect("writes");
            let written = contents();
            drop(file);
            assert_eq!([written, contents()], expected, "{writes:?}");
        }
    }
}
