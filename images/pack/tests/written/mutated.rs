//! Changed images: the check always terminates, and reports errors in the parts it reads.

use std::fs;

use erofs::read::MemoryStorage;
use pack::erofs::{Compression, Options};
use pack::{Attributes, Kind, NodeId, Plan};
use proptest::prelude::*;

use crate::trees::{noise, text, write_image};

/// Makes a small image with every kind of content.
fn image(compression: Compression) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut plan = Plan::new(Attributes::default());
    let mut with = Attributes::default();
    with.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
    let sub = plan.add(NodeId::ROOT, b"sub", with.clone(), Kind::empty_directory());
    let file = plan.add(sub, b"file", with, Kind::file(text(60_000)));
    plan.link(NodeId::ROOT, b"link", file);
    plan.add(
        NodeId::ROOT,
        b"noise",
        Attributes::default(),
        Kind::file(noise(9000)),
    );
    plan.add(
        NodeId::ROOT,
        b"symlink",
        Attributes::default(),
        Kind::Symlink(b"sub".to_vec()),
    );
    for number in 0..300 {
        plan.add(
            sub,
            format!("many {number}").as_bytes(),
            Attributes::default(),
            Kind::Fifo,
        );
    }
    let options = Options {
        compression,
        cluster: 16384,
        chunk: (compression == Compression::None).then_some(8192),
        ..Options::default()
    };
    fs::read(write_image(&plan, &options, dir.path())).expect("read")
}

/// Corrects the superblock's checksum, so that the data after it are read.
fn sealed(mut image: Vec<u8>) -> Vec<u8> {
    if image.len() >= 4096 {
        image[1028..1032].fill(0);
        let checksum = erofs::layout::checksum(&image[1024..4096]);
        image[1028..1032].copy_from_slice(&checksum.to_le_bytes());
    }
    image
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn no_image_is_trusted(
        which in 0..3_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local! {
            static IMAGES: [Vec<u8>; 3] = [Compression::None, Compression::Lz4(3), Compression::Zstd(1)].map(image);
        }
        let mut bytes = IMAGES.with(|images| images[which].clone());
        let superblock = erofs::layout::Superblock::parse(&bytes[1024..]).expect("a superblock");
        let metadata = superblock.meta_block as usize * 4096;
        for (at, byte, anywhere) in changes {
            // Most of an image is file contents, where a change has little effect.
            let first = if anywhere { 0 } else { metadata };
            let at = first + at.index(bytes.len() - first);
            bytes[at] = byte;
        }
        let whole = bytes.len();
        bytes.truncate(cut.index(whole * 4).min(whole));
        let mut found = 0;
        erofs::check::check(&MemoryStorage(&sealed(bytes)), &mut |finding| {
            assert!(!finding.message.is_empty());
            found += 1;
        });
        prop_assert!(found <= erofs::check::MAX_FINDINGS);
    }
}

#[test]
fn what_is_wrong_is_found() {
    let whole = image(Compression::Lz4(3));
    let found = |bytes: Vec<u8>| {
        let mut found = Vec::new();
        erofs::check::check(&MemoryStorage(&bytes), &mut |finding| found.push(finding));
        found
    };
    assert_eq!(found(whole.clone()), []);
    let mut other = whole.clone();
    other[1024 + 16] ^= 1;
    assert_eq!(found(other.clone()).len(), 1, "a checksum that is wrong");
    assert!(
        found(sealed(other))[0]
            .message
            .contains("inodes with names")
    );
    // A compressed block with other bytes.
    let mut other = whole.clone();
    other[4096 * 2 - 600..4096 * 2].fill(0xff);
    let findings = found(other);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].path, b"/link");
}
