//! Plans of archives and of OCI images.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use pack::input::OciLayout;
use pack::{Kind, Output, Plan, input};
use sha2::{Digest, Sha256};

use crate::trees::{plan_of, run, text, tree};

/// Returns a description of a tree, with the contents of files.
fn describe(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for visit in plan.walk().expect("a tree") {
        let (attributes, kind) = (plan.attributes(visit.node), plan.kind(visit.node));
        let has = match kind {
            Kind::Directory(children) => format!("{} entries", children.len()),
            Kind::File(contents) => {
                let mut bytes = vec![0; contents.len() as usize];
                contents.read(0, &mut bytes).expect("contents");
                let data: u64 = contents
                    .data_ranges()
                    .expect("extents")
                    .iter()
                    .map(|data| data.end - data.start)
                    .sum();
                // Holes are reported in units of a block at best.
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
            kind.vfs_kind()
        ));
    }
    all
}

fn scratch() -> std::io::Result<File> {
    tempfile::tempfile()
}

fn plan_of_archive(path: &Path) -> pack::Result<Plan> {
    input::tar(input::decompress(File::open(path)?, scratch, u64::MAX)?)
}

#[test]
fn a_tar_stream_has_all_that_its_tree_has() {
    let dir = tree();
    let root = dir.path().join("tree");
    // Tar has no sockets.
    fs::remove_file(root.join("socket")).expect("removed");
    let want = describe(&plan_of(&root));
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
        let got = describe(&plan_of_archive(&archive).expect(how));
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
        describe(&plan_of_archive(&archive).expect("a plan")),
        describe(&plan_of(&root))
    );
}

/// Archives of GNU tar in all of its formats: sparse ones of every version, without user names,
/// incremental.
#[test]
fn every_format_of_gnu_tar_has_what_its_tree_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("d/e")).expect("made");
    fs::write(root.join("d/file"), text(3000)).expect("written");
    fs::write(root.join("empty"), "").expect("written");
    fs::hard_link(root.join("d/file"), root.join("link")).expect("linked");
    std::os::unix::fs::symlink("d/file", root.join("symlink")).expect("linked");
    for (name, parts, len) in [("sparse", 30, 40 << 20), ("hole", 0, 3 << 20)] {
        let sparse = File::create(root.join("d").join(name)).expect("made");
        for at in 0..parts {
            let written = std::os::unix::fs::FileExt::write_all_at(&sparse, &text(5000), at << 20);
            written.expect("written");
        }
        sparse.set_len(len).expect("cut");
    }
    run(Command::new("find").arg(&root).args([
        "-exec",
        "touch",
        "-h",
        "-d",
        "@1700000000",
        "{}",
        "+",
    ]))
    .expect("times");
    let want = describe(&plan_of(&root));
    let archive = dir.path().join("archive");
    let incremental = format!("--listed-incremental={}", dir.path().join("list").display());
    for options in [
        &["--format=v7"][..],
        &["--format=ustar"],
        &["--format=oldgnu", "--sparse"],
        &["--format=gnu", "--sparse"],
        &["--format=gnu", "--sparse", "--incremental"],
        &["--format=gnu", &incremental],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--sparse", "--sparse-version=1.0"],
        &["--format=pax", "--sparse", "--incremental"],
        // Numeric owners without names.
        &["--format=gnu", "--owner=:3000000", "--group=:4000000"],
    ] {
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(&root)
            .args(options)
            .arg("-cf")
            .arg(&archive);
        run(tar.arg(".")).expect("an archive");
        let mut got =
            describe(&plan_of_archive(&archive).unwrap_or_else(|e| panic!("{options:?}: {e}")));
        if !options.contains(&"--sparse") {
            got = got
                .iter()
                .map(|line| line.replace("sparse: false", "sparse: true"))
                .collect();
        }
        let owner = if options.contains(&"--owner=:3000000") {
            " 3000000 4000000 "
        } else {
            " 0 0 "
        };
        for (got, want) in got.iter().zip(&want) {
            let mut want = want.replacen(" 0 0 ", owner, 1);
            if !options.contains(&"--sparse") {
                want = want.replace("sparse: false", "sparse: true");
            }
            assert_eq!(*got, want, "{options:?}");
        }
        assert_eq!(got.len(), want.len(), "{options:?}");
    }
}

/// Returns a header and its data.
fn member(kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    sign(&mut bytes);
    bytes
}

/// Corrects the checksum of a header.
fn sign(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Returns pax records for the next member (`x`) or for all that follow (`g`).
fn pax(kind: u8, records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let len = (1..).find(|digits| (rest.len() + digits).to_string().len() == *digits);
        let len = rest.len() + len.expect("some number of digits");
        data.extend(format!("{len}{rest}").into_bytes());
    }
    member(kind, "records", &data)
}

