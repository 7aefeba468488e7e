//! Events of fanotify(7) as a group's reader gets them.

use sys::fs_changes::parse_change;
use sys::handle::FileHandle;

/// Parses a buffer of events: each takes bytes, and its names and handles are within it.
pub fn events(data: &[u8]) {
    let mut rest = data;
    while let Some((event, size)) = parse_change(rest) {
        assert!(size > 0 && size <= rest.len());
        let names = [event.name, event.old].into_iter().flatten();
        for name in names {
            assert!(name.name.len() < size && !name.name.contains(&0));
            assert!(name.dir.bytes().len() <= FileHandle::MAX);
        }
        rest = &rest[size..];
    }
}
