//! Plans of archives and of OCI images.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use pack::{Kind, Output, Plan, input};
use sha2::{Digest, Sha256};

use crate::trees::{plan_of, run, text, tree};

/// What a tree has, with the contents of files.
fn told(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for visit in plan.walk().expect("a tree") {
        let (attributes, kind) = (plan.attributes(visit.node), plan.kind(visit.node));
        let has = match kind {
            Kind::Directory(children) => format!("{} entries", children.len()),
            Kind::File(contents) => {
                let mut bytes = vec![0; contents.len() as usize];
                contents.read(0, &mut bytes).expect("contents");
                let data: u64 = contents
                    .data()
                    .expect("extents")
                    .iter()
                    .map(|data| data.end - data.start)
                    .sum();
                // Which holes there are is told in units of a block at best.
                format!(
                    "{} {} sparse: {}",
                    bytes.len(),
                    blake3::hash(&bytes),
                    data + 8192 < contents.len()
                )
            }
            Kind::Symlink(target) => String::from_utf8_lossy(target).into_owned(),
            Kind::CharDevice(device) | Kind::BlockDevice(device) => format!("{device:?}"),
            Kind::Fifo | Kind::Socket => String::new(),
        };
        all.push(format!(
            "{} {} {:o} {} {} {:?} {:?} {:?} {has}",
            String::from_utf8_lossy(&visit.name),
            visit.links,
            attributes.mode,
            attributes.uid,
            attributes.gid,
            attributes.mtime,
            attributes.xattrs,
            kind.kind()
        ));
    }
    all
}

fn scratch() -> std::io::Result<File> {
    tempfile::tempfile()
}

fn plan_of_archive(path: &Path) -> pack::Result<Plan> {
    input::tar(input::unpacked(File::open(path)?, scratch)?)
}

#[test]
fn a_tar_stream_has_all_that_its_tree_has() {
    let dir = tree();
    let root = dir.path().join("tree");
    // Tar has no sockets.
    fs::remove_file(root.join("socket")).expect("removed");
    let want = told(&plan_of(&root));
    let archive = dir.path().join("archive");
    for (how, options) in [
        (
            "pax",
            &["--format=pax", "--xattrs", "--xattrs-include=*", "--sparse"][..],
        ),
        (
            "gzip",
            &[
                "--format=pax",
                "--xattrs",
                "--xattrs-include=*",
                "--sparse",
                "--gzip",
            ],
        ),
    ] {
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(&root)
            .args(options)
            .arg("-cf")
            .arg(&archive)
            .arg(".");
        run(&mut tar).expect("an archive");
        let got = told(&plan_of_archive(&archive).expect(how));
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got, want, "{how}");
        }
        assert_eq!(got.len(), want.len());
    }
}

#[test]
fn gnus_own_format_has_long_names_and_holes() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("d".repeat(200))).expect("made");
    let sparse = File::create(root.join("d".repeat(200)).join("sparse")).expect("made");
    for at in 0..30 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &text(5000), at << 20).expect("written");
    }
    sparse.set_len(40 << 20).expect("cut");
    std::os::unix::fs::symlink("t".repeat(300), root.join("link")).expect("linked");
    for path in [
        root.join("link"),
        root.join("d".repeat(200)).join("sparse"),
        root.join("d".repeat(200)),
        root.clone(),
    ] {
        run(Command::new("touch")
            .args(["-h", "-d", "@1700000000"])
            .arg(path))
        .expect("times");
    }
    let archive = dir.path().join("archive");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(&root)
        .args(["--format=gnu", "--sparse", "-cf"])
        .arg(&archive)
        .arg(".");
    run(&mut tar).expect("an archive");
    assert_eq!(
        told(&plan_of_archive(&archive).expect("a plan")),
        told(&plan_of(&root))
    );
}

/// Every archive that is cut off or changed ends in a plan or in one line.
#[test]
fn no_archive_is_trusted() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("d")).expect("made");
    fs::write(root.join("d/file"), text(3000)).expect("written");
    fs::hard_link(root.join("d/file"), root.join("link")).expect("linked");
    let path = dir.path().join("archive");
    run(Command::new("tar")
        .arg("-C")
        .arg(&root)
        .args(["--format=pax", "-cf"])
        .arg(&path)
        .arg("."))
    .expect("an archive");
    let archive = fs::read(&path).expect("read");
    let changed = dir.path().join("changed");
    for at in 0..archive.len().min(6000) {
        let mut bytes = archive.clone();
        if at % 3 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << (at % 8);
        }
        fs::write(&changed, bytes).expect("written");
        if let Err(error) = plan_of_archive(&changed) {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
}

