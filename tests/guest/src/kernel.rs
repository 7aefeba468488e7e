//! Guest kernels: Debian's images, fetched once and cached, and the choice of one that starts here.
//!
//! A cached kernel is a directory with the kernel, a flat `modules/` of decompressed modules, and
//! `modules.dep`. That of user-mode Linux also has the C library of its suite. The private apt
//! state is next to it, so the configuration of the machine's apt is read (for the mirror), but not
//! written. A filled cache needs no network.
//!
//! Not supported: architectures other than amd64, distributions other than Debian.
//! Lock order: one file lock, `CACHE/lock`, held while a kernel is looked up or made; before it the
//! mutex of trial boots.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use vfs_testkit::{copy_program, write_program};

use crate::config::Needs;
use crate::machine::{self, Machine};
use crate::modules::{self, Dependencies};
use crate::{Unavailable, command_output};

/// A supported kernel line, with the Debian suites that have it.
pub struct Line {
    /// A version prefix, or the name of the suite if its version changes.
    pub name: &'static str,
    /// The suite with the image for QEMU.
    qemu: Option<&'static str>,
    /// The suite with user-mode Linux.
    user_mode: Option<&'static str>,
    /// Whether user-mode Linux has virtiofs. The vhost-user front ends of 6.1 and 6.12 fail:
    /// "vu_find_vqs failed with error -22" and "genirq: Flags mismatch irq 0".
    has_virtiofs: bool,
}

/// The supported kernel lines, the oldest first. That of sid is 7.2 or later: the first that starts
/// in user-mode Linux on a processor with AMX.
pub const LINES: &[Line] = &[
    Line {
        name: "6.1",
        qemu: Some("bookworm"),
        user_mode: Some("bookworm"),
        has_virtiofs: false,
    },
    Line {
        name: "6.12",
        qemu: Some("bookworm-backports"),
        user_mode: Some("trixie"),
        has_virtiofs: false,
    },
    Line {
        name: "sid",
        qemu: None,
        user_mode: Some("sid"),
        has_virtiofs: true,
    },
];

/// The name for the newest line that starts in user-mode Linux, and otherwise 6.12.
pub const NEWEST: &str = "newest";

/// The newest line for QEMU, and the oldest that [`NEWEST`] may be.
const QEMU_LINE: &str = "6.12";

/// Modules that a guest may load; only these, those of its machine and their dependencies are kept
/// of the package.
const MODULES: &[&str] = &[
    "9p",
    "9pnet_fd",
    "crc32c_generic",
    "erofs",
    "ext4",
    "fuse",
    "gcm",
    "ghash_generic",
    "nbd",
    "nfsv3",
    "nfsv4",
    "overlay",
    "tls",
];

/// Modules of devices that a guest may have in QEMU, besides those that every machine has.
const DEVICE_MODULES: &[&str] = &[
    "quota_v2",
    "virtio_blk",
    "vmw_vsock_virtio_transport",
    "vsock_loopback",
];

/// Modules of user-mode Linux, besides those that every machine has.
const USER_MODE_MODULES: &[&str] = &["loop", "nfsd", "virtiofs"];

/// Modules that newer kernels have built into their library without naming them.
const LIBRARY_MODULES: &[&str] = &["crc32c_generic", "ghash_generic"];

/// A kernel ready to boot.
pub struct Kernel {
    /// Its line, such as `6.12`.
    pub line: String,
    /// The directory in the cache.
    dir: PathBuf,
    deps: Dependencies,
}