fn plan_of_members(members: &[Vec<u8>]) -> pack::Result<Plan> {
    let mut file = scratch().expect("a file");
    file.write_all(&members.concat()).expect("written");
    file.write_all(&[0; 1024]).expect("written");
    input::tar(file)
}

/// Returns the contents of a file.
fn content(plan: &Plan, name: &str) -> Vec<u8> {
    let found = plan.walk().expect("a tree");
    let found = found.iter().find(|visit| visit.name == name.as_bytes());
    let found = found.unwrap_or_else(|| panic!("no {name} in {:?}", paths(plan)));
    match plan.kind(found.node) {
        Kind::File(contents) => {
            let mut bytes = vec![0; contents.len() as usize];
            contents.read(0, &mut bytes).expect("contents");
            bytes
        }
        other => panic!("{:?}", other.vfs_kind()),
    }
}

#[test]
fn sparse_files_of_every_version_are_read_and_others_refused() {
    let data = b"aaabb".as_slice();
    let want = b"\0\0aaa\0\0\0bb\0\0".as_slice();
    let count = ("GNU.sparse.numblocks", "2");
    let (size, real) = (("GNU.sparse.size", "12"), ("GNU.sparse.realsize", "12"));
    let (first, second) = (("GNU.sparse.offset", "2"), ("GNU.sparse.offset", "8"));
    let (three, two) = (("GNU.sparse.numbytes", "3"), ("GNU.sparse.numbytes", "2"));
    let map = ("GNU.sparse.map", "2,3,8,2");
    let name = ("GNU.sparse.name", "f");
    let version = |major, minor| [("GNU.sparse.major", major), ("GNU.sparse.minor", minor)];
    let mut in_front = b"2\n2\n3\n8\n2\n".to_vec();
    in_front.resize(512, 0);
    in_front.extend_from_slice(data);
    let [major0, minor0] = version("0", "0");
    let [major1, minor1] = version("1", "0");
    for (records, data) in [
        (&[size, count, first, three, second, two][..], data),
        (
            &[major0, minor0, size, count, first, three, second, two],
            data,
        ),
        (&[size, count, map], data),
        (&[name, size, count, map, version("0", "1")[1]], data),
        (&[major1, minor1, name, real], &in_front),
    ] {
        let plan = plan_of_members(&[pax(b'x', records), member(b'0', "f", data)]);
        assert_eq!(content(&plan.expect("a plan"), "f"), want, "{records:?}");
    }
    let refused: &[(&[(&str, &str)], &str)] = &[
        (
            &[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0"), real],
            "unknown version 2.0",
        ),
        (
            &[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "1"), real],
            "unknown version 1.1",
        ),
        (
            &[("GNU.sparse.colour", "red"), size, count, map],
            "GNU.sparse.colour",
        ),
        (&[size, count], "without a map"),
        (&[count, map], "size"),
        (&[size, ("GNU.sparse.numblocks", "3"), map], "numblocks"),
        (
            &[size, count, first, second, three, two],
            "GNU.sparse.offset",
        ),
        (&[size, count, three, first], "GNU.sparse.numbytes"),
        (
            &[size, count, ("GNU.sparse.map", "2,3,8")],
            "GNU.sparse.map",
        ),
        (
            &[size, count, ("GNU.sparse.map", "2,x,8,2")],
            "GNU.sparse.map",
        ),
        // Overlapping, beyond the end, and more than the data.
        (
            &[size, count, ("GNU.sparse.map", "2,3,4,2")],
            "malformed map",
        ),
        (
            &[size, count, ("GNU.sparse.map", "2,3,11,2")],
            "malformed map",
        ),
        (
            &[size, count, ("GNU.sparse.map", "0,6,8,2")],
            "malformed map",
        ),
        (&[("SCHILY.realsize", "12")], "SCHILY.realsize"),
        (&[("SUN.holesdata", " 0 2 5 8 10")], "SUN.holesdata"),
    ];
    for (records, why) in refused {
        let members = [
            pax(b'x', records),
            member(b'0', "f", data),
            member(b'0', "g", data),
        ];
        let error = plan_of_members(&members)
            .err()
            .expect("none that is known")
            .to_string();
        assert!(error.contains(why), "{error}, expected {why}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let sparse = pax(b'x', &[size, count, map]);
    assert!(plan_of_members(&[sparse, member(b'5', "d/", b"")]).is_err());
}

#[test]
fn the_last_records_before_a_member_count_and_no_value_deletes() {
    let plan = plan_of_members(&[
        pax(b'g', &[("uid", "7"), ("gid", "8"), ("mtime", "5")]),
        pax(
            b'x',
            &[
                ("path", "dropped"),
                ("uid", "9"),
                ("SCHILY.xattr.user.a", "dropped"),
            ],
        ),
        pax(
            b'x',
            &[("gid", ""), ("path", ""), ("SCHILY.xattr.user.b", "")],
        ),
        member(b'0', "first", b"1"),
        member(b'0', "second", b"2"),
        pax(b'g', &[("uid", "")]),
        pax(b'x', &[("path", "named")]),
        pax(b'g', &[("gid", "9")]),
        member(b'0', "third", b"3"),
    ])
    .expect("a plan");
    let found: Vec<_> = plan.walk().expect("a tree")[1..]
        .iter()
        .map(|visit| {
            let attributes = plan.attributes(visit.node);
            let xattrs: Vec<_> = attributes.xattrs.keys().cloned().collect();
            let name = String::from_utf8_lossy(&visit.name).into_owned();
            (
                name,
                attributes.uid,
                attributes.gid,
                attributes.mtime.sec,
                xattrs,
            )
        })
        .collect();
    let user_b = vec![b"user.b".to_vec()];
    assert_eq!(
        found,
        [
            ("first".to_owned(), 7, 0, 5, user_b),
            ("named".to_owned(), 0, 9, 5, vec![]),
            ("second".to_owned(), 7, 8, 5, vec![]),
        ]
    );
}

/// Global records apply to each member: a small archive made a tree of gigabytes.
#[test]
fn records_take_no_more_memory_than_archives_need() {
    let long = "x".repeat(1 << 20);
    let attribute = [("SCHILY.xattr.user.a", &*long)];
    let files = |count: usize| (0..count).map(|at| member(b'0', &format!("f{at}"), b""));
    let with =
        |first: Vec<u8>, count| -> Vec<_> { [first].into_iter().chain(files(count)).collect() };
    assert!(plan_of_members(&with(pax(b'g', &attribute), 10)).is_ok());
    let keys: Vec<_> = (0..17).map(|at| format!("comment{at}")).collect();
    let global = |key: &String| pax(b'g', &[(key, &long)]);
    let deep = "d/".repeat(2049);
    // Each path of many directories is new.
    let paths = (0..200).map(|at| pax(b'x', &[("path", &format!("{at}/{}f", "d/".repeat(1000)))]));
    let paths = paths.flat_map(|records| [records, member(b'0', "f", b"")]);
    let mut beyond = member(b'g', "records", b"");
    beyond[124..136].copy_from_slice(b"00000777777\0");
    sign(&mut beyond);
    let mut longest = beyond.clone();
    longest[124..136].copy_from_slice(b"00200000000\0");
    sign(&mut longest);
    for (members, part) in [
        (with(pax(b'g', &attribute), 100), "a tree of at most"),
        (
            keys.iter().map(global).collect(),
            "global records of more than 16 MiB",
        ),
        (
            with(pax(b'g', &[("path", &deep)]), 1),
            "more than 2048 nested",
        ),
        (paths.collect(), "a tree of at most"),
        (vec![beyond], "truncated"),
        (vec![longest], "records of more than 16 MiB"),
        (
            vec![member(b'g', "records", b"99 comment=short\n")],
            "malformed pax records",
        ),
        (
            vec![member(b'x', "records", b"17 comment=short\n8 path")],
            "malformed pax records",
        ),
    ] {
        let error = plan_of_members(&members)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains(part) && error.len() < 2000, "{error}");
    }
    // A later record takes the place of one with its key.
    let again: Vec<_> = [&keys[0]; 17].into_iter().map(global).collect();
    assert!(plan_of_members(&again).is_ok());
}

#[test]
fn an_error_has_the_kind_of_its_cause() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = OciLayout::open(dir.path()).err().expect("no index").kind();
    assert_eq!(missing, std::io::ErrorKind::NotFound);
    let broken = plan_of_members(&[vec![1; 512]])
        .err()
        .expect("broken")
        .kind();
    assert_eq!(broken, std::io::ErrorKind::InvalidData);
    let error: pack::Error = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
    let error = std::io::Error::from(error.of("layer"));
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().starts_with("layer: "), "{error}");
}

