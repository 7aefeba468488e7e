//! Hashes, signatures and traces of images: packed, checked, served, mounted.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::mount::{Mounted, may_mount};
use crate::objects::server::Server;
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// A directory with a tree, and keys made by openssl: `k.pem`, `p.pem`, and `other.pem`, which
/// belongs to another signer.
struct Fixture(TempDir);

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).expect("made");
        for (at, name) in ["a", "b", "c", "sub/d"].iter().enumerate() {
            let line = format!("{at} is of {name}\n");
            fs::write(tree.join(name), line.repeat(20_000)).expect("written");
        }
        fs::write(tree.join("small"), "small").expect("written");
        let place = Fixture(dir);
        for (secret, public) in [("k.pem", "p.pem"), ("o.pem", "other.pem")] {
            place.run(
                "openssl",
                &["genpkey", "-algorithm", "ed25519", "-out", secret],
            );
            place.run(
                "openssl",
                &["pkey", "-in", secret, "-pubout", "-out", public],
            );
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        let output = command.args(args).current_dir(self.0.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(program == BARGE || output.status.success(), "{output:?}");
        output
    }

    fn barge(&self, args: &[&str]) -> Output {
        self.run(BARGE, args)
    }

    /// Packs the image `name` with these options.
    fn pack(&self, name: &str, options: &[&str]) {
        stdout_of(&self.barge(&[&["pack", "--quiet", "tree", name], options].concat()));
    }

    /// Flips a bit of a file.
    fn flip(&self, name: &str, bit: u64) {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(self.path(name));
        let file = file.expect("opened");
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).expect("read");
        byte[0] ^= 1 << (bit % 8);
        file.write_all_at(&byte, bit / 8).expect("written");
    }

    /// Returns the offset of a text in an image.
    fn offset_of(&self, image: &str, text: &str) -> u64 {
        let bytes = fs::read(self.path(image)).expect("read");
        let at = bytes
            .windows(text.len())
            .position(|bytes| bytes == text.as_bytes());
        at.expect("it is there") as u64
    }
}