impl Kernel {
    /// Returns the kernel of a line, from the cache or else from the machine's Debian mirror (or
    /// `mirror`).
    pub fn get(cache: &Path, line: &str, machine: &Machine, mirror: Option<&str>) -> Result<Self> {
        let suite = Line::named(line)?.suite(machine)?;
        let _lock = lock(cache)?;

        let dir = cache.join(format!("{}-{line}", machine.name()));
        let wanted: Vec<&str> = match machine {
            Machine::Qemu(_) => [MODULES, DEVICE_MODULES, machine.modules()].concat(),
            Machine::UserMode => [MODULES, USER_MODE_MODULES].concat(),
        };
        // The stamp holds the list of modules, so that another list invalidates the cache.
        let stamp = wanted.join(" ");
        if fs::read_to_string(dir.join("stamp")).ok().as_deref() != Some(&stamp) {
            let fresh = dir.with_extension("new");
            fs::remove_dir_all(&fresh).or_else(ignore_not_found)?;
            fs::create_dir_all(fresh.join("modules"))?;
            let tree = match machine {
                Machine::Qemu(_) => {
                    let apt = Apt::new(cache, suite, mirror)?;
                    let tree = apt.unpack(&[&apt.kernel_package(line)?])?;
                    copy_image(&tree, &fresh)?;
                    tree
                }
                Machine::UserMode => {
                    let apt = Apt::new(cache, suite, mirror)?;
                    let tree = apt.unpack(&["user-mode-linux", "libc6"])?;
                    copy_uml_program(&tree, &fresh)?;
                    tree
                }
            };
            copy_modules(&tree, &wanted, &fresh)?;
            fs::remove_dir_all(tree)?;
            fs::write(fresh.join("stamp"), stamp)?;
            fs::remove_dir_all(&dir).or_else(ignore_not_found)?;
            fs::rename(&fresh, &dir)?;
        }
        let deps = Dependencies::parse(&fs::read_to_string(dir.join("modules.dep"))?)?;
        Ok(Self {
            line: line.into(),
            dir,
            deps,
        })
    }

    /// Returns the kernel: the image for QEMU's `-kernel`, or the program of user-mode Linux.
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Returns the modules to load for `wanted`, in loading order, each with its bytes, without
    /// built-in ones.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let order = self
            .deps
            .order(wanted)
            .with_context(|| format!("kernel {}", self.line))?;
        order
            .into_iter()
            .map(|name| {
                Ok((
                    name.clone(),
                    fs::read(self.dir.join("modules").join(format!("{name}.ko")))?,
                ))
            })
            .collect()
    }
}

impl Line {
    /// Returns the line with this name.
    fn named(name: &str) -> Result<&'static Self> {
        let found = LINES.iter().find(|line| line.name == name);
        found.with_context(|| {
            let known: Vec<_> = LINES.iter().map(|line| line.name).collect();
            format!(
                "no kernel {name:?}: expected one of {}, {NEWEST}",
                known.join(", ")
            )
        })
    }

    /// Returns the suite that has the kernel for a machine.
    fn suite(&self, machine: &Machine) -> Result<&'static str> {
        let suite = match machine {
            Machine::Qemu(_) => self.qemu,
            Machine::UserMode => self.user_mode,
        };
        suite.with_context(|| format!("no kernel {} for {}", self.name, machine.name()))
    }

    /// Returns whether there is a kernel of this line for a machine.
    pub fn is_for(&self, machine: &Machine) -> bool {
        self.suite(machine).is_ok()
    }
}

/// Returns the machine and the kernel line for a guest: user-mode Linux if it can run here, has the
/// devices of the guest and starts a kernel that is wanted (a line, or [`NEWEST`]), and otherwise
/// QEMU. If a `machine` is given, it is that.
pub fn choose(
    cache: &Path,
    wanted: &str,
    needs: Needs,
    machine: Option<&Machine>,
    mirror: Option<&str>,
) -> Result<(Machine, &'static str)> {
    choose_with(wanted, needs, machine, |line| {
        Machine::UserMode.check()?;
        try_boot(cache, line, mirror)
    })
}

