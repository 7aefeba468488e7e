//! The features that are checked, their benefits, and the costs of their absence.

use rustix::thread::CapabilitySet;
use sandbox::landlock::Support;

use super::machine::{Device, Machine};
use super::{Finding, Report};
use crate::tools::Tool;

/// Checks all features.
pub(super) fn check(machine: &Machine) -> Report {
    let mut findings = serving(machine);
    findings.extend(confinement(machine));
    findings.extend(mounting(machine));
    findings.extend(clients(machine));
    findings.extend(peers(machine));
    findings.extend(guests(machine));
    Report {
        version: crate::version::VERSION,
        kernel: machine.kernel(),
        works: machine.loopback.is_ok() && machine.directory.is_ok(),
        findings,
    }
}

/// Returns a finding: with `good` if the feature was found, otherwise with `cost` and the remedy
/// `bring`, unless that is empty.
fn finding(
    group: &'static str,
    name: &'static str,
    found: bool,
    (good, cost): (&str, &str),
    bring: &str,
) -> Finding {
    Finding {
        group,
        name,
        found,
        means: if found { good } else { cost }.into(),
        bring: (!found && !bring.is_empty()).then(|| bring.into()),
    }
}

const SERVING: &str = "serving";

fn serving(machine: &Machine) -> Vec<Finding> {
    let may = |wanted| machine.capabilities.contains(wanted);
    let callers = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::CHOWN
        | CapabilitySet::FOWNER;
    let why = |tried: &Result<(), String>| tried.clone().err().unwrap_or_default();
    let open_files = machine.open_files;
    vec![
        finding(
            SERVING,
            "loopback",
            machine.loopback.is_ok(),
            (
                "9P and NFS over TCP, for this host and its guests",
                &format!(
                    "no protocol can be served over TCP: {}",
                    why(&machine.loopback)
                ),
            ),
            "ip link set lo up",
        ),
        finding(
            SERVING,
            "directories",
            machine.directory.is_ok(),
            (
                "directories can be served; files outside them are unreachable",
                &format!("directories cannot be served: {}", why(&machine.directory)),
            ),
            "Linux 5.6 or later, and no sandbox that denies openat2(2)",
        ),
        finding(
            SERVING,
            "caller identity",
            machine.is_root && may(callers),
            (
                "requests run as the user that sends them",
                "all requests run as this user; --identity mapped-xattr stores owners for guests",
            ),
            "run barge as root",
        ),
        finding(
            SERVING,
            "file handles",
            may(CapabilitySet::DAC_READ_SEARCH),
            (
                "open files of NFS clients survive restarts, and renames by other programs",
                "files that other programs rename while barge is down are stale for NFS clients",
            ),
            "run barge as root, or: setcap cap_dac_read_search+ep BARGE",
        ),
        finding(
            SERVING,
            "low ports",
            may(CapabilitySet::NET_BIND_SERVICE) || low_ports_are_free(machine),
            (
                "ports below 1024, which --nfs-rpcbind needs for NFSv3 locks",
                "no ports below 1024: NFSv3 has no locks (nolock); other features use higher ports",
            ),
            "run barge as root, or: setcap cap_net_bind_service+ep BARGE",
        ),
        finding(
            SERVING,
            "open files",
            open_files >= RECOMMENDED_FILES,
            (
                &format!("{open_files} at a time"),
                &format!("{open_files} at a time: with many clients, files are reopened often"),
            ),
            "raise the hard limit: LimitNOFILE= of a unit, limits.conf(5), docker run --ulimit nofile",
        ),
        finding(
            SERVING,
            "vsock",
            machine.has("dev/vhost-vsock"),
            (
                "guests without a network can connect with --9p vsock:PORT",
                "guests can connect over TCP, virtiofs, or monitors that map vsock to Unix sockets (vsock-uds:PATH:PORT)",
            ),
            "modprobe vhost_vsock",
        ),
    ]
}

/// Open files for a server of some hundred clients. The hard limit is 524288 since systemd 240.
const RECOMMENDED_FILES: u64 = 65_536;

