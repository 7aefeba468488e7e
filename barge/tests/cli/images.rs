//! Images as sources: paths into them, served over protocols, mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::geteuid;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// Returns the path of an image made by mkfs.erofs: `text`, `link`, `fifo`, and in `d` `file` and
/// `again`, which is `text`.
fn image(name: &str) -> PathBuf {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/erofs_image");
    seeds.join(name).canonicalize().expect("an image")
}

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

#[test]
fn what_was_packed_as_rofs_is_a_source_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir_all(path("tree/d")).expect("made");
    fs::write(path("tree/d/file"), "x".repeat(100_000)).expect("written");
    fs::write(path("tree/empty"), "").expect("written");
    std::os::unix::fs::symlink("d/file", path("tree/link")).expect("linked");
    let image = path("image");
    stdout_of(&barge(&[
        "pack",
        "--quiet",
        "--format",
        "rofs",
        &path("tree"),
        &image,
    ]));
    assert_eq!(
        stdout_of(&barge(&["ls", &format!("{image}/")])),
        "d\nempty\nlink\n"
    );
    stdout_of(&barge(&[
        "cp",
        "-r",
        &format!("image:{image}"),
        &path("copy"),
    ]));
    let copied = fs::read_to_string(path("copy/d/file")).expect("copied");
    assert!(copied == "x".repeat(100_000));
    let link = fs::read_link(path("copy/link")).expect("a link");
    assert_eq!(link, Path::new("d/file"));
    // Packing again from the image gives the same bytes.
    let again = path("again");
    stdout_of(&barge(&[
        "pack",
        "--quiet",
        "--format",
        "rofs",
        &format!("image:{image}"),
        &again,
    ]));
    assert!(fs::read(&again).expect("read") == fs::read(&image).expect("read"));
}

#[test]
fn a_path_may_lead_into_an_image() {
    let image = image("lz4");
    let file = image.display().to_string();
    for root in [
        format!("{file}/"),
        format!("image:{file}"),
        format!("image:{file}/"),
    ] {
        assert_eq!(stdout_of(&barge(&["ls", &root])), "d\nfifo\nlink\ntext\n");
    }
    for within in [format!("{file}/d/file"), format!("image:{file}/d/file")] {
        assert_eq!(stdout_of(&barge(&["cat", &within])), "hello");
    }
    // An image given as a file is a plain file.
    assert_eq!(
        barge(&["cat", &file]).stdout,
        fs::read(&image).expect("read")
    );
    let tree = stdout_of(&barge(&["tree", &format!("{file}/")]));
    assert!(
        tree.contains("link -> d/file") && tree.contains("again"),
        "{tree}"
    );
    let to = tempfile::tempdir().expect("a directory");
    let copy = to.path().join("copy").display().to_string();
    stdout_of(&barge(&["cp", "-r", &format!("{file}/d"), &copy]));
    assert_eq!(
        fs::read(to.path().join("copy/file")).expect("copied"),
        b"hello"
    );
    assert_eq!(
        fs::read(to.path().join("copy/again"))
            .expect("copied")
            .len(),
        1920
    );
}

#[test]
fn what_is_no_image_is_told_in_a_line() {
    let told = stderr_of(&barge(&["ls", "/etc/passwd/"]));
    assert!(told.contains("expected an EROFS or ROFS image"), "{told}");
    let within = format!("{}/d", image("flat").display());
    let told = stderr_of(&barge(&["serve", &within]));
    assert!(told.contains("expected a whole image"), "{told}");
}

#[test]
fn an_image_is_served() {
    let served = ServerProcess::start(&[&image("zstd").display().to_string()]);
    assert_eq!(
        stdout_of(&served.barge(&["ls", "{}"], "")),
        "d\nfifo\nlink\ntext\n"
    );
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "d/file")), "hello");
    let told = stderr_of(&served.barge(&["cp", "/etc/hostname", "{}"], "new"));
    assert!(told.contains("Read-only file system"), "{told}");
    assert!(served.stop().success());
}

#[test]
fn an_image_is_mounted_by_fuse_and_by_the_kernel() {
    if !may_mount() {
        return;
    }
    let file = image("lz4").display().to_string();
    for args in [
        &["--fuse", &file][..],
        &[&file],
        &[&file, "-o", "nosuid,nodev"],
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Mounted::new(args, dir.path());
        let root = geteuid().is_root();
        assert_eq!(fs::read(dir.path().join("d/file")).expect("read"), b"hello");
        let refused = fs::write(dir.path().join("new"), b"").map_err(|error| error.kind());
        assert_eq!(refused, Err(std::io::ErrorKind::ReadOnlyFilesystem));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let at = dir.path().display().to_string();
        let line = mounts
            .lines()
            .find(|line| line.contains(&at))
            .expect("mounted");
        eprintln!("{line}");
        if args.contains(&"--fuse") || !root {
            assert!(line.contains(" fuse"), "{line}");
        }
        drop(mounted);
        assert!(!dir.path().join("d").exists(), "it is taken away");
    }
}

#[test]
fn an_image_is_listed_without_a_slash() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let plain = image("flat").display().to_string();
    let listed = stdout_of(&barge(&["ls", &format!("{plain}/")]));
    assert_eq!(stdout_of(&barge(&["ls", &plain])), listed);
    let tree = stdout_of(&barge(&["tree", &plain]));
    assert!(
        tree.contains("── d\n") && !tree.contains("\n0 dir"),
        "{tree}"
    );
    // The plain file, and a file that is no image.
    let file = format!("dir:{plain}");
    assert_eq!(stdout_of(&barge(&["ls", &file])), format!("{file}\n"));
    fs::write(path("text"), "no image").expect("written");
    let text = path("text");
    assert_eq!(stdout_of(&barge(&["ls", &text])), format!("{text}\n"));
    // Commands for files use the image as a file.
    stdout_of(&barge(&["cp", &plain, &path("copy")]));
    let copied = fs::read(path("copy")).expect("copied");
    assert!(copied == fs::read(&plain).expect("read"));
    assert!(barge(&["cat", &plain]).stdout == copied);
}