#[test]
fn an_image_is_signed_and_checked() {
    let place = Fixture::new();
    place.pack("image", &["--sign", "k.pem"]);
    place.pack("again", &["--sign", "k.pem"]);
    let bytes = fs::read(place.path("image")).expect("read");
    assert!(
        bytes == fs::read(place.path("again")).expect("read"),
        "the same each time"
    );
    stdout_of(&place.barge(&["check", "image"]));
    stdout_of(&place.barge(&["check", "image", "--verify-key", "p.pem"]));
    stdout_of(&place.barge(&[
        "check",
        "image",
        "--verify-key",
        "other.pem",
        "--verify-key",
        "p.pem",
    ]));
    place.pack("unsigned", &[]);
    place.pack("plain", &["--no-hashes"]);
    place.pack("rofs", &["--format", "rofs"]);
    let key = ["--verify-key", "p.pem"];
    for (image, key, told) in [
        (
            "image",
            ["--verify-key", "other.pem"],
            "signed with another key",
        ),
        ("unsigned", key, "expected a signature, got none"),
        ("plain", key, "expected a signature, got none"),
        ("rofs", key, "expected a signature"),
        (
            "image",
            ["--verify-key", "k.pem"],
            "expected a public Ed25519 key",
        ),
    ] {
        let output = place.barge(&[&["check", image][..], &key].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = stderr_of(&output);
        assert!(line.contains(told) && line.lines().count() == 1, "{line}");
    }
    for options in [
        &["--sign", "p.pem"][..],
        &["--sign", "none"],
        &["--trace", "none"],
        &["--sign", "k.pem", "--no-hashes"],
        &["--sign", "k.pem", "--format", "rofs"],
    ] {
        let output = place.barge(&[&["pack", "tree", "none.image"], options].concat());
        assert!(
            !output.status.success() && !place.path("none.image").exists(),
            "{options:?}"
        );
    }
}

#[test]
fn any_flipped_bit_is_found_by_check() {
    let place = Fixture::new();
    for (options, step) in [(&["--sign", "k.pem"][..], 9973), (&["-c", "lz4"], 997)] {
        place.pack("image", options);
        let bits = fs::metadata(place.path("image")).expect("there").len() * 8;
        // A sample of all bits of header and superblock, then of the whole file.
        let few = (0..1160 * 8).step_by(97);
        for bit in few.chain((0..bits).step_by(step * 8 + 1)).chain([bits - 1]) {
            place.flip("image", bit);
            let output = place.barge(&["check", "image"]);
            assert_eq!(output.status.code(), Some(1), "bit {bit}");
            place.flip("image", bit);
        }
        stdout_of(&place.barge(&["check", "image"]));
    }
}

#[test]
fn what_was_changed_is_not_served_and_all_else_is() {
    let place = Fixture::new();
    place.pack("image", &["--sign", "k.pem"]);
    place.flip("image", place.offset_of("image", "1 is of b") * 8 + 80_000);
    let (image, key) = (place.text("image"), place.text("p.pem"));
    for args in [&[&image[..]][..], &[&image, "--verify-key", &key]] {
        let served = ServerProcess::start(args);
        for (name, at) in [("a", 0), ("c", 2), ("sub/d", 3)] {
            let want = format!("{at} is of {name}\n").repeat(20_000);
            assert!(
                stdout_of(&served.barge(&["cat", "{}"], name)) == want,
                "{name}"
            );
        }
        let told = stderr_of(&served.barge(&["cat", "{}"], "b"));
        assert!(told.contains("Input/output error"), "{told}");
        served.stop();
    }
    let told = stderr_of(&place.barge(&["cat", "image/b"]));
    assert!(told.contains("do not match their hashes"), "{told}");
}

#[test]
fn who_wants_a_signature_gets_nothing_without_one() {
    let place = Fixture::new();
    place.pack("signed", &["--sign", "k.pem"]);
    place.pack("unsigned", &[]);
    fs::create_dir(place.path("on")).expect("made");
    for (source, key, status, told) in [
        ("signed", "other.pem", 1, "signed with another key"),
        ("unsigned", "p.pem", 1, "expected a signature, got none"),
        ("tree", "p.pem", 2, "expected an image"),
        ("signed", "none.pem", 1, "No such file"),
    ] {
        for args in [
            &["serve", source, "--verify-key", key, "--9p", "unix:socket"][..],
            &["mount", "--foreground", source, "on", "--verify-key", key],
        ] {
            let output = place.barge(args);
            assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
            let line = stderr_of(&output);
            assert!(line.contains(told), "{args:?}: {line}");
        }
    }
    let disk = [
        "serve",
        "signed",
        "--verify-key",
        "p.pem",
        "--nbd",
        "unix:socket",
    ];
    assert_eq!(place.barge(&disk).status.code(), Some(2));
}

#[test]
fn an_object_is_served_only_if_it_is_signed() {
    let place = Fixture::new();
    place.pack("image", &["--sign", "k.pem"]);
    fs::create_dir(place.path("on")).expect("made");
    let server = Server::new(fs::read(place.path("image")).expect("read"));
    let url = server.url();
    let served = ServerProcess::start(&[&url, "--verify-key", &place.text("p.pem")]);
    let text = stdout_of(&served.barge(&["cat", "{}"], "sub/d"));
    assert!(text == "3 is of sub/d\n".repeat(20_000));
    served.stop();
    let key = ["--verify-key", "other.pem"];
    for args in [
        &["serve", &url, "--9p", "unix:socket"][..],
        &["mount", "--foreground", &url, "on"],
    ] {
        let output = place.barge(&[args, &key].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let line = stderr_of(&output);
        assert!(line.contains("signed with another key"), "{line}");
    }
}

#[test]
fn a_mount_with_a_key_is_verified() {
    if !may_mount() {
        return;
    }
    let place = Fixture::new();
    place.pack("image", &["-c", "lz4", "--sign", "k.pem"]);
    let (image, key) = (place.text("image"), place.text("p.pem"));
    let on = tempfile::tempdir().expect("a directory");
    let mounted = Mounted::new(&[&image, "--fuse", "--verify-key", &key], on.path());
    let text = fs::read_to_string(on.path().join("sub/d")).expect("read");
    assert!(text == "3 is of sub/d\n".repeat(20_000));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let at = on.path().display().to_string();
    let line = mounts.lines().find(|line| line.contains(&at));
    assert!(
        line.expect("mounted").contains(" fuse"),
        "the kernel's own would not verify"
    );
    drop(mounted);
}

#[test]
fn others_read_it_as_before() {
    let place = Fixture::new();
    place.pack("image", &["--sign", "k.pem"]);
    match Command::new("fsck.erofs").arg(place.path("image")).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => println!("skipped: fsck.erofs: {error}"),
    }
    if !geteuid().is_root() {
        return println!("skipped: only root mounts");
    }
    let on = tempfile::tempdir().expect("a directory");
    let image = place.text("image");
    place.run(
        "mount",
        &[
            "-t",
            "erofs",
            "-o",
            "ro,loop",
            &image,
            &on.path().display().to_string(),
        ],
    );
    let same = Command::new("diff")
        .arg("-r")
        .args([&place.path("tree"), on.path()])
        .output();
    place.run("umount", &[&on.path().display().to_string()]);
    let same = same.expect("runs");
    assert!(same.status.success(), "{same:?}");
}

#[test]
fn what_was_read_first_lies_first() {
    let place = Fixture::new();
    place.pack("image", &[]);
    let (tree, image) = (place.text("tree"), place.text("image"));
    let order = |image: &str| {
        [
            "0 is of a\n",
            "1 is of b\n",
            "2 is of c\n",
            "3 is of sub/d\n",
        ]
        .map(|text| place.offset_of(image, text))
    };
    let [a, b, c, d] = order("image");
    assert!(a < b && b < c && c < d, "in the order of the tree");
    // For an image and for a directory.
    for source in [&image, &tree] {
        let trace = place.text("trace");
        let served = ServerProcess::start(&[source, "--record-trace", &trace]);
        for name in ["sub/d", "b", "small"] {
            stdout_of(&served.barge(&["cat", "{}"], name));
        }
        assert!(served.stop().success());
        let lines = fs::read_to_string(&trace).expect("a trace");
        let first = |text: &str| {
            lines
                .lines()
                .position(|line| line.starts_with("0 ") && line.ends_with(text))
        };
        assert!(
            first(" sub/d") < first(" b") && first(" b").is_some(),
            "{lines}"
        );
        assert!(!lines.contains(" c\n"), "{lines}");
        place.pack("ordered", &["--trace", &trace, "--sign", "k.pem"]);
        let [a, b, c, d] = order("ordered");
        assert!(d < b && b < a && a < c, "{d} {b} {a} {c}");
        stdout_of(&place.barge(&["check", "ordered", "--verify-key", "p.pem"]));
        // The read-ahead list has these two files and metadata: few large ranges.
        let head = fs::read(place.path("ordered")).expect("read");
        let ranges = u32::from_le_bytes(head[12..16].try_into().expect("four bytes"));
        assert!((1..=3).contains(&ranges), "{ranges}");
        let served = ServerProcess::start(&[&place.text("ordered")]);
        assert!(stdout_of(&served.barge(&["cat", "{}"], "b")) == "1 is of b\n".repeat(20_000));
        served.stop();
    }
    fs::write(place.path("bad"), "1 2\n").expect("written");
    let told = stderr_of(&place.barge(&["pack", "tree", "none", "--trace", "bad"]));
    assert!(
        told.contains("bad: line 1: expected OFFSET LENGTH PATH"),
        "{told}"
    );
    let two = ["serve", "a=tree", "b=tree", "--record-trace", "t"];
    assert_eq!(place.barge(&two).status.code(), Some(2));
}

#[test]
fn a_mount_is_recorded() {
    if !may_mount() {
        return;
    }
    let place = Fixture::new();
    place.pack("image", &[]);
    let (image, trace) = (place.text("image"), place.text("trace"));
    let on = tempfile::tempdir().expect("a directory");
    let mounted = Mounted::new(&[&image, "--record-trace", &trace], on.path());
    fs::read(on.path().join("c")).expect("read");
    drop(mounted);
    let lines = fs::read_to_string(Path::new(&trace)).expect("a trace");
    assert!(lines.contains(" c\n") && !lines.contains(" b\n"), "{lines}");
}
