//! EROFS images with every option, mounted by Linux, extracted by fsck.erofs, and read by barge.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lamfold::{FoldFrontend, SliceSource, SubstrateCtx};
use pack::erofs::{Compression, Options};
use pack::{Attributes, FileStorage, Kind, NodeId, Plan};

use crate::trees::{is_root, noise, one_file, plan_of, run, snapshot, text, tree, write_image};

/// Returns every combination of options to test.
fn option_sets() -> Vec<(&'static str, Options)> {
    let options = |compression, cluster, chunk, dedupe| Options {
        compression,
        cluster,
        chunk,
        dedupe,
        threads: 2,
        ..Options::default()
    };
    let none = Compression::None;
    vec![
        ("plain", options(none, 65536, None, false)),
        ("chunks of 4K", options(none, 65536, Some(4096), false)),
        ("chunks of 1M", options(none, 65536, Some(1 << 20), true)),
        ("dedupe", options(none, 65536, None, true)),
        ("lz4", options(Compression::Lz4(9), 65536, None, false)),
        (
            "lz4 each by itself",
            Options {
                pack_small: false,
                ..options(Compression::Lz4(9), 65536, None, false)
            },
        ),
        (
            "lz4 dedupe each by itself",
            Options {
                pack_small: false,
                ..options(Compression::Lz4(9), 65536, None, true)
            },
        ),
        (
            "lz4 fast 4K",
            options(Compression::Lz4(0), 4096, None, false),
        ),
        (
            "lz4 1M dedupe",
            options(Compression::Lz4(3), 1 << 20, None, true),
        ),
        ("zstd", options(Compression::Zstd(3), 65536, None, false)),
        ("zstd 4K", options(Compression::Zstd(3), 4096, None, false)),
        (
            "zstd 1M dedupe",
            options(Compression::Zstd(10), 1 << 20, None, true),
        ),
    ]
}

/// An image mounted by Linux.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn new(image: &Path, on: PathBuf) -> Result<Mounted, String> {
        fs::create_dir_all(&on).map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "erofs", "-o", "ro,loop"])
            .arg(image)
            .arg(&on);
        run(&mut mount).map(|()| Mounted(on))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(&self.0));
    }
}

#[test]
fn linux_mounts_what_was_written() {
    if !is_root() {
        return println!("skipped: only root mounts");
    }
    let dir = tree();
    let root = dir.path().join("tree");
    let (plan, want) = (plan_of(&root), snapshot(&root));
    for (way, options) in option_sets() {
        let image = write_image(&plan, &options, dir.path());
        let mounted = match Mounted::new(&image, dir.path().join("mounted")) {
            Ok(mounted) => mounted,
            Err(why)
                if why.contains("unknown filesystem") || way.starts_with("zstd") && !has_zstd() =>
            {
                println!("skipped: {way}: {why}");
                continue;
            }
            Err(why) => panic!("{way}: {why}"),
        };
        let got = snapshot(&mounted.0);
        for (path, want) in &want {
            assert_eq!(got.get(path), Some(want), "{way}: {}", path.display());
        }
        assert_eq!(got.len(), want.len(), "{way}");
    }
}

/// Returns whether Linux supports Zstandard, which it does since 6.10.
fn has_zstd() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(10))
}

/// Returns a directory in memory if there is one: a disk takes longer to create and remove many
/// files.
fn memory_dir() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

#[test]
fn fsck_erofs_unpacks_what_was_written() {
    let tool = std::env::var_os("BARGE_FSCK_EROFS").unwrap_or("fsck.erofs".into());
    let Ok(version) = Command::new(&tool).arg("-V").output() else {
        return println!("skipped: there is no fsck.erofs here");
    };
    let is_old = String::from_utf8_lossy(&version.stdout).contains(" 1.5");
    let dir = tree();
    let root = dir.path().join("tree");
    // Version 1.5 extracts no sockets, and puts data after a hole in its place.
    for name in ["socket", "sparse", "hole"] {
        fs::remove_file(root.join(name)).expect("removed");
    }
    let (plan, want) = (plan_of(&root), snapshot(&root));
    for (way, options) in option_sets() {
        let packs = options.compression != Compression::None && options.pack_small;
        if is_old && (way.starts_with("zstd") || packs) {
            // Version 1.5 supports neither Zstandard nor the packed inode.
            continue;
        }
        let image = write_image(&plan, &options, dir.path());
        let to = memory_dir();
        let extract = format!("--extract={}", to.path().join("out").display());
        let mut fsck = Command::new(&tool);
        run(fsck.args(["--preserve", &extract]).arg(&image))
            .unwrap_or_else(|why| panic!("{way}: {why}"));
        let got = snapshot(&to.path().join("out"));
        assert_eq!(got.len(), want.len(), "{way}");
        for (path, want) in &want {
            let got = &got[path];
            // It extracts links as files, changes owners after setting the set-id bits, and sets no
            // attributes.
            assert!(
                got.same_contents(want),
                "{way}: {}: {got:?}, expected {want:?}",
                path.display()
            );
        }
    }
}

