use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// Files of a host that has every feature.
const FILES: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.3-test"),
    (
        "proc/filesystems",
        "nodev\tproc\n\text4\n\terofs\nnodev\toverlay\n",
    ),
    ("proc/sys/user/max_user_namespaces", "1000"),
    ("proc/sys/kernel/unprivileged_userns_clone", "1"),
    ("proc/self/ns/user", ""),
    (
        "proc/sys/kernel/seccomp/actions_avail",
        "kill_process kill_thread trap errno user_notif trace log allow",
    ),
    (
        "lib/modules/6.12.3-test/modules.dep",
        "kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz\nkernel/fs/nfs/nfs.ko:\n",
    ),
    (
        "lib/modules/6.12.3-test/modules.builtin",
        "kernel/fs/fuse/virtiofs.ko\n",
    ),
    ("dev/fuse", ""),
    ("dev/kvm", ""),
    ("dev/vhost-vsock", ""),
];

const TOOLS: &[&Tool] = &[
    &Tool::DIOD,
    &Tool::GANESHA,
    &Tool::VIRTIOFSD,
    &Tool::QEMU_VIRTIOFSD,
    &Tool::EROFSFUSE,
    &Tool::SQUASHFUSE,
    &Tool::MKSQUASHFS,
    &Tool::MKFS_EROFS,
    &Tool::FIO,
    &Tool::BINDFS,
    &Tool::STRACE,
    &Tool::OPENSSL,
    &Tool::MOUNT_NFS,
    &Tool::FUSERMOUNT,
    &Tool::NBD_CLIENT,
    &Tool::QEMU,
    &Tool::GUEST_ROOT,
];

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("below")).expect("made");
    fs::write(path, text).expect("written");
}

/// A host that has every feature.
fn whole() -> (TempDir, Machine) {
    let root = tempfile::tempdir().expect("a directory");
    for (path, text) in FILES {
        put(root.path(), path, text);
    }
    for program in TOOLS.iter().flat_map(|tool| tool.programs) {
        put(root.path(), &format!("bin/{program}"), "");
    }
    let machine = Machine {
        root: root.path().into(),
        program_dirs: vec![root.path().join("bin")],
        is_root: true,
        capabilities: CapabilitySet::all(),
        landlock: Support::Signals,
        open_files: 1 << 20,
        loopback: Ok(()),
        directory: Ok(()),
    };
    (root, machine)
}

fn missing(machine: &Machine) -> Vec<&'static str> {
    let found = check(machine).findings.into_iter();
    let missing = found.filter(|finding| !finding.found);
    missing.map(|finding| finding.name).collect()
}

#[test]
fn a_machine_that_has_everything_misses_nothing() {
    let (_root, machine) = whole();
    let report = check(&machine);
    assert!(report.works);
    assert_eq!(missing(&machine), [""; 0]);
    assert!(
        report
            .findings
            .iter()
            .all(|finding| finding.bring.is_none())
    );
}

#[test]
fn each_file_that_is_missing_is_one_piece() {
    for (path, name) in [
        ("dev/fuse", "/dev/fuse"),
        ("dev/kvm", "/dev/kvm"),
        ("dev/vhost-vsock", "vsock"),
        ("proc/self/ns/user", "user namespaces"),
        ("lib/modules/6.12.3-test/modules.builtin", "virtiofs"),
        ("proc/sys/kernel/seccomp/actions_avail", "seccomp"),
    ] {
        let (root, machine) = whole();
        fs::remove_file(root.path().join(path)).expect("removed");
        assert_eq!(missing(&machine), [name], "{path}");
    }
    let (root, machine) = whole();
    fs::remove_file(root.path().join("lib/modules/6.12.3-test/modules.dep")).expect("removed");
    assert_eq!(missing(&machine), ["9p", "nfs"]);
}

