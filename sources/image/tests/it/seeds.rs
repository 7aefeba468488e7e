//! Images of one small tree made by mkfs.erofs 1.8 with 512-byte blocks, including the codecs that
//! Debian 12's mkfs.erofs lacks. They also seed the fuzz target.

use std::fs;
use std::path::Path;

use image::{ImageFs, Trust};
use vfs_testkit::walk_all;

use crate::compare::root;

#[test]
fn each_layout_and_codec_has_the_same_tree() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/erofs_image");
    let text: String = (1..=120)
        .map(|at| format!("over and over {}\n", at % 7))
        .collect();
    let mut names = Vec::new();
    for seed in fs::read_dir(seeds).expect("seeds") {
        let path = seed.expect("a seed").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let fs = ImageFs::open(&path, &[], &Trust::Hashes).expect(&name);
        let root = root(&fs);
        let read = |path: &[&str]| {
            let found = path
                .iter()
                .fold(root.clone(), |dir, name| dir.lookup(*name).expect("found"));
            found.content().expect("read")
        };
        assert_eq!(read(&["text"]), text.as_bytes(), "{name}");
        assert_eq!(read(&["d", "again"]), text.as_bytes(), "{name}");
        assert_eq!(read(&["d", "file"]), b"hello", "{name}");
        assert_eq!(
            root.lookup("link").expect("found").readlink(),
            Ok(b"d/file".to_vec())
        );
        if name != "chunks" {
            let shared = root.lookup("text").expect("found").xattr(b"user.shared");
            assert_eq!(shared, Ok(b"alike".to_vec()), "{name}");
        }
        assert_eq!(walk_all(&fs, 100), 7, "{name}");
        names.push(name);
    }
    names.sort();
    let all = "all-fragments chunks deflate flat legacy lz4 lzma prefixes zstd";
    assert_eq!(names.join(" "), all);
}
