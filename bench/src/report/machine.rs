//! The machine that was measured on.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(super) processor: String,
    pub(super) processors: usize,
    pub(super) memory_mib: u64,
    pub(super) system: String,
    pub(super) kernel: String,
    /// The load average over a minute at the start: work other than the bench's.
    pub(super) load: f64,
    /// Whether the virtual machine returns free memory to its host, so that each page costs
    /// microseconds again when it is used next.
    #[serde(default)]
    pub(super) gives_memory_back: bool,
    /// The least time in milliseconds before free memory is returned, if configured.
    #[serde(default)]
    pub(super) min_free_ms: u64,
    /// The installed Debian packages of peers and tools, with their versions.
    pub(super) packages: BTreeMap<String, String>,
}

/// The Debian packages of peers and tools.
const PACKAGES: [&str; 15] = [
    "bindfs",
    "btrfs-progs",
    "diod",
    "e2fsprogs",
    "erofs-utils",
    "erofsfuse",
    "fio",
    "nfs-ganesha",
    "nodejs",
    "openjdk-17-jdk-headless",
    "qemu-system-common",
    "qemu-system-x86",
    "squashfs-tools",
    "squashfuse",
    "xfsprogs",
];

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Machine {
        let file = |path| read_to_string(path).unwrap_or_default();
        let (processors, memory) = (file("/proc/cpuinfo"), file("/proc/meminfo"));
        let memory_kib = field(&memory, "MemTotal").split_whitespace().next();
        let load = file("/proc/loadavg");
        Machine {
            processor: field(&processors, "model name").into(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.and_then(|kib| kib.parse().ok()).unwrap_or(0_u64) >> 10,
            system: quoted(&file("/etc/os-release"), "PRETTY_NAME="),
            kernel: file("/proc/sys/kernel/osrelease").trim().into(),
            load: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            gives_memory_back: reports_free_pages(Path::new("/sys/bus/virtio/devices")),
            min_free_ms: file("/sys/module/page_reporting/parameters/min_free_ms")
                .trim()
                .parse()
                .unwrap_or(0),
            packages: packages(),
        }
    }

    /// Returns whether the machine had other work. A run occupies at most one processor, and a
    /// server another.
    pub(super) fn is_busy(&self) -> bool {
        self.load > 0.5
    }

    /// Formats the description on one line.
    pub(super) fn line(&self) -> String {
        let mut line = format!(
            "{}, {} processors, {} MiB of memory, Linux {}, {}",
            self.processor, self.processors, self.memory_mib, self.kernel, self.system
        );
        if self.is_busy() {
            line += &format!(
                "; busy with other work: load average {:.1} at the start",
                self.load
            );
        }
        match (self.gives_memory_back, self.min_free_ms) {
            (false, _) => {}
            (true, 0) => {
                line += "; free memory returns to its host, so figures that need fresh pages vary, such as those of files read cold";
            }
            (true, ms) => {
                line += &format!(
                    "; free memory returns to its host after {ms} ms (page_reporting.min_free_ms)"
                );
            }
        }
        line
    }
}

/// Returns whether one of these devices is a balloon that reports free pages (virtio 1.2, 5.5:
/// `VIRTIO_BALLOON_F_REPORTING`).
fn reports_free_pages(devices: &Path) -> bool {
    const BALLOON: &str = "0x0005";
    const REPORTING: usize = 5;
    let devices = read_dir(devices).into_iter().flatten().flatten();
    let mut paths = devices.map(|device| device.path());
    paths.any(|path| {
        let read = |name| read_to_string(path.join(name)).unwrap_or_default();
        read("device").trim() == BALLOON
            && read("features").as_bytes().get(REPORTING) == Some(&b'1')
    })
}

/// Returns the value of the first line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
        .next()
        .unwrap_or_default()
}

fn quoted(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap_or("Linux").trim_matches('"').into()
}

fn packages() -> BTreeMap<String, String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"]);
    let output = query.args(PACKAGES).output();
    // The query fails for packages that are not installed, but still lists the others.
    let text = output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let installed = text.lines().filter_map(|line| {
        let (name, version) = line.strip_prefix("installed ")?.split_once(' ')?;
        Some((name.to_owned(), version.to_owned()))
    });
    installed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balloon_that_reports_free_pages_is_found() {
        let devices = tempfile::tempdir().expect("a directory");
        let add = |name: &str, device: &str, features: &str| {
            let path = devices.path().join(name);
            std::fs::create_dir(&path).expect("made");
            std::fs::write(path.join("device"), device).expect("written");
            std::fs::write(path.join("features"), features).expect("written");
        };
        add("virtio0", "0x0002\n", "0111110000\n");
        add("virtio1", "0x0005\n", "0110001000\n");
        assert!(!reports_free_pages(devices.path()));
        add("virtio2", "0x0005\n", "0110010100\n");
        assert!(reports_free_pages(devices.path()));
        assert!(!reports_free_pages(&devices.path().join("none")));
    }

    #[test]
    fn fields_are_found() {
        assert_eq!(field("a\t: 1\nb : 2\nb : 3", "b"), "2");
        assert_eq!(field("", "b"), "");
        assert_eq!(quoted("ID=x\nNAME=\"A B\"\n", "NAME="), "A B");
    }

    #[test]
    fn this_machine_is_known() {
        let here = Machine::here();
        assert!(
            here.processors > 0 && here.memory_mib > 0,
            "{}",
            here.line()
        );
    }
}