#[test]
fn a_reader_of_others_has_the_same() {
    let dir = tree();
    let root = dir.path().join("tree");
    let plan = plan_of(&root);
    for (way, options) in option_sets() {
        let image = fs::read(write_image(&plan, &options, dir.path())).expect("read");
        let image = erofs_rs::backend::SliceImage::new(&image);
        let read = erofs_rs::EroFS::new(image).expect(way);
        let mut pending = vec![root.clone()];
        while let Some(path) = pending.pop() {
            let inside = path.strip_prefix(&root).expect("below");
            let inside = [b"/", inside.as_os_str().as_bytes()].concat();
            let meta = fs::symlink_metadata(&path).expect("attributes");
            if meta.is_dir() {
                let entries = fs::read_dir(&path).expect("a directory");
                let entries = entries.map(|entry| entry.expect("an entry").path());
                // That reader searches directories entry by entry.
                pending.extend(entries.step_by(if inside == b"/many" { 16 } else { 1 }));
            } else if meta.is_file() {
                let mut file = read.open(&inside[..]).expect(way);
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).expect(way);
                let same = bytes == fs::read(&path).expect("contents");
                assert!(same, "{way}: {}", path.display());
            }
        }
    }
}

/// Only uncompressed images: that reader does not support the packed inode.
#[test]
fn another_reader_of_others_has_the_same() {
    let dir = tree();
    let root = dir.path().join("tree");
    let plan = plan_of(&root);
    let mut cache = lamfold::BlockCache::new(1 << 20);
    let mut cx = SubstrateCtx {
        cache: &mut cache,
        verifier: &lamfold::NoVerifier,
    };
    let ways = option_sets().into_iter();
    for (way, options) in ways.filter(|(_, options)| options.compression == Compression::None) {
        let image = fs::read(write_image(&plan, &options, dir.path())).expect("read");
        let mut read = lamfold_erofs::Erofs::open(SliceSource::new(&image), &mut cx).expect(way);
        let mut pending = vec![(root.clone(), read.root())];
        let mut files = 0;
        while let Some((path, node)) = pending.pop() {
            let meta = fs::symlink_metadata(&path).expect("attributes");
            let found = read.metadata(node, &mut cx).expect(way);
            assert_eq!(
                found.mode,
                meta.mode() & 0o7777,
                "{way}: {}",
                path.display()
            );
            if meta.is_dir() {
                let entries = read.read_dir(node, &mut cx).expect(way);
                let own = fs::read_dir(&path).expect("a directory");
                assert_eq!(entries.len(), own.count(), "{way}: {}", path.display());
                // It converts other names to text with replacement characters.
                let named = entries
                    .into_iter()
                    .filter(|entry| !entry.name.contains('\u{fffd}'));
                pending.extend(named.map(|entry| (path.join(entry.name), entry.node)));
            } else if meta.is_symlink() {
                let target = read.read_link(node, &mut cx).expect(way).expect("a link");
                let own = fs::read_link(&path).expect("a link");
                assert_eq!(target, own.as_os_str().as_bytes(), "{way}");
            } else if meta.is_file() {
                let own = fs::read(&path).expect("contents");
                let mut bytes = vec![0; own.len()];
                let mut done = 0;
                while done < bytes.len() {
                    let got = read.read_at(node, done as u64, &mut bytes[done..], &mut cx);
                    let got = got.unwrap_or_else(|why| panic!("{way}: {}: {why}", path.display()));
                    assert_ne!(got, 0, "{way}: {} is short", path.display());
                    done += got;
                }
                assert!(bytes == own, "{way}: {}", path.display());
                files += 1;
            }
        }
        assert!(files > 20, "{way}: {files} files");
    }
}

#[test]
fn barge_finds_nothing_wrong_with_what_was_written() {
    let dir = tree();
    let plan = plan_of(&dir.path().join("tree"));
    for (way, options) in option_sets() {
        let image =
            FileStorage(fs::File::open(write_image(&plan, &options, dir.path())).expect("opened"));
        let mut found = Vec::new();
        let looked = erofs::check::check(&image, &mut |finding| found.push(finding));
        assert_eq!(found, [], "{way}");
        assert_eq!(looked.inodes, plan.walk().expect("a tree").len() as u64);
    }
}