#[test]
fn fields_of_nothing_are_0_and_a_dumpdir_is_a_directory() {
    // A v7 header: no magic number, and NULs or spaces in every number.
    let mut old = member(b'0', "old", b"data");
    old[100..124].fill(0);
    old[136..148].fill(b' ');
    old[257..].get_mut(..8).expect("a header").fill(0);
    sign(&mut old);
    // Base 256: the last second before 1970.
    let mut negative = member(b'0', "negative", b"");
    negative[136..148].fill(0xff);
    sign(&mut negative);
    let mut nothing = member(b'0', "nothing", b"");
    nothing[124..136].fill(0);
    sign(&mut nothing);
    let dumpdir = member(b'D', "d/", b"Yfile\0Ddir\0\0");
    let plan = plan_of_members(&[
        old,
        negative,
        nothing,
        dumpdir,
        member(b'0', "d/file", b"x"),
    ]);
    let plan = plan.expect("a plan");
    assert_eq!(content(&plan, "old"), b"data");
    assert_eq!(content(&plan, "file"), b"x");
    for visit in plan.walk().expect("a tree") {
        let attributes = plan.attributes(visit.node);
        match &visit.name[..] {
            b"old" => assert_eq!((attributes.mode, attributes.uid), (0, 0)),
            b"negative" => assert_eq!(attributes.mtime.sec, -1),
            _ => {}
        }
    }
    for broken in [
        &b"9"[..],
        b"0000x",
        b"-1",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
    ] {
        let mut wrong = member(b'0', "wrong", b"");
        wrong[124..136].fill(0);
        wrong[124..124 + broken.len()].copy_from_slice(broken);
        sign(&mut wrong);
        let error = plan_of_members(&[wrong])
            .err()
            .expect("no number")
            .to_string();
        assert!(error.contains("a malformed size in a header"), "{error}");
    }
}

