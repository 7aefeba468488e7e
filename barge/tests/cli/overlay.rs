//! Writable images: `--overlay`, and the kernel's overlayfs with the same layers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::XattrFlags;
use rustix::process::geteuid;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// A script that makes the tree of the image. Later scripts change `a` and everything with the
/// prefix `gone`.
const TREE: &str = "
mkdir -p a b/in gone-dir/deep gone-link f/g stay/deep
for file in a/file a/keep a/gone a/again a/move b/append b/cut b/in/x gone-dir/x gone-dir/deep/y gone-link/z f/g/h stay/deep/s
do echo $file > $file; done
ln -s file a/link; chmod 1777 b; chmod 640 a/keep
touch -d '2001-02-03 04:05:06.789' a/keep stay/deep stay
chown 12:34 a/keep
";

/// Changes of all kinds, made by barge first.
const CHANGES: &str = "
echo changed > a/file; chmod 600 a/keep; rm a/gone; rm a/again; echo back > a/again
rm -r gone-dir; mkdir gone-dir; echo new > gone-dir/new
rm -r gone-link; ln -s nowhere gone-link
mv a/move b/moved; mv a/link a/other-link; ln a/file a/hard
mkdir -p new/deep; echo x > new/deep/f; mv new renamed
mkfifo pipe; mknod null c 1 3
echo more >> b/append; truncate -s 3 b/cut
mv f g
";

/// Further changes, made by the kernel.
const MORE: &str = "
rm -r renamed gone-dir; mkdir gone-dir; echo again > gone-dir/x
mv b/moved a/move; rm a/hard; echo more >> a/file; rm null; mkdir -p g/new; mv a/other-link a/link
";

fn shell(dir: &Path, script: &str) {
    let output = Command::new("sh")
        .args(["-ec", script])
        .current_dir(dir)
        .output();
    stdout_of(&output.expect("a shell"));
}

/// Lists all paths with their attributes and contents.
fn dump(dir: &Path) -> String {
    let find = "find . -mindepth 1 \\( -type d -printf '%P d %m %U %G\\n' \\) \
        -o -printf '%P %y %m %U %G %s %l %n\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    let output = Command::new("sh")
        .args(["-ec", find])
        .current_dir(dir)
        .output();
    stdout_of(&output.expect("a shell"))
}

/// A tree, an image of it, and a directory for changes.
struct Fixture {
    _dir: tempfile::TempDir,
    tree: PathBuf,
    image: PathBuf,
    over: PathBuf,
    at: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let [tree, over, at, image] =
            ["tree", "over", "at", "image"].map(|name| dir.path().join(name));
        for dir in [&tree, &over, &at] {
            fs::create_dir(dir).expect("made");
        }
        shell(&tree, TREE);
        let mut pack = Command::new(BARGE);
        stdout_of(
            &pack
                .args(["pack", "--quiet"])
                .args([&tree, &image])
                .output()
                .expect("runs"),
        );
        Fixture {
            _dir: dir,
            tree,
            image,
            over,
            at,
        }
    }

    fn mount(&self) -> Mounted {
        let [image, over] = [&self.image, &self.over].map(|path| path.display().to_string());
        Mounted::new(&["--overlay", &over, &image], &self.at)
    }
}

#[test]
fn the_kernel_has_the_same_of_what_was_changed() {
    if !may_mount() || !geteuid().is_root() {
        eprintln!("skipped: mounting by overlayfs takes user 0");
        return;
    }
    let bed = Fixture::new();
    let keep = |dir: &Path| {
        let stat = fs::metadata(dir.join("a/keep")).expect("there");
        (stat.modified().expect("a time"), stat.len())
    };
    let before = keep(&bed.tree);
    {
        let _mounted = bed.mount();
        assert_eq!(dump(&bed.at), dump(&bed.tree));
        shell(&bed.at, CHANGES);
        let value = rustix::fs::setxattr(bed.at.join("b/in/x"), "user.k", b"v", XattrFlags::CREATE);
        value.expect("set");
        shell(&bed.tree, CHANGES);
        assert_eq!(dump(&bed.at), dump(&bed.tree));
        assert_eq!(keep(&bed.at), before);
    }
    let below = bed.over.join("below");
    fs::create_dir(&below).expect("made");
    {
        let image = bed.image.display().to_string();
        let _lower = Mounted::new(&[&image], &below);
        let Some(_kernel) = Kernel::mount(&below, &bed.over, &bed.at) else {
            return;
        };
        assert_eq!(dump(&bed.at), dump(&bed.tree));
        let mut value = [0; 8];
        let got = rustix::fs::getxattr(bed.at.join("b/in/x"), "user.k", &mut value);
        assert_eq!(got, Ok(1));
        shell(&bed.at, MORE);
        shell(&bed.tree, MORE);
        assert_eq!(dump(&bed.at), dump(&bed.tree));
    }
    let _mounted = bed.mount();
    assert_eq!(dump(&bed.at), dump(&bed.tree));
}

/// A mount of the kernel's overlayfs.
struct Kernel<'a>(&'a Path);

impl Kernel<'_> {
    fn mount<'a>(below: &Path, over: &Path, at: &'a Path) -> Option<Kernel<'a>> {
        let (below, over) = (below.display(), over.display());
        let options = format!("lowerdir={below},upperdir={over}/upper,workdir={over}/work");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "none", "-o", &options])
            .arg(at);
        let mounted = mount.output().expect("mount(8)");
        match mounted.status.success() {
            true => Some(Kernel(at)),
            false => {
                let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
                // Any error but a missing overlayfs means that the kernel refuses the layers.
                assert!(why.contains("unknown filesystem type"), "{why}");
                eprintln!("skipped: the kernel has no overlayfs");
                None
            }
        }
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn file(dir: &Path) -> Output {
    Command::new("cat")
        .arg(dir.join("a/file"))
        .output()
        .expect("runs")
}

#[test]
fn what_clients_write_is_kept_beside_the_image() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: changing owners takes root");
    }
    let bed = Fixture::new();
    let [image, over] = [&bed.image, &bed.over].map(|path| path.display().to_string());
    let options = ["--overlay", &over, &image];
    for round in 0..2 {
        let served = ServerProcess::start(&options);
        let had = stdout_of(&served.barge(&["cat", "{}"], "a/file"));
        assert_eq!(had, ["a/file\n", "new\n"][round]);
        let new = bed.at.join("file");
        fs::write(&new, "new\n").expect("written");
        let new = new.display().to_string();
        stdout_of(&served.barge(&["cp", &new, "{}"], "a"));
        assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "a/file")), "new\n");
        let mut second = Command::new(BARGE);
        let second = second
            .args(["serve", "--9p", "tcp:127.0.0.1:0"])
            .args(options);
        let told = stderr_of(&second.output().expect("runs"));
        assert!(told.contains("another process uses it"), "{told}");
        assert!(served.stop().success());
    }
    let upper = bed.over.join("upper");
    assert_eq!(stdout_of(&file(&upper)), "new\n");
    let mut several = Command::new(BARGE);
    let several = several.args(["serve", "--overlay", &over, "a=/", "b=/tmp"]);
    let told = stderr_of(&several.output().expect("runs"));
    assert!(
        told.contains("--overlay: expected exactly one SOURCE"),
        "{told}"
    );
}
