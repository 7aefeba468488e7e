//! `barge pack` and `barge check`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

fn barge(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(BARGE);
    command.args(args).current_dir(dir);
    command.env("SOURCE_DATE_EPOCH", "1700000000");
    command.output().expect("runs")
}

/// Makes a directory with a tree in it.
fn place() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub")).expect("made");
    fs::write(tree.join("sub/file"), "text ".repeat(10_000)).expect("written");
    fs::write(tree.join("small"), "small").expect("written");
    std::os::unix::fs::symlink("sub/file", tree.join("link")).expect("linked");
    dir
}

#[test]
fn a_tree_becomes_an_image_that_is_sound() {
    let dir = place();
    let dir = dir.path();
    for options in [
        &[][..],
        &["--compress", "lz4"],
        &["-c", "zstd", "--cluster-size", "1M"],
        &["--dedupe"],
        &["--chunksize", "4K"],
        &["--format", "rofs"],
    ] {
        stdout_of(&barge(dir, &[&["pack", "tree", "image"], options].concat()));
        stdout_of(&barge(dir, &["check", "image"]));
        // A truncated image.
        let mut bytes = fs::read(dir.join("image")).expect("read");
        bytes.truncate(bytes.len() - 5000);
        fs::write(dir.join("cut"), bytes).expect("written");
        let told = stderr_of(&barge(dir, &["check", "cut"]));
        assert!(told.starts_with("barge: cut: "), "{told}");
    }
    let told = stderr_of(&barge(dir, &["check", "tree/small"]));
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn the_image_does_not_depend_on_the_way_the_tree_comes() {
    let dir = place();
    let dir = dir.path();
    let image = |tree: &str, name: &str| {
        stdout_of(&barge(
            dir,
            &[
                "pack",
                tree,
                name,
                "--compress",
                "lz4",
                "--owner",
                "0",
                "--group",
                "0",
            ],
        ));
        fs::read(dir.join(name)).expect("read")
    };
    let first = image("tree", "first");
    assert!(image("image:first", "again") == first, "from an image");
    let served = ServerProcess::start(&[dir.join("tree").to_str().expect("text")]);
    let url = format!("9p://127.0.0.1:{}/", served.port());
    assert!(image(&url, "9p") == first, "from a server");
    stdout_of(
        &Command::new("tar")
            .args(["-czf", "archive", "-C", "tree", "."])
            .current_dir(dir)
            .output()
            .expect("runs"),
    );
    assert!(image("archive", "tar") == first, "from an archive");
    let piped = Command::new(BARGE)
        .args([
            "pack",
            "-",
            "-",
            "--compress",
            "lz4",
            "--owner",
            "0",
            "--group",
            "0",
        ])
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .stdin(Stdio::from(
            fs::File::open(dir.join("archive")).expect("opened"),
        ))
        .output()
        .expect("runs");
    assert!(
        piped.stdout == first,
        "from standard input to standard output"
    );
}

#[test]
fn what_makes_no_sense_is_one_line_and_leaves_no_image() {
    let dir = place();
    let dir = dir.path();
    for (args, status) in [
        (&["tree", "image", "--chunksize", "5000"][..], 2),
        (
            &["tree", "image", "--chunksize", "8K", "--compress", "lz4"],
            2,
        ),
        (&["tree", "image", "--level", "3"], 2),
        (&["tree", "image", "--compress", "lz4", "--level", "13"], 2),
        (&["tree", "image", "--cluster-size", "2M"], 2),
        (&["tree", "image", "--format", "rofs", "--dedupe"], 2),
        (&["ftp://x/y", "image"], 2),
        (&["none", "image"], 1),
        (&["tree/small", "image"], 1),
        (&["tree", "none/image"], 1),
    ] {
        let output = barge(dir, &[&["pack"], args].concat());
        assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
        let told = stderr_of(&output);
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let left: Vec<_> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["tree"]);
}

#[test]
fn rofs_says_what_it_has_no_place_for() {
    let dir = place();
    let output = barge(dir.path(), &["pack", "tree", "image", "--format", "rofs"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("omitted permissions, owners and times"),
        "{told}"
    );
    let output = barge(
        dir.path(),
        &["pack", "tree", "image", "--format", "rofs", "--quiet"],
    );
    assert!(output.stderr.is_empty());
}
