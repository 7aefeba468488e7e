//! A file with the hidden names of a mount's removed files. If the mount ends without a word, the
//! next one in its place removes what it has left on the server.
//!
//! A line is the caller's user and group, the directory's handle in hexadecimal digits, and the
//! name. A name is in the file before the server has it, and may stay after it is gone.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use vfs::Caller;

use super::hidden::HiddenName;

/// The maximum size in bytes of the lines of an earlier mount.
const MAX_SIZE: u64 = 1 << 20;

/// The most lines that certainly fit into a quarter of it.
const MAX_LINES: usize = 1000;

/// The file, from an offset on. A clone writes to the same one.
#[derive(Clone, Debug)]
pub struct HiddenLog(Arc<Mutex<LogFile>>);

#[derive(Debug)]
struct LogFile {
    file: File,
    start: u64,
    end: u64,
}

impl HiddenLog {
    /// Uses `file` from the offset `start` on.
    pub fn new(file: File, start: u64) -> io::Result<HiddenLog> {
        let end = file.metadata()?.len().max(start);
        Ok(HiddenLog(Arc::new(Mutex::new(LogFile {
            file,
            start,
            end,
        }))))
    }

    /// Returns the names in the file.
    pub(super) fn read(&self) -> Vec<HiddenName> {
        let mut log = self.0.lock();
        let mut bytes = vec![0; (log.end - log.start).min(MAX_SIZE) as usize];
        let start = SeekFrom::Start(log.start);
        let found = log.file.seek(start);
        if found.and_then(|_| log.file.read_exact(&mut bytes)).is_err() {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter_map(parse).collect()
    }

    /// Adds a name. If that fails, the name may stay on the server. If the file is large, its
    /// contents are replaced with `live` first.
    pub(super) fn add<'a>(&self, hidden: &HiddenName, live: impl Iterator<Item = &'a HiddenName>) {
        if self.0.lock().is_large() {
            self.clear();
            let live = live.take(MAX_LINES).map(format).collect();
            self.append(live);
        }
        self.append(format(hidden));
    }

    fn append(&self, line: String) {
        let mut log = self.0.lock();
        let end = SeekFrom::Start(log.end);
        let found = log.file.seek(end);
        let written = found.and_then(|_| log.file.write_all(line.as_bytes()));
        match written {
            Ok(()) => log.end += line.len() as u64,
            Err(error) => tracing::debug!("a hidden name is not recorded: {error}"),
        }
    }

    /// Removes all names.
    pub(super) fn clear(&self) {
        let mut log = self.0.lock();
        if log.file.set_len(log.start).is_ok() {
            log.end = log.start;
        }
    }
}

impl LogFile {
    fn is_large(&self) -> bool {
        self.end - self.start > MAX_SIZE / 2
    }
}

/// Two logs are the same if they write to one file.
impl PartialEq for HiddenLog {
    fn eq(&self, other: &HiddenLog) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HiddenLog {}

fn format(hidden: &HiddenName) -> String {
    let dir: String = hidden
        .dir
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (uid, gid) = (hidden.caller.uid, hidden.caller.gid);
    let name = String::from_utf8_lossy(&hidden.name);
    format!("{uid} {gid} {dir} {name}\n")
}

/// Parses a line. Returns `None` if it is not one that [`format()`] makes.
fn parse(line: &str) -> Option<HiddenName> {
    let mut fields = line.split(' ');
    let mut number = || fields.next()?.parse().ok();
    let caller = Caller::new(number()?, number()?);
    let (dir, name) = (fields.next()?, fields.next()?);
    let (digits, rest) = dir.as_bytes().as_chunks::<2>();
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    let dir: Option<Vec<u8>> = digits.iter().map(byte).collect();
    if !rest.is_empty() || fields.next().is_some() {
        return None;
    }
    HiddenName::parse(&dir?, name, caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_behind_the_start_and_other_lines_are_ignored() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"head\n").expect("written");
        let log = HiddenLog::new(file.try_clone().expect("a duplicate"), 5).expect("a log");
        assert!(log.read().is_empty());
        let name = ".nfs0123456789abcdef01234567";
        let hidden = HiddenName::parse(&[0, 0x7f, 0xff], name, Caller::new(7, 8)).expect("a name");
        log.add(&hidden, std::iter::empty());
        for line in [
            "7 8 00 file\n",
            "7 8 00 .nfs/../x\n",
            "7 8 0 .nfs0123456789abcdef01234567\n",
            "7 8 xx .nfs0123456789abcdef01234567\n",
            "7 .nfs0123456789abcdef01234567",
        ] {
            file.seek(SeekFrom::End(0)).expect("found");
            file.write_all(line.as_bytes()).expect("written");
        }
        let log = HiddenLog::new(file.try_clone().expect("a duplicate"), 5).expect("a log");
        let found = log.read();
        assert_eq!(found.len(), 1);
        assert_eq!(format(&found[0]), format(&hidden));
        log.clear();
        assert_eq!(file.metadata().expect("known").len(), 5);
    }
}