#[test]
fn each_program_that_is_missing_is_one_piece_with_what_brings_it() {
    for tool in TOOLS.iter().filter(|tool| tool.name != "fusermount3") {
        for program in tool.programs {
            let (root, machine) = whole();
            fs::remove_file(root.path().join("bin").join(program)).expect("removed");
            assert_eq!(missing(&machine), [tool.name], "{program}");
            let report = check(&machine);
            let lost = report.findings.iter().find(|finding| !finding.found);
            let lost = lost.expect("one");
            assert_eq!(lost.bring.as_deref(), Some(tool.install_command));
            let named = lost.means.ends_with(&format!("({program} missing)"));
            assert_eq!(named, tool.programs.len() > 1, "{}", lost.means);
        }
    }
}

#[test]
fn what_the_kernel_says_counts() {
    for (path, text, names) in [
        (
            "proc/sys/kernel/osrelease",
            "6.11.9",
            &["EROFS on files", "9p", "nfs", "virtiofs"][..],
        ),
        (
            "proc/sys/kernel/osrelease",
            "6.8.12",
            &["passthrough", "EROFS on files", "9p", "nfs", "virtiofs"],
        ),
        (
            "proc/filesystems",
            "\text4\n",
            &["EROFS on files", "overlayfs"],
        ),
        (
            "proc/sys/user/max_user_namespaces",
            "0\n",
            &["user namespaces"],
        ),
        (
            "proc/sys/kernel/unprivileged_userns_clone",
            "0\n",
            &["user namespaces"],
        ),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            &["user namespaces"],
        ),
    ] {
        let (root, machine) = whole();
        put(root.path(), path, text);
        assert_eq!(missing(&machine), names, "{path}");
    }
}

#[test]
fn privileges_and_limits_are_each_one_piece() {
    let without = |capability| CapabilitySet::all() - capability;
    for (capability, name) in [
        (CapabilitySet::SETUID, "caller identity"),
        (CapabilitySet::DAC_READ_SEARCH, "file handles"),
        (CapabilitySet::NET_BIND_SERVICE, "low ports"),
        (CapabilitySet::SYS_ADMIN, "mount privilege"),
    ] {
        let (_root, mut machine) = whole();
        machine.capabilities = without(capability);
        assert_eq!(missing(&machine), [name]);
    }
    let (root, mut machine) = whole();
    machine.capabilities = without(CapabilitySet::NET_BIND_SERVICE);
    put(
        root.path(),
        "proc/sys/net/ipv4/ip_unprivileged_port_start",
        "0\n",
    );
    machine.open_files = 1024;
    assert_eq!(missing(&machine), ["open files"]);
}

#[test]
fn an_older_landlock_refuses_less() {
    for support in [Support::None, Support::Files, Support::Tcp] {
        let (_root, mut machine) = whole();
        machine.landlock = support;
        assert_eq!(missing(&machine), ["Landlock"], "{support:?}");
    }
}

#[test]
fn a_user_takes_fusermount3_to_mount_and_callers_are_that_user() {
    let (root, mut machine) = whole();
    machine.is_root = false;
    machine.capabilities = CapabilitySet::empty();
    let few = ["caller identity", "file handles", "low ports"];
    assert_eq!(missing(&machine), few);
    fs::remove_file(root.path().join("bin/fusermount3")).expect("removed");
    assert_eq!(missing(&machine), [&few[..], &["mount privilege"]].concat());
}

#[test]
fn without_a_directory_or_the_loopback_it_does_not_work() {
    for lost in ["loopback", "directories"] {
        let (_root, mut machine) = whole();
        let tried = match lost {
            "loopback" => &mut machine.loopback,
            _ => &mut machine.directory,
        };
        *tried = Err("no such thing".into());
        let report = check(&machine);
        assert!(!report.works);
        assert_eq!(missing(&machine), [lost]);
        assert!(
            report
                .findings
                .iter()
                .any(|finding| finding.means.ends_with("no such thing"))
        );
    }
}
