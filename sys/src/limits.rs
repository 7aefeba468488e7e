//! Limits of this process.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::mounts::{self, MountEntry};

/// Returns how many descriptors this process may have open now (the soft `RLIMIT_NOFILE`).
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of descriptors that virtiofsd requests (`--rlimit-nofile`).
const WANTED_DESCRIPTORS: u64 = 1_000_000;

/// Raises the limit of open descriptors, and returns the new one: a million or the system's maximum
/// (`fs.nr_open`) if the process has the privilege (`CAP_SYS_RESOURCE`), else the hard limit. A
/// refusal leaves it unchanged.
pub fn raise_descriptors() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let both = |limit| Rlimit {
        current: limit,
        maximum: limit,
    };
    let system = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let system = system.and_then(|most| most.trim().parse::<u64>().ok());
    let wanted = system.map_or(WANTED_DESCRIPTORS, |system| system.min(WANTED_DESCRIPTORS));
    let more = maximum.is_some_and(|maximum| maximum < wanted);
    // Refused by systems with a lower maximum, and by sandboxes; the resulting limit is returned.
    if !more || setrlimit(Resource::Nofile, both(Some(wanted))).is_err() {
        let _ = setrlimit(Resource::Nofile, both(maximum));
    }
    grow_descriptor_table();
    descriptors()
}

/// Enlarges the kernel's descriptor table now, while there is one thread. It doubles when it is
/// full, and in a multithreaded process the thread whose open exceeds it waits each time for an RCU
/// grace period (`expand_files` in the kernel's fs/file.c): some 10 ms.
fn grow_descriptor_table() {
    // 8 bytes each, enough for the caches of a busy server.
    const ROOM: u64 = 16 << 10;
    let last = descriptors().min(ROOM).saturating_sub(1);
    // A failure only costs time later.
    let _ = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), last as i32);
}

/// Limits the allocator to one heap per processor (mallopt(3), `M_ARENA_MAX`). Call it before
/// threads start.
///
/// glibc makes eight, and each keeps the memory that its threads freed: 300 connections that had
/// written 4 MiB at a time held 52 MiB with a limit of 32 MiB. Other C libraries have one heap.
pub fn limit_heaps() {
    #[cfg(target_env = "gnu")]
    {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = i32::try_from(processors).unwrap_or(i32::MAX);
        // SAFETY: it sets a parameter of the allocator, under the allocator's own lock. A refusal
        // changes nothing.
        #[allow(unsafe_code)]
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, heaps);
        }
    }
}

/// Lets the allocator return each large block to the system when it is freed (mallopt(3),
/// `M_MMAP_THRESHOLD`). Call it before threads start.
///
/// Once such a block is freed, glibc takes those of its size from heaps, up to 32 MiB: buffers of
/// messages between small blocks that outlive them held 10 MiB of a mount.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        /// Tables and buffers from this size on, in bytes.
        const LARGE: libc::c_int = 256 << 10;
        // SAFETY: it sets a parameter of the allocator, under the allocator's own lock. A refusal
        // changes nothing.
        #[allow(unsafe_code)]
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        }
    }
}

/// Returns the memory limit of this process in bytes, the lowest of its control group and those
/// above it; `None` if none is set. `memory.max` and `memory.high` of version 2,
/// `memory.limit_in_bytes` of version 1 (cgroups(7), the kernel's
/// `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`).
pub fn memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = mounts::read().ok()?;
    memory_limit_in(&groups, &mounts, &|file| std::fs::read_to_string(file).ok())
}

/// Does the same as [`memory`], given the contents of `/proc/self/cgroup` and the mount table, with
/// files read by `read`.
fn memory_limit_in(
    groups: &str,
    mounts: &[MountEntry],
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let mut least = None;
    for mount in mounts {
        let mut options = mount.super_options.split(',');
        let (files, controller): (&[&str], _) = match mount.kind.as_str() {
            "cgroup2" => (&["memory.max", "memory.high"], ""),
            "cgroup" if options.any(|option| option == "memory") => {
                (&["memory.limit_in_bytes"], "memory")
            }
            _ => continue,
        };
        // hierarchy:controllers:path
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = controllers.split(',').any(|name| name == controller);
            is_it.then_some(path)
        });
        let own = own.and_then(|path| Path::new(path).strip_prefix(&mount.root).ok());
        for group in own.into_iter().flat_map(Path::ancestors) {
            for file in files {
                let limit = read(&mount.target.join(group).join(file));
                let limit = limit.and_then(|limit| limit.trim().parse::<u64>().ok());
                // Version 1 represents no limit as the largest number of pages.
                if let Some(limit) = limit.filter(|&limit| limit < 1 << 62) {
                    least = Some(least.map_or(limit, |least: u64| least.min(limit)));
                }
            }
        }
    }
    least
}

/// Sets both limits of open descriptors. Returns `EPERM` without the privilege to raise the hard
/// one.
pub fn set_descriptors(limit: u64) -> io::Result<()> {
    let limit = Some(limit);
    let both = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, both)?;
    grow_descriptor_table();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_counts() {
        let groups = "4:memory:/a/b\n0::/u/v\n";
        let mounts = mounts::parse(
            b"\
            30 20 0:26 / /cg/memory rw,relatime - cgroup cgroup rw,memory\n\
            31 20 0:27 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            32 20 0:28 / /cg/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n",
        );
        let limit = |files: &[(&str, &str)]| {
            memory_limit_in(groups, &mounts, &|file| {
                let found = files.iter().find(|(name, _)| Path::new(name) == file);
                found.map(|(_, text)| format!("{text}\n"))
            })
        };
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[("/cg/unified/u/v/memory.max", "max")]), None);
        let unlimited = (
            "/cg/memory/a/b/memory.limit_in_bytes",
            "9223372036854771712",
        );
        assert_eq!(limit(&[unlimited]), None);
        let version_1 = ("/cg/memory/a/memory.limit_in_bytes", "5000");
        assert_eq!(limit(&[unlimited, version_1]), Some(5000));
        let version_2 = ("/cg/unified/u/v/memory.max", "4000");
        assert_eq!(limit(&[version_1, version_2]), Some(4000));
        let high = ("/cg/unified/u/memory.high", "3000");
        assert_eq!(limit(&[version_1, high, version_2]), Some(3000));
    }

    #[test]
    fn raising_never_lowers() {
        let before = descriptors();
        assert!(raise_descriptors() >= before);
        assert_eq!(raise_descriptors(), descriptors());
    }
}