/// Does what [`choose`] does, with a function that returns the reason if a line does not start in
/// user-mode Linux.
fn choose_with(
    wanted: &str,
    needs: Needs,
    machine: Option<&Machine>,
    start: impl Fn(&'static str) -> Result<()>,
) -> Result<(Machine, &'static str)> {
    let user_mode = Machine::UserMode;
    // The newest first.
    let mut lines: Vec<&Line> = match wanted {
        NEWEST => LINES
            .iter()
            .skip_while(|line| line.name != QEMU_LINE)
            .collect(),
        name => vec![Line::named(name)?],
    };
    lines.reverse();
    let has = |line: &&&Line| match needs {
        Needs::Nothing | Needs::Network => line.is_for(&user_mode),
        Needs::Virtiofs => line.is_for(&user_mode) && line.has_virtiofs,
        Needs::Qemu => false,
    };
    let mut why = None;
    if !matches!(machine, Some(Machine::Qemu(_))) {
        for line in lines.iter().filter(has) {
            match start(line.name) {
                Ok(()) => return Ok((user_mode, line.name)),
                Err(error) => {
                    eprintln!("barge-guest: not on user-mode Linux: {error:#}");
                    why = Some(error);
                }
            }
        }
    }
    let needs_user_mode = needs == Needs::Network || machine == Some(&user_mode);
    let machine = match (machine, why) {
        (_, Some(why)) if needs_user_mode => return Err(why),
        (Some(machine), _) => machine.clone(),
        (None, _) => Machine::qemu(),
    };
    let line = lines.iter().find(|line| line.is_for(&machine));
    let none = || Unavailable(format!("no kernel {wanted} for {}", machine.name()));
    Ok((machine.clone(), line.ok_or_else(none)?.name))
}

/// Returns the reason if a line does not start in user-mode Linux on this processor, after a trial
/// boot, one for each line and process: on a processor with AMX, 6.1 and 6.12 end before init
/// ("ptrace set fp regs failed").
fn try_boot(cache: &Path, line: &'static str, mirror: Option<&str>) -> Result<()> {
    static TRIALS: Mutex<BTreeMap<&str, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut trials = TRIALS.lock();
    let result = trials.entry(line).or_insert_with(|| {
        let boot = || {
            let kernel = Kernel::get(cache, line, &Machine::UserMode, mirror)?;
            machine::try_user_mode(&kernel.image(), &busybox(cache, mirror)?)
        };
        boot().map_err(|error: anyhow::Error| format!("kernel {line}: {error:#}"))
    });
    result.clone().map_err(|why| Unavailable(why).into())
}

/// Returns a static busybox: the machine's own, or Debian's.
pub fn busybox(cache: &Path, mirror: Option<&str>) -> Result<Vec<u8>> {
    // A dynamic executable contains the interpreter's path near its beginning.
    let is_static = |bytes: &[u8]| {
        !bytes[..bytes.len().min(4096)]
            .windows(8)
            .any(|window| window == b"ld-linux")
    };
    for path in ["/usr/bin/busybox", "/bin/busybox"]
        .map(PathBuf::from)
        .into_iter()
        .chain([cache.join("busybox")])
    {
        match fs::read(path) {
            Ok(bytes) if is_static(&bytes) => return Ok(bytes),
            _ => continue,
        }
    }
    let _lock = lock(cache)?;
    let suite = LINES[0].suite(&Machine::qemu())?;
    let tree = Apt::new(cache, suite, mirror)?.unpack(&["busybox-static"])?;
    let bytes = fs::read(tree.join("bin/busybox"))?;
    fs::remove_dir_all(tree)?;
    fs::write(cache.join("busybox.new"), &bytes)?;
    fs::rename(cache.join("busybox.new"), cache.join("busybox"))?;
    Ok(bytes)
}

/// Locks the cache until the lock is dropped.
pub(crate) fn lock(cache: &Path) -> Result<fs::File> {
    fs::create_dir_all(cache)?;
    let lock = fs::File::create(cache.join("lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// The name of the kernel in its directory.
const IMAGE: &str = "linux";

/// Copies the image of an unpacked package.
fn copy_image(tree: &Path, to: &Path) -> Result<()> {
    let image = fs::read_dir(tree.join("boot"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .context("the kernel package has no boot/vmlinuz-*")?;
    fs::copy(image, to.join(IMAGE))?;
    Ok(())
}

/// Copies user-mode Linux of an unpacked package, with the C library of its suite: the host's may
/// be older. The program names its loader relative to its own directory, in which it has to be
/// started.
fn copy_uml_program(tree: &Path, to: &Path) -> Result<()> {
    const LOADER: &str = "ld-linux-x86-64.so.2";
    let mut program = fs::read(tree.join("usr/bin/linux.uml"))?;
    let found = format!("/lib64/{LOADER}\0");
    let at = program
        .windows(found.len())
        .position(|bytes| bytes == found.as_bytes())
        .context("user-mode Linux names no loader")?;
    let mut name = format!("./{LOADER}").into_bytes();
    name.resize(found.len(), 0);
    program[at..at + found.len()].copy_from_slice(&name);
    let path = to.join(IMAGE);
    write_program(&path, program);
    for file in [LOADER, "libc.so.6"] {
        let dirs = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let library = dirs.map(|dir| tree.join(dir).join(file));
        let library = library.iter().find(|library| library.exists());
        let library = library.with_context(|| format!("libc6 has no {file}"))?;
        copy_program(library, to.join(file));
    }
    Ok(())
}

/// Copies the wanted modules of an unpacked package, and those that they depend on.
fn copy_modules(tree: &Path, wanted: &[&str], to: &Path) -> Result<()> {
    let release = ["lib/modules", "usr/lib/modules", "usr/lib/uml/modules"]
        .iter()
        .find_map(|dir| Some(fs::read_dir(tree.join(dir)).ok()?.next()?.ok()?.path()))
        .context("the kernel package has no lib/modules/*")?;
    let mut files = BTreeMap::new();
    collect_modules(&release.join("kernel"), &mut files)?;
    let builtin: Vec<_> = fs::read_to_string(release.join("modules.builtin"))?
        .lines()
        .map(modules::name_of)
        .collect();

    let mut dep = String::new();
    for name in &builtin {
        dep += &format!("{name} builtin\n");
    }
    let mut queue: Vec<String> = wanted.iter().map(|name| (*name).into()).collect();
    let mut done: Vec<String> = builtin;
    while let Some(name) = queue.pop() {
        if done.contains(&name) {
            continue;
        }
        let Some(path) = files.get(&name) else {
            let is_library = LIBRARY_MODULES.contains(&name.as_str());
            ensure!(is_library, "the kernel package lacks module {name}");
            dep += &format!("{name} builtin\n");
            continue;
        };
        let bytes = read_module(path)?;
        let needs = modules::depends(&bytes);
        dep += &format!("{name}: {}\n", needs.join(" "));
        fs::write(to.join("modules").join(format!("{name}.ko")), bytes)?;
        queue.extend(needs);
        done.push(name);
    }
    fs::write(to.join("modules.dep"), dep)?;
    Ok(())
}

fn collect_modules(dir: &Path, into: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect_modules(&entry.path(), into)?;
        } else if entry.file_name().to_string_lossy().contains(".ko") {
            into.insert(
                modules::name_of(&entry.file_name().to_string_lossy()),
                entry.path(),
            );
        }
    }
    Ok(())
}

fn read_module(module: &Path) -> Result<Vec<u8>> {
    let program = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(fs::read(module)?),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(module)
        .output()
        .with_context(|| format!("{program} for a kernel module"))?;
    ensure!(
        output.status.success(),
        "{program} -dc {}: {}",
        module.display(),
        output.status
    );
    Ok(output.stdout)
}

fn ignore_not_found(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

/// An apt with a private state directory.
pub(crate) struct Apt {
    state: PathBuf,
}

impl Apt {
    pub(crate) fn new(cache: &Path, suite: &str, mirror: Option<&str>) -> Result<Self> {
        let mirror = match mirror {
            Some(mirror) => mirror.into(),
            None => system_mirror()?,
        };
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        ensure!(
            Path::new(keyring).exists(),
            Unavailable(format!("no {keyring} to check Debian's packages with"))
        );
        let state = cache.join("apt");
        for dir in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(dir))?;
        }
        fs::write(state.join("status"), "")?;
        let base = suite.strip_suffix("-backports").unwrap_or(suite);
        let suites = if base == suite {
            base.to_owned()
        } else {
            format!("{base} {suite}")
        };
        fs::write(
            state.join("debian.sources"),
            format!(
                "Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main\nArchitectures: amd64\nSigned-By: {keyring}\n"
            ),
        )?;
        let apt = Self { state };
        // The caller holds the cache's lock, so no other process writes these lists.
        command_output(apt.command("apt-get").args(["-qq", "update"]))
            .map_err(|error| Unavailable(format!("no Debian kernel to be had: {error:#}")))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let state = self.state.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::State={state}"),
            format!("Dir::State::lists={state}/lists"),
            format!("Dir::State::status={state}/status"),
            format!("Dir::Cache={state}/cache"),
            format!("Dir::Etc::sourcelist={state}/debian.sources"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            // Otherwise an update that fetches nothing succeeds.
            "APT::Update::Error-Mode=any".into(),
            // Downloads as root, since apt's own user cannot access the directory.
            "APT::Sandbox::User=root".into(),
        ] {
            command.arg("-o").arg(option);
        }
        command.current_dir(&self.state);
        command
    }

    /// Returns the image package that the newest `linux-image-amd64` of a line depends on.
    fn kernel_package(&self, line: &str) -> Result<String> {
        let show = command_output(
            self.command("apt-cache")
                .args(["show", "linux-image-amd64"]),
        )?;
        depends_of(&show, line)
            .with_context(|| format!("the mirror has no linux-image-amd64 of version {line}"))
    }

    /// Downloads packages and unpacks them into a directory, which the caller removes.
    pub(crate) fn unpack(&self, packages: &[&str]) -> Result<PathBuf> {
        let tree = self.state.join("tree");
        fs::remove_dir_all(&tree).or_else(ignore_not_found)?;
        command_output(
            self.command("apt-get")
                .args(["-qq", "download"])
                .args(packages),
        )?;
        for entry in fs::read_dir(&self.state)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                command_output(Command::new("dpkg-deb").arg("-x").args([&path, &tree]))?;
                fs::remove_file(path)?;
            }
        }
        Ok(tree)
    }
}

/// Returns the URI of the machine's Debian archive.
fn system_mirror() -> Result<String> {
    let targets = command_output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))
    .map_err(|error| Unavailable(format!("no apt to fetch a Debian kernel with: {error:#}")))?;
    let mirror = targets
        .lines()
        .find(|uri| uri.contains("/debian") && !uri.contains("security"));
    Ok(mirror
        .ok_or_else(|| Unavailable("apt has no Debian mirror; name one with --mirror".into()))?
        .to_owned())
}