fn low_ports_are_free(machine: &Machine) -> bool {
    let first = machine.read("proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.and_then(|first| first.parse::<u16>().ok());
    first.is_some_and(|first| first <= ::nfs::portmap::PORT)
}

const CONFINEMENT: &str = "confinement (barge serve, barge virtiofsd)";

fn confinement(machine: &Machine) -> Vec<Finding> {
    let actions = machine.read("proc/sys/kernel/seccomp/actions_avail");
    let kills = |actions: &str| actions.split(' ').any(|action| action == "kill_process");
    let namespaces =
        machine.capabilities.contains(CapabilitySet::SYS_ADMIN) || user_namespaces(machine);
    vec![
        finding(
            CONFINEMENT,
            "namespaces",
            namespaces,
            (
                "the server sees its sources alone, and no network",
                "the server sees all files that its user may open, except those that Landlock refuses",
            ),
            "run barge as root, or permit user namespaces; in a container: docker run --cap-add SYS_ADMIN",
        ),
        finding(
            CONFINEMENT,
            "Landlock",
            machine.landlock == Support::Signals,
            (
                "TCP, signals and abstract sockets are refused to the server",
                match machine.landlock {
                    Support::None => "nothing more is refused to a server without namespaces",
                    Support::Files => "TCP, signals and abstract sockets are not refused",
                    Support::Tcp | Support::Signals => {
                        "signals and abstract sockets are not refused"
                    }
                },
            ),
            "Linux 6.12 or later, with landlock in the kernel's lsm= parameter",
        ),
        finding(
            CONFINEMENT,
            "seccomp",
            actions.is_some_and(|actions| kills(&actions)),
            (
                "a system call that serving does not use ends the server",
                "the server does not start without --seccomp none",
            ),
            "a kernel with CONFIG_SECCOMP_FILTER",
        ),
    ]
}

const MOUNTING: &str = "mounting on this host (barge mount)";

fn mounting(machine: &Machine) -> Vec<Finding> {
    let fuse = machine.device("dev/fuse");
    let by_itself = machine.is_root && machine.capabilities.contains(CapabilitySet::SYS_ADMIN);
    let by_helper = !machine.is_root && is_installed(machine, &Tool::FUSERMOUNT);
    let erofs = machine.file_system("erofs");
    vec![
        finding(
            MOUNTING,
            "/dev/fuse",
            fuse == Device::Accessible,
            (
                "sources can be mounted with FUSE",
                match fuse {
                    Device::Inaccessible => {
                        "not accessible to this user: no mounts; ls, cat, cp and serve work"
                    }
                    _ => "no mounts; ls, cat, cp and serve work",
                },
            ),
            match fuse {
                Device::Inaccessible => "chmod 666 /dev/fuse",
                _ => "modprobe fuse; in a container: docker run --device /dev/fuse",
            },
        ),
        finding(
            MOUNTING,
            "mount privilege",
            by_itself || by_helper,
            (
                match by_itself {
                    true => "CAP_SYS_ADMIN",
                    false => "fusermount3",
                },
                match machine.is_root {
                    true => "root without CAP_SYS_ADMIN, as in most containers: no mounts",
                    false => "fusermount3 is missing, which mounts for users other than root",
                },
            ),
            match machine.is_root {
                true => "docker run --cap-add SYS_ADMIN --device /dev/fuse; or run barge as a user",
                false => Tool::FUSERMOUNT.install_command,
            },
        ),
        finding(
            MOUNTING,
            "passthrough",
            machine.kernel_at_least((6, 9)),
            (
                "the kernel itself reads and writes files of mounted directories, for root",
                "barge reads and writes files of mounted directories, at a fraction of the speed",
            ),
            "Linux 6.9 or later",
        ),
        finding(
            MOUNTING,
            "user namespaces",
            user_namespaces(machine),
            (
                "users can mount in one: unshare --user --map-root-user --mount",
                "users can mount only with fusermount3, and rootless containers do not start",
            ),
            "sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 (kernel.apparmor_restrict_unprivileged_userns=0)",
        ),
        finding(
            MOUNTING,
            "EROFS on files",
            erofs && machine.kernel_at_least((6, 12)),
            (
                "the kernel itself mounts images, for root",
                match erofs {
                    true => {
                        "images in files are mounted with FUSE; those on block devices by the kernel"
                    }
                    false => "images are mounted with FUSE",
                },
            ),
            match erofs {
                true => "Linux 6.12 or later",
                false => "modprobe erofs; Linux 6.12 or later",
            },
        ),
        finding(
            MOUNTING,
            "overlayfs",
            machine.file_system("overlay"),
            (
                "overlays on a mount; barge's --overlay does not need it",
                "overlays only with barge's --overlay",
            ),
            "modprobe overlay",
        ),
    ]
}

fn user_namespaces(machine: &Machine) -> bool {
    let says = |path: &str, off: &str| machine.read(path).is_some_and(|text| text == off);
    machine.has("proc/self/ns/user")
        && !says("proc/sys/user/max_user_namespaces", "0")
        && !says("proc/sys/kernel/unprivileged_userns_clone", "0")
        && !says("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
}

const CLIENTS: &str = "kernel clients of this host";

fn clients(machine: &Machine) -> Vec<Finding> {
    let file_system = |name, good, cost, bring| {
        let found = machine.file_system(name);
        finding(CLIENTS, name, found, (good, cost), bring)
    };
    vec![
        file_system(
            "9p",
            "mount -t 9p, barge connect",
            "no mount -t 9p and no barge connect; barge mount does the same with FUSE",
            "modprobe 9p (in a separate package on some systems, such as linux-modules-extra)",
        ),
        file_system(
            "nfs",
            "mount -t nfs",
            "no mount -t nfs; barge mount does the same with FUSE",
            "modprobe nfs",
        ),
        tool(
            machine,
            CLIENTS,
            &Tool::MOUNT_NFS,
            "helper of mount -t nfs",
            "mount -t nfs fails without its helper",
        ),
        file_system(
            "virtiofs",
            "mount -t virtiofs, if this host is a guest",
            "no mount -t virtiofs, if this host is a guest",
            "modprobe virtiofs",
        ),
        tool(
            machine,
            CLIENTS,
            &Tool::NBD_CLIENT,
            "attaches disks of --nbd as /dev/nbd0 (modprobe nbd)",
            "disks of --nbd are available only to QEMU and to the tools of libnbd",
        ),
    ]
}

const PEERS: &str = "peers for barge bench";

fn peers(machine: &Machine) -> Vec<Finding> {
    [
        (&Tool::DIOD, "table 9p", "table 9p has no peer"),
        (&Tool::GANESHA, "table nfs", "table nfs has no peer"),
        (
            &Tool::VIRTIOFSD,
            "table virtiofs",
            "table virtiofs has no peer",
        ),
        (
            &Tool::QEMU_VIRTIOFSD,
            "table virtiofs",
            "table virtiofs has no column of QEMU's virtiofsd",
        ),
        (
            &Tool::MKSQUASHFS,
            "table image",
            "table image has no column of squashfs",
        ),
        (
            &Tool::SQUASHFUSE,
            "table image",
            "table image has no column of squashfuse",
        ),
        (
            &Tool::EROFSFUSE,
            "table image",
            "table image has no column of erofsfuse",
        ),
        (
            &Tool::MKFS_EROFS,
            "tests of images",
            "tests of images are skipped",
        ),
        (&Tool::FIO, "table coalescing", "no table coalescing"),
        (&Tool::BINDFS, "table mount", "table mount has no peer"),
        (
            &Tool::STRACE,
            "system calls are counted",
            "system calls are not counted",
        ),
        (
            &Tool::OPENSSL,
            "table nfs, over TLS",
            "table nfs has no column with TLS",
        ),
    ]
    .map(|(wanted, good, cost)| tool(machine, PEERS, wanted, good, cost))
    .into()
}

const GUESTS: &str = "guests (tests/guest)";

fn guests(machine: &Machine) -> Vec<Finding> {
    vec![
        tool(
            machine,
            GUESTS,
            &Tool::QEMU,
            "boots guests",
            "cannot boot guests: kernel clients remain untested",
        ),
        tool(
            machine,
            GUESTS,
            &Tool::GUEST_ROOT,
            "initial root of guests",
            "cannot boot guests",
        ),
        finding(
            GUESTS,
            "/dev/kvm",
            machine.device("dev/kvm") == Device::Accessible,
            (
                "virtual machines run at full speed",
                "virtual machines are emulated, some ten times slower",
            ),
            "enable virtualization; usermod -aG kvm USER",
        ),
    ]
}

fn is_installed(machine: &Machine, tool: &Tool) -> bool {
    tool.missing_from(&machine.program_dirs).is_empty()
}

fn tool(machine: &Machine, group: &'static str, tool: &Tool, good: &str, cost: &str) -> Finding {
    let missing = tool.missing_from(&machine.program_dirs);
    let cost = match (missing.as_slice(), tool.programs) {
        // The name of a single program is the name of the tool.
        ([], _) | (_, [_]) => cost.to_owned(),
        (missing, _) => format!("{cost} ({} missing)", missing.join(", ")),
    };
    finding(
        group,
        tool.name,
        missing.is_empty(),
        (good, &cost),
        tool.install_command,
    )
}

#[cfg(test)]
mod tests;