/// An OCI image layout of layers, which are shell commands run in a directory of each.
fn oci(dir: &Path, layers: &[&str]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    let put = |bytes: &[u8]| {
        let digest: String = Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        fs::write(blobs.join(&digest), bytes).expect("written");
        serde_json::json!({ "digest": format!("sha256:{digest}"), "size": bytes.len() })
    };
    let layers: Vec<_> = (layers.iter().enumerate())
        .map(|(number, commands)| {
            let scratch = tempfile::tempdir().expect("a directory");
            let (root, archive) = (scratch.path().join("root"), scratch.path().join("layer"));
            fs::create_dir(&root).expect("made");
            run(Command::new("sh")
                .args(["-ec", commands])
                .current_dir(&root))
            .expect("a layer");
            let how = if number % 2 == 0 { "-czf" } else { "-cf" };
            run(Command::new("tar")
                .arg("-C")
                .arg(&root)
                .arg(how)
                .arg(&archive)
                .arg("."))
            .expect("an archive");
            put(&fs::read(archive).expect("read"))
        })
        .collect();
    let manifest = serde_json::json!({ "schemaVersion": 2, "layers": layers });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [put(manifest.to_string().as_bytes())] });
    fs::write(dir.join("index.json"), index.to_string()).expect("written");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
}

fn paths(plan: &Plan) -> Vec<String> {
    let visits = plan.walk().expect("a tree");
    let path = |mut at: usize| {
        let mut names = Vec::new();
        while at != 0 {
            names.push(String::from_utf8_lossy(&visits[at].name).into_owned());
            at = visits[at].parent;
        }
        names.reverse();
        names.join("/")
    };
    (1..visits.len()).map(path).collect()
}

#[test]
fn layers_are_put_on_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    oci(
        dir.path(),
        &[
            "mkdir -p etc opaque gone; echo 1 > etc/a; echo 1 > etc/b; echo 1 > opaque/below; echo 1 > gone/x; echo 1 > kind",
            "mkdir -p etc opaque; touch etc/.wh.a opaque/.wh..wh..opq .wh.gone; echo 2 > opaque/above; echo 2 > etc/c; mkdir kind; echo 2 > kind/in",
            "mkdir etc; ln -s c etc/b; ln etc/b etc/d",
        ],
    );
    let plan = input::oci_layout(dir.path(), scratch).expect("a plan");
    assert_eq!(
        paths(&plan),
        [
            "etc",
            "etc/b",
            "etc/c",
            "kind",
            "kind/in",
            "opaque",
            "opaque/above"
        ]
    );
    let etc = plan.lookup(pack::NodeId::ROOT, b"etc").expect("there");
    assert_eq!(plan.lookup(etc, b"b"), plan.lookup(etc, b"d"));
}

#[test]
fn a_blob_with_another_digest_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    oci(dir.path(), &["echo 1 > a"]);
    for blob in fs::read_dir(dir.path().join("blobs/sha256")).expect("blobs") {
        let path = blob.expect("a blob").path();
        let before = fs::read(&path).expect("read");
        fs::write(&path, [&before[..], b" "].concat()).expect("written");
        let error = input::oci_layout(dir.path(), scratch)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("has another digest"), "{error}");
        fs::write(&path, before).expect("written");
    }
}

#[test]
fn rofs_says_what_it_drops() {
    let dir = tree();
    let plan = plan_of(&dir.path().join("tree"));
    let path = dir.path().join("image");
    let mut output = Output::to_file(&path).expect("begun");
    let dropped = pack::rofs::write(&plan, &mut output, &()).expect("written");
    let bytes = output.finish().expect("finished");
    assert!(
        dropped.special >= 2 && dropped.xattrs >= 5 && dropped.sparse >= 1,
        "{dropped:?}"
    );
    let image = fs::read(&path).expect("read");
    assert_eq!(image.len() as u64, bytes);
    let superblock = rofs::Superblock::parse(image.first_chunk().expect("a block"), bytes)
        .expect("a superblock");
    let (at, len) = superblock.tables();
    let tables = image[at as usize..(at + len) as usize].to_vec();
    let tables = rofs::Tables::parse(&superblock, tables).expect("tables");
    let file = |name: &[u8]| {
        tables
            .children(1, 0)
            .find(|child| child.name == name)
            .expect("there")
            .inode
    };
    let rofs::InodeKind::File { block, size } = file(b"text").kind else {
        panic!("a file")
    };
    let begins = (block * rofs::BLOCK) as usize;
    assert_eq!(image[begins..begins + size as usize], text(5_000_001));
    assert_eq!(file(b"text"), file(b"0"), "one file of two names");
}