/// Every truncated or changed archive gives a plan or a one-line error.
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

/// Makes an OCI image layout of layers, which are shell commands run in a directory of each.
fn oci(dir: &Path, layers: &[&str]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    let put = |bytes: &[u8]| {
        let digest = hex::encode(Sha256::digest(bytes));
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
    let layout = OciLayout::open(dir.path()).expect("a layout");
    let plan = layout.tree(scratch).expect("a plan");
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
fn a_whiteout_hides_a_valid_name_or_is_refused() {
    let archive = |name: &str| {
        let members = [member(b'0', "kept", b""), member(b'0', name, b"")].concat();
        let mut file = scratch().expect("a file");
        file.write_all(&members).expect("written");
        file
    };
    let limit = pack::TreeLimit::none();
    for bad in [".wh.", ".wh..", ".wh...", "kept/.wh..."] {
        let alone = input::single_layer(archive(bad), &limit).map(drop);
        let layers = [Ok(input::Layer::Archive(archive(bad)))];
        let merged = input::merge_layers(layers, &limit).map(drop);
        for refused in [alone, merged] {
            let refused = refused.expect_err(bad).to_string();
            assert!(
                refused.contains("a whiteout of an invalid name"),
                "{refused}"
            );
        }
    }
    // AUFS's own names are neither whiteouts nor entries.
    for aufs in [".wh..wh.aufs", ".wh..wh.plnk"] {
        let alone = input::single_layer(archive(aufs), &limit).expect("a plan");
        assert_eq!(paths(&alone), ["kept"]);
    }
    let hidden = input::single_layer(archive(".wh.gone"), &limit).expect("a plan");
    assert_eq!(paths(&hidden), ["gone", "kept"]);
}

#[test]
fn a_tree_beyond_its_limit_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    oci(dir.path(), &["for at in $(seq 20); do echo > $at; done"]);
    let layer = fs::read_dir(dir.path().join("blobs/sha256")).expect("blobs");
    let layer = layer.map(|blob| blob.expect("a blob").path());
    let layer = layer.max_by_key(|blob| fs::metadata(blob).expect("a blob").len());
    let layer = layer.expect("a blob");
    let merge = |bytes: u64| {
        let archive = input::decompress(File::open(&layer)?, scratch, u64::MAX)?;
        let layers = [Ok(input::Layer::Archive(archive))];
        input::merge_layers(layers, &pack::TreeLimit::new(bytes)).map(|plan| paths(&plan).len())
    };
    assert_eq!(merge(21 * 600).expect("a plan"), 20);
    let error = merge(10 * 600).expect_err("beyond").to_string();
    assert!(error.contains("a tree of at most 6000 bytes"), "{error}");
}

#[test]
fn a_blob_with_another_digest_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    oci(dir.path(), &["echo 1 > a"]);
    for blob in fs::read_dir(dir.path().join("blobs/sha256")).expect("blobs") {
        let path = blob.expect("a blob").path();
        let before = fs::read(&path).expect("read");
        fs::write(&path, [&before[..], b" "].concat()).expect("written");
        let error = OciLayout::open(dir.path())
            .and_then(|layout| layout.tree(scratch))
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("digest mismatch"), "{error}");
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
