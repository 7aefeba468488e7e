//! The intact images: small ones of each layout, codec and format.

use std::fs;
use std::path::Path;

use pack::erofs::{Compression, Options};
use pack::{Attributes, Kind, NodeId, Output, Plan};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Erofs,
    /// With appended hashes.
    Hashes,
    Rofs,
}

/// An intact image.
pub(crate) struct SampleImage {
    pub(crate) format: Format,
    pub(crate) bytes: Vec<u8>,
}

impl SampleImage {
    /// Asserts that the check finds no error.
    pub(crate) fn assert_sound(&self) {
        if self.format != Format::Rofs {
            let mut found = Vec::new();
            let image = crate::CountingStorage::new(self.bytes.clone());
            erofs::check::check(&image, &mut |finding| found.push(finding));
            assert_eq!(found, []);
        }
    }
}

/// Returns all images of a format.
pub(crate) fn of(format: Format) -> Vec<SampleImage> {
    let options = |compression, chunk, dedupe, pack_small| Options {
        compression,
        cluster: 8192,
        chunk,
        dedupe,
        pack_small,
        ..Options::default()
    };
    let (none, lz4, zstd) = (Compression::None, Compression::Lz4(3), Compression::Zstd(1));
    let ways = [
        options(none, None, false, false),
        options(none, Some(4096), false, false),
        options(none, None, true, false),
        options(lz4, None, false, true),
        options(lz4, None, true, false),
        options(zstd, None, false, true),
        options(zstd, None, false, false),
    ];
    let dir = tempfile::tempdir().expect("a directory");
    let written = |write: &dyn Fn(&mut Output)| {
        let path = dir.path().join("image");
        let mut output = Output::to_file(&path).expect("begun");
        if format == Format::Hashes {
            output = output.with_hashes();
        }
        write(&mut output);
        output.write_sidecar(&[], None).expect("sealed");
        output.finish().expect("finished");
        fs::read(path).expect("read")
    };
    let plan = plan();
    let mut all: Vec<Vec<u8>> = match format {
        Format::Rofs => vec![written(&|output| {
            pack::rofs::write(&plan, output, &()).expect("written");
        })],
        _ => {
            let ways = ways.iter();
            ways.map(|options| {
                written(&|output| {
                    pack::erofs::write(&plan, options, output, &()).expect("written");
                })
            })
            .collect()
        }
    };
    if format == Format::Erofs {
        // Images of mkfs.erofs 1.8: every codec, compact indexes, blocks of 512 bytes.
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/erofs_image");
        let seeds = fs::read_dir(seeds).expect("seeds");
        let mut seeds: Vec<_> = seeds.map(|seed| seed.expect("a seed").path()).collect();
        seeds.sort();
        all.extend(seeds.iter().map(|seed| fs::read(seed).expect("read")));
    }
    let whole = |bytes| SampleImage { format, bytes };
    all.into_iter().map(whole).collect()
}

/// Returns a tree with every kind of content.
fn plan() -> Plan {
    let mut plan = Plan::new(Attributes::default());
    let mut with = Attributes::default();
    with.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
    with.xattrs.insert(b"trusted.b".to_vec(), vec![7; 40]);
    let none = Attributes::default;
    let text: Vec<u8> = (0..30_000_u32)
        .flat_map(|at| format!("{} ", at % 977).into_bytes())
        .take(40_000)
        .collect();
    let noise: Vec<u8> = (0..9000_u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let sub = plan.add(NodeId::ROOT, b"sub", with.clone(), Kind::empty_directory());
    let deep = plan.add(sub, b"deep", none(), Kind::empty_directory());
    let file = plan.add(sub, b"text", with, Kind::file(text.clone()));
    plan.link(NodeId::ROOT, b"link", file);
    plan.add(deep, b"noise", none(), Kind::file(noise));
    plan.add(deep, b"small", none(), Kind::file(&text[..700]));
    plan.add(deep, b"smaller", none(), Kind::file(&text[..3000]));
    plan.add(deep, b"empty", none(), Kind::file(""));
    plan.add(
        NodeId::ROOT,
        b"symlink",
        none(),
        Kind::Symlink(b"sub/deep".to_vec()),
    );
    for number in 0..20 {
        let name = format!("many {number}");
        plan.add(deep, name.as_bytes(), none(), Kind::file(name.clone()));
    }
    plan
}
