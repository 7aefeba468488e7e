//! The features that are checked, their benefits, and the costs of their absence.

use rustix::thread::CapabilitySet;

use super::machine::{Device, Machine};
use super::{Finding, Report};
use crate::tools::Tool;

/// Checks all features.
pub(super) fn check(machine: &Machine) -> Report {
    let mut findings = serving(machine);
    findings.extend(mounting(machine));
    findings.extend(clients(machine));
    findings.extend(peers(machine));
    findings.extend(guests(machine));
    Report {
        version: env!("CARGO_PKG_VERSION"),
        kernel: machine.kernel(),
        works: machine.loopback.is_ok() && machine.directory.is_ok(),
        findings,
    }
}

/// Returns a finding: with `good` if the feature was found, otherwise with `cost` and the remedy
/// `bring`, unless that is empty.
fn piece(
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
        piece(
            SERVING,
            "loopback",
            machine.loopback.is_ok(),
            (
                "9P and NFS by TCP, for this machine and its guests",
                &format!("nothing can be served by TCP: {}", why(&machine.loopback)),
            ),
            "ip link set lo up",
        ),
        piece(
            SERVING,
            "directories",
            machine.directory.is_ok(),
            (
                "a directory is served, and nothing outside it can be reached",
                &format!("no directory can be served: {}", why(&machine.directory)),
            ),
            "Linux 5.6 or later, and no sandbox that forbids openat2(2)",
        ),
        piece(
            SERVING,
            "each caller",
            machine.is_root && may(callers),
            (
                "acts as itself, with its own rights and files",
                "whoever calls acts as this user; --identity mapped-xattr keeps owners for guests",
            ),
            "run barge as root",
        ),
        piece(
            SERVING,
            "file handles",
            may(CapabilitySet::DAC_READ_SEARCH),
            (
                "NFS clients' files outlive restarts and renames by others",
                "what others rename while barge is down is lost to NFS clients that have it open",
            ),
            "run barge as root, or: setcap cap_dac_read_search+ep BARGE",
        ),
        piece(
            SERVING,
            "low ports",
            may(CapabilitySet::NET_BIND_SERVICE) || low_ports_are_free(machine),
            (
                "ports below 1024, as --rpcbind takes for NFS v3's locks",
                "no ports below 1024: NFS v3 goes without locks (nolock); all else has higher ports",
            ),
            "run barge as root, or: setcap cap_net_bind_service+ep BARGE",
        ),
        piece(
            SERVING,
            "open files",
            open_files >= ENOUGH_FILES,
            (
                &format!("{open_files} at a time"),
                &format!(
                    "{open_files} at a time: with more clients than that allows, files are opened again and again"
                ),
            ),
            "raise the hard limit: LimitNOFILE= of a unit, limits.conf(5), docker run --ulimit nofile",
        ),
        piece(
            SERVING,
            "vsock",
            machine.has("dev/vhost-vsock"),
            (
                "guests without a network come by --9p vsock:PORT",
                "guests come by TCP, by virtiofs, or by monitors that have vsock as Unix sockets (vsock-uds:PATH:PORT)",
            ),
            "modprobe vhost_vsock",
        ),
    ]
}

/// Open files for a server of some hundred clients. The hard limit is 524288 since systemd 240.
const ENOUGH_FILES: u64 = 65_536;