/// Returns the first dependency of the stanza with a version of this line, in the output of
/// `apt-cache show`.
fn depends_of(show: &str, line: &str) -> Option<String> {
    let field = |stanza: &str, name: &str| {
        stanza
            .lines()
            .find_map(|row| Some(row.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
    };
    show.split("\n\n")
        .find(|stanza| {
            field(stanza, "Version").is_some_and(|version| version.starts_with(&format!("{line}.")))
        })
        .and_then(|stanza| {
            Some(
                field(stanza, "Depends")?
                    .split_whitespace()
                    .next()?
                    .to_owned(),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the choice if these lines start in user-mode Linux.
    fn choice(wanted: &str, needs: Needs, starting: &[&str]) -> Option<(Machine, &'static str)> {
        let start = |line: &'static str| {
            ensure!(
                starting.contains(&line),
                Unavailable(format!("{line} does not start"))
            );
            Ok(())
        };
        let chosen = choose_with(wanted, needs, None, start);
        chosen
            .inspect_err(|error| assert!(error.is::<Unavailable>(), "{error:#}"))
            .ok()
    }

    /// On a processor with AMX, 6.1 and 6.12 end before init.
    #[test]
    fn a_kernel_that_does_not_start_in_user_mode_gives_way_to_qemu() {
        let user_mode = |line| Some((Machine::UserMode, line));
        let qemu = |line| Some((Machine::qemu(), line));
        let (all, amx) = (&["6.1", "6.12", "sid"][..], &["sid"][..]);
        for (wanted, needs, starting, expected) in [
            (NEWEST, Needs::Nothing, all, user_mode("sid")),
            (NEWEST, Needs::Nothing, amx, user_mode("sid")),
            (NEWEST, Needs::Nothing, &["6.1", "6.12"], user_mode("6.12")),
            (NEWEST, Needs::Nothing, &["6.1"], qemu("6.12")),
            (NEWEST, Needs::Virtiofs, all, user_mode("sid")),
            (NEWEST, Needs::Virtiofs, &["6.12"], qemu("6.12")),
            (NEWEST, Needs::Network, &["6.12"], user_mode("6.12")),
            (NEWEST, Needs::Network, &[], None),
            (NEWEST, Needs::Qemu, all, qemu("6.12")),
            ("6.12", Needs::Nothing, all, user_mode("6.12")),
            ("6.12", Needs::Nothing, amx, qemu("6.12")),
            ("6.1", Needs::Nothing, amx, qemu("6.1")),
            ("6.12", Needs::Virtiofs, all, qemu("6.12")),
            ("sid", Needs::Qemu, all, None),
            ("sid", Needs::Nothing, &[], None),
        ] {
            let chosen = choice(wanted, needs, starting);
            assert_eq!(chosen, expected, "{wanted} {needs:?} {starting:?}");
        }
        assert!(choose_with("7.9", Needs::Nothing, None, |_| Ok(())).is_err());
    }

    #[test]
    fn the_package_of_a_line_is_the_dependency_of_the_metapackage() {
        let show = "Package: linux-image-amd64\nVersion: 6.12.95-1\nDepends: linux-image-6.12.95-amd64 (= 6.12.95-1)\n\n\
                    Package: linux-image-amd64\nVersion: 6.1.176-1\nDepends: linux-image-6.1.0-50-amd64 (= 6.1.176-1)\n";
        assert_eq!(
            depends_of(show, "6.1").as_deref(),
            Some("linux-image-6.1.0-50-amd64")
        );
        assert_eq!(
            depends_of(show, "6.12").as_deref(),
            Some("linux-image-6.12.95-amd64")
        );
        assert_eq!(depends_of(show, "6.9"), None);
    }
}