#[test]
fn the_same_tree_makes_the_same_bytes() {
    let dir = tree();
    let root = dir.path().join("tree");
    // The same tree created in another order, which the file system lists in its own order.
    let other = tempfile::tempdir().expect("a directory");
    run(Command::new("cp").args(["-a"]).arg(&root).arg(other.path())).expect("copied");
    for entry in fs::read_dir(other.path().join("tree")).expect("a directory") {
        let path = entry.expect("an entry").path();
        let away = other.path().join("away");
        let dir_time = fs::metadata(&root)
            .expect("there")
            .modified()
            .expect("a time");
        fs::rename(&path, &away)
            .and_then(|()| fs::rename(&away, &path))
            .expect("renamed");
        let dir = fs::File::open(other.path().join("tree")).expect("opened");
        dir.set_modified(dir_time).expect("set");
    }
    let ways = option_sets().into_iter();
    for (way, options) in ways.filter(|(way, _)| ["plain", "lz4", "zstd 1M dedupe"].contains(way)) {
        let bytes = |root: &Path, threads| {
            let options = Options {
                threads,
                ..options.clone()
            };
            let mut plan = plan_of(root);
            plan.clamp_times(1_700_000_000);
            fs::read(write_image(&plan, &options, dir.path())).expect("read")
        };
        let first = bytes(&root, 1);
        for (root, threads) in [(&root, 3), (&other.path().join("tree"), 2)] {
            let again = bytes(root, threads);
            let differs = first
                .iter()
                .zip(&again)
                .position(|(one, other)| one != other);
            let what = format!("{way}: {threads} threads, {}", root.display());
            assert_eq!((differs, again.len()), (None, first.len()), "{what}");
        }
    }
}

#[test]
fn equal_parts_are_stored_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = [text(1 << 20), text(1 << 20), text(1 << 20)].concat();
    for compression in [Compression::None, Compression::Lz4(3)] {
        let size = |dedupe| {
            let options = Options {
                compression,
                dedupe,
                ..Options::default()
            };
            let image = write_image(&one_file(bytes.clone()), &options, dir.path());
            fs::metadata(image).expect("there").len()
        };
        let (once, thrice) = (size(true), size(false));
        assert!(
            once < thrice / 2,
            "{compression:?}: {once}, without {thrice}"
        );
    }
}

#[test]
fn small_files_share_blocks() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut plan = Plan::new(Attributes::default());
    for number in 0..200 {
        let (name, file) = (format!("{number}"), Kind::file(text(5000 + number)));
        plan.add(NodeId::ROOT, name.as_bytes(), Attributes::default(), file);
    }
    let size = |pack_small| {
        let options = Options {
            compression: Compression::Lz4(3),
            pack_small,
            ..Options::default()
        };
        let image = write_image(&plan, &options, dir.path());
        fs::metadata(image).expect("there").len()
    };
    let (together, apart) = (size(true), size(false));
    assert!(together * 3 < apart, "{together}, each by itself {apart}");
}

#[test]
fn ends_of_files_share_blocks_and_equal_ones_are_stored_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |number: usize, equal: bool| match equal {
        true => text(5000 + number / 100),
        false => [&noise(30_000), &text(170_000 + number)[..]].concat(),
    };
    for compression in [Compression::Lz4(3), Compression::Zstd(3)] {
        for (equal, dedupe) in [(false, false), (true, false), (true, true)] {
            let mut plan = Plan::new(Attributes::default());
            for number in 0..200 {
                let (name, file) = (format!("{number}"), Kind::file(file(number, equal)));
                plan.add(NodeId::ROOT, name.as_bytes(), Attributes::default(), file);
            }
            let size = |pack_small| {
                let options = Options {
                    compression,
                    dedupe,
                    pack_small,
                    threads: 3,
                    ..Options::default()
                };
                let image = write_image(&plan, &options, dir.path());
                let looked = FileStorage(fs::File::open(&image).expect("opened"));
                let mut found = Vec::new();
                erofs::check::check(&looked, &mut |finding| found.push(finding));
                assert_eq!(found, [], "{compression:?}");
                fs::metadata(image).expect("there").len()
            };
            let (packed, apart) = (size(true), size(false));
            // Half of each file's last block is empty; equal files take the space of one, except
            // for inodes.
            let less = if equal {
                20 * 1024 + 8192
            } else {
                apart - 200 * 1024
            };
            assert!(
                packed < less,
                "{compression:?}, {equal}: {packed}, each by itself {apart}"
            );
        }
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("tree");
    fs::create_dir(&root).expect("made");
    fs::write(root.join("file"), text(100_000)).expect("written");
    let plan = plan_of(&root);
    fs::write(root.join("file"), text(1000)).expect("written");
    let mut output = pack::Output::to_file(&dir.path().join("image")).expect("begun");
    let error = pack::erofs::write(&plan, &Options::default(), &mut output, &());
    let error = error.expect_err("too short").to_string();
    assert!(error.starts_with("/file: the file was changed"), "{error}");
    drop(output);
    let left: Vec<_> = fs::read_dir(dir.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["tree"]);
}
