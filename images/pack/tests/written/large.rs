//! Large inputs: a sparse file of a tebibyte, a directory of 200,000 entries.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use pack::erofs::Options;
use pack::{Attributes, Contents, FileStorage, Kind, NodeId, Plan};

use crate::trees::{snapshot, write_image};

/// A sparse file with some data.
struct Holes(u64, Vec<Range<u64>>);

impl Contents for Holes {
    fn len(&self) -> u64 {
        self.0
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(buffer) {
            *byte = u8::from(self.1.iter().any(|data| data.contains(&at)));
        }
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(self.1.clone())
    }
}

fn sound(image: &std::path::Path) -> erofs::check::CheckStats {
    let mut found = Vec::new();
    let image = FileStorage(File::open(image).expect("opened"));
    let looked = erofs::check::check(&image, &mut |finding| found.push(finding));
    assert_eq!(found, []);
    looked
}

#[test]
fn a_tebibyte_of_holes_takes_little() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut plan = Plan::new(Attributes::default());
    let data = vec![5 << 38..(5 << 38) + 100, (1 << 40) - 1..1 << 40];
    let holes = Kind::File(Arc::new(Holes(1 << 40, data)));
    plan.add(NodeId::ROOT, b"holes", Attributes::default(), holes);
    let image = write_image(&plan, &Options::default(), dir.path());
    let bytes = std::fs::metadata(&image).expect("there").len();
    assert!(bytes < 10 << 20, "{bytes}");
    assert_eq!(sound(&image).bytes, 1 << 40);
}

#[test]
fn a_directory_of_many_entries_is_found_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut plan = Plan::new(Attributes::default());
    let many = plan.add(
        NodeId::ROOT,
        b"many",
        Attributes::default(),
        Kind::empty_directory(),
    );
    for number in 0..200_000 {
        let name = format!("entry {number}");
        plan.add(
            many,
            name.as_bytes(),
            Attributes::default(),
            Kind::file(name.clone()),
        );
    }
    let image = write_image(&plan, &Options::default(), dir.path());
    assert_eq!(sound(&image).inodes, 200_002);
    if crate::trees::is_root() {
        let mounted = crate::erofs::Mounted::new(&image, dir.path().join("mounted"));
        let Ok(mounted) = mounted else { return };
        let names = snapshot(mounted.path());
        assert_eq!(names.len(), 200_002);
        assert_eq!(
            std::fs::read(mounted.path().join("many/entry 77777")).expect("there"),
            b"entry 77777"
        );
    }
}
