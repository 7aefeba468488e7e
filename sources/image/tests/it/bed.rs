//! Images made by mkfs.erofs, and mounts of them by the local kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use image::{ImageFs, Trust};
use tempfile::TempDir;

/// An image with its extra devices.
pub(crate) struct Bed {
    dir: TempDir,
    devices: Vec<PathBuf>,
}

impl Bed {
    /// Makes an image of `tree` with `options`. Returns the reason if mkfs.erofs (or the program
    /// named by `BARGE_MKFS_EROFS`) is missing or too old for an option. `BLOB` among the options
    /// stands for an extra device.
    pub(crate) fn make(options: &[&str], tree: &Path) -> Result<Bed, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let blob = dir.path().join("blob");
        let shown = blob.display().to_string();
        // Later versions of mkfs.erofs require the file to exist.
        if options.iter().any(|option| option.contains("BLOB")) {
            std::fs::write(&blob, b"").expect("written");
        }
        let mkfs = std::env::var_os("BARGE_MKFS_EROFS").unwrap_or("mkfs.erofs".into());
        let made = run(Command::new(mkfs)
            .args(options.iter().map(|option| option.replace("BLOB", &shown)))
            .arg(dir.path().join("image"))
            .arg(tree));
        if let Err(why) = made {
            let mut lines = why.lines().filter(|line| !line.contains("<W>"));
            let why = lines.next().unwrap_or_default().to_owned();
            let unknown = [
                "No such file",
                "invalid option",
                "unrecognized option",
                "not supported",
                "Cannot find",
                "invalid compress",
                "extended option",
            ];
            assert!(
                unknown.iter().any(|what| why.contains(what)),
                "{options:?}: {why}"
            );
            return Err(why);
        }
        let devices = match blob.exists() {
            true => vec![blob],
            false => Vec::new(),
        };
        Ok(Bed { dir, devices })
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Opens the image.
    pub(crate) fn open(&self) -> ImageFs {
        ImageFs::open(&self.image(), &self.devices, &Trust::Hashes).expect("an image")
    }

    /// Mounts the image with the local kernel, or returns why that is impossible.
    pub(crate) fn mount(&self) -> Result<Mounted, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let at = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut mounted = Mounted {
            at: Some(at),
            loops: Vec::new(),
        };
        let mut options = "ro".to_owned();
        for device in &self.devices {
            let name = output(
                Command::new("losetup")
                    .args(["--show", "-f", "-r"])
                    .arg(device),
            )?;
            options.push_str(&format!(",device={}", name.trim()));
            mounted.loops.push(name.trim().into());
        }
        let image = self.image();
        let name = output(
            Command::new("losetup")
                .args(["--show", "-f", "-r"])
                .arg(image),
        )?;
        mounted.loops.push(name.trim().into());
        run(Command::new("mount")
            .args(["-t", "erofs", "-o", &options, name.trim()])
            .arg(mounted.path()))?;
        Ok(mounted)
    }
}

/// A mounted image.
pub(crate) struct Mounted {
    at: Option<TempDir>,
    loops: Vec<PathBuf>,
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        self.at.as_ref().expect("it is mounted").path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(self.path()));
        for device in &self.loops {
            let _ = run(Command::new("losetup").arg("-d").arg(device));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