fn low_ports_are_free(machine: &Machine) -> bool {
    let first = machine.read("proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.and_then(|first| first.parse::<u16>().ok());
    first.is_some_and(|first| first <= ::nfs::portmap::PORT)
}

const MOUNTING: &str = "mounting on this machine (barge mount)";

fn mounting(machine: &Machine) -> Vec<Finding> {
    let fuse = machine.device("dev/fuse");
    let by_itself = machine.is_root && machine.capabilities.contains(CapabilitySet::SYS_ADMIN);
    let by_helper = !machine.is_root && is_there(machine, &Tool::FUSERMOUNT);
    let erofs = machine.file_system("erofs");
    vec![
        piece(
            MOUNTING,
            "/dev/fuse",
            fuse == Device::Open,
            (
                "any source is mounted by FUSE",
                match fuse {
                    Device::Closed => {
                        "there, but not for this user: nothing is mounted; ls, cat, cp and serve work"
                    }
                    _ => "nothing is mounted; ls, cat, cp and serve work",
                },
            ),
            match fuse {
                Device::Closed => "chmod 666 /dev/fuse",
                _ => "modprobe fuse; in a container: docker run --device /dev/fuse",
            },
        ),
        piece(
            MOUNTING,
            "right to mount",
            by_itself || by_helper,
            (
                match by_itself {
                    true => "by CAP_SYS_ADMIN",
                    false => "by fusermount3",
                },
                match machine.is_root {
                    true => "root without CAP_SYS_ADMIN, as in most containers: nothing is mounted",
                    false => "fusermount3 is missing, which mounts for those who are not root",
                },
            ),
            match machine.is_root {
                true => "docker run --cap-add SYS_ADMIN --device /dev/fuse; or run barge as a user",
                false => Tool::FUSERMOUNT.bring,
            },
        ),
        piece(
            MOUNTING,
            "passthrough",
            machine.kernel_is((6, 9)),
            (
                "the kernel reads and writes a directory's files by itself, for root",
                "a directory's files are read and written by barge, at a fraction of the speed",
            ),
            "Linux 6.9 or later",
        ),
        piece(
            MOUNTING,
            "user namespaces",
            user_namespaces(machine),
            (
                "anybody mounts in one: unshare --user --map-root-user --mount",
                "users mount by fusermount3 alone, and rootless containers do not start",
            ),
            "sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 (kernel.apparmor_restrict_unprivileged_userns=0)",
        ),
        piece(
            MOUNTING,
            "EROFS of files",
            erofs && machine.kernel_is((6, 12)),
            (
                "images are mounted by the kernel itself, for root",
                match erofs {
                    true => {
                        "images in files are mounted by FUSE, in block devices by the kernel itself"
                    }
                    false => "images are mounted by FUSE",
                },
            ),
            match erofs {
                true => "Linux 6.12 or later",
                false => "modprobe erofs; Linux 6.12 or later",
            },
        ),
        piece(
            MOUNTING,
            "overlayfs",
            machine.file_system("overlay"),
            (
                "layers above a mount; barge's own --overlay needs none",
                "layers by barge's own --overlay alone",
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

const CLIENTS: &str = "this machine as a client of its kernel's own";

fn clients(machine: &Machine) -> Vec<Finding> {
    let file_system = |name, good, cost, bring| {
        let found = machine.file_system(name);
        piece(CLIENTS, name, found, (good, cost), bring)
    };
    vec![
        file_system(
            "9p",
            "mount -t 9p, barge connect",
            "no mount -t 9p and no barge connect here: barge mount does the same by FUSE",
            "modprobe 9p (on some systems in a package of further modules, as linux-modules-extra)",
        ),
        file_system(
            "nfs",
            "mount -t nfs",
            "no mount -t nfs here: barge mount does the same by FUSE",
            "modprobe nfs",
        ),
        tool(
            machine,
            CLIENTS,
            &Tool::MOUNT_NFS,
            "mount(8)'s helper for that",
            "mount -t nfs does not know what to do",
        ),
        file_system(
            "virtiofs",
            "as a guest: mount -t virtiofs",
            "as a guest, this machine mounts no virtiofs",
            "modprobe virtiofs",
        ),
        tool(
            machine,
            CLIENTS,
            &Tool::NBD_CLIENT,
            "disks of --nbd as /dev/nbd0 (modprobe nbd)",
            "disks of --nbd go to QEMU and libnbd's tools alone",
        ),
    ]
}

const PEERS: &str = "beside barge (barge bench)";

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
            "table virtiofs goes without QEMU's virtiofsd",
        ),
        (
            &Tool::MKSQUASHFS,
            "table image",
            "table image goes without squashfs",
        ),
        (
            &Tool::SQUASHFUSE,
            "table image",
            "table image goes without squashfuse",
        ),
        (
            &Tool::EROFSFUSE,
            "table image",
            "table image goes without erofsfuse",
        ),
        (&Tool::MKFS_EROFS, "tests of images", "tests of images skip"),
        (
            &Tool::FIO,
            "table coalescing",
            "table coalescing cannot be had",
        ),
        (&Tool::BINDFS, "table mount", "table mount has no peer"),
        (
            &Tool::STRACE,
            "system calls are counted",
            "system calls are not counted",
        ),
        (
            &Tool::OPENSSL,
            "table nfs, over TLS",
            "table nfs goes without TLS",
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
            "no guests are booted: the real kernel's clients go untested",
        ),
        tool(
            machine,
            GUESTS,
            &Tool::GUEST_ROOT,
            "what guests start with",
            "no guests are booted",
        ),
        piece(
            GUESTS,
            "/dev/kvm",
            machine.device("dev/kvm") == Device::Open,
            (
                "virtual machines run at full speed",
                "virtual machines are emulated, some ten times slower",
            ),
            "a machine with virtualization; usermod -aG kvm USER",
        ),
    ]
}

fn is_there(machine: &Machine, tool: &Tool) -> bool {
    tool.missing_from(&machine.programs).is_empty()
}

fn tool(machine: &Machine, group: &'static str, tool: &Tool, good: &str, cost: &str) -> Finding {
    let missing = tool.missing_from(&machine.programs);
    let cost = match (missing.as_slice(), tool.programs) {
        // The name of a single program is the name of the tool.
        ([], _) | (_, [_]) => cost.to_owned(),
        (missing, _) => format!("{cost} ({} missing)", missing.join(", ")),
    };
    piece(
        group,
        tool.name,
        missing.is_empty(),
        (good, &cost),
        tool.bring,
    )
}

#[cfg(test)]
mod tests;
