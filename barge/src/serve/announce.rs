//! The ready message: a mount command for each address, then the line `ready`.

use std::io::{Write, stdout};
use std::path::Path;

use nfs::server::Transports;
use transports::Addr;

use super::exports::Exports;
#[cfg(feature = "gss")]
use super::gss::Security;
use super::plan::Plan;
use super::virtio9p::NinePDevice;
use super::{Addrs, access, welcome};
use crate::{Failure, service};

/// Prints how to mount on standard output, and reports there and to the service manager that
/// clients can connect. Prints an introduction as well if no address was given (`unnamed`).
pub(super) fn ready(
    addrs: &Addrs,
    exports: &Exports,
    plan: &Plan,
    unnamed: bool,
) -> Result<(), Failure> {
    let newcomer = unnamed && plan.run.is_none();
    let introduction = newcomer.then(|| welcome::introduction(addrs, exports, plan));
    let [mut text, behind] = introduction.flatten().unwrap_or_default();
    if let Some(p9) = &plan.p9 {
        for addr in &addrs.p9 {
            for export in exports.list() {
                text.push_str(&mount_command(addr, &export.name, p9.max_msize));
                text.push('\n');
            }
        }
    }
    if let Some(nfs) = &plan.nfs {
        let security = nfs.tls.as_ref().map_or("", |tls| match tls.transports {
            Transports { none: true, .. } => "",
            Transports { tls: true, .. } => ",xprtsec=tls",
            Transports { .. } => ",xprtsec=mtls",
        });
        #[cfg(feature = "gss")]
        let sec = nfs.security.as_ref().map_or("", Security::mount_option);
        #[cfg(not(feature = "gss"))]
        let sec = "";
        let security = format!("{security}{sec}");
        for addr in &addrs.nfs {
            text.push_str(&nfs_mount_commands(addr, nfs.rpcbind.is_some(), &security));
        }
    }
    for share in &plan.virtiofs.shares {
        if let Addr::Unix(socket) = &share.at {
            text.push_str(&monitor_options(&fs_device(socket)));
            text.push_str("mount -t virtiofs share /mnt\n");
        }
    }
    for device in plan.p9.iter().flat_map(|p9| &p9.devices) {
        text.push_str(&device_options(device));
    }
    for drive in &plan.block.drives {
        if let Addr::Unix(socket) = &drive.socket.at {
            text.push_str(&monitor_options(&block_device(socket)));
        }
    }
    let image = exports.images.first().map(|image| &image.name);
    let file = image.map_or("FILE".into(), |name| String::from_utf8_lossy(name));
    for addr in &addrs.nbd {
        text.push_str(&nbd_command(addr, &file));
    }
    if let Some(addr) = &addrs.http {
        text.push_str(&page_command(addr));
    }
    text.push_str(&behind);
    if !addrs.p9.is_empty() || !addrs.nfs.is_empty() {
        text.push_str(&access::lines(plan, addrs.are_open()));
    }
    text.push_str("ready\n");
    let mut out = stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("standard output: {error}")))?;
    service::tell_ready("ready");
    Ok(())
}

/// Returns the URL of the status page, or a `barge top` command for an address without a URL.
fn page_command(addr: &Addr) -> String {
    match addr {
        Addr::Tcp { host, port } if host.contains(':') => format!("http://[{host}]:{port}/\n"),
        Addr::Tcp { host, port } => format!("http://{host}:{port}/\n"),
        addr => format!("barge top {addr}\n"),
    }
}

/// Maximum msize of Linux on a stream; it reduces larger ones to this.
const LINUX_MSIZE: u32 = (1 << 20) + 24;

fn mount_command(addr: &Addr, export: &str, msize: u32) -> String {
    let (transport, device) = match addr {
        Addr::Tcp { host, port } => (format!("tcp,port={port}"), host.clone()),
        Addr::Unix(path) => ("unix".into(), path.display().to_string()),
        Addr::Vsock { port, .. } | Addr::VsockUds { port, .. } => {
            return vsock_mount_command(*port, &options_of(export, msize));
        }
        Addr::Fd(_) => ("fd,rfdno=FD,wfdno=FD".into(), "barge".into()),
    };
    let options = options_of(export, msize);
    format!("mount -t 9p -o trans={transport},{options} {device} /mnt")
}

/// Returns the mount command for a guest: Linux mounts a vsock that is connected already.
fn vsock_mount_command(port: u32, options: &str) -> String {
    let connect = format!("s=socket.socket(socket.AF_VSOCK); s.connect((2,{port})); f=s.fileno()");
    let mount = format!(
        r#"["mount","-t","9p","-o",f"trans=fd,rfdno={{f}},wfdno={{f}},{options}","barge","/mnt"]"#
    );
    format!(
        "python3 -c 'import socket,subprocess; {connect}; subprocess.run({mount},check=True,pass_fds=[f])'"
    )
}

fn options_of(export: &str, msize: u32) -> String {
    let aname = if export.is_empty() {
        String::new()
    } else {
        format!(",aname={export}")
    };
    let msize = msize.min(LINUX_MSIZE);
    format!("version=9p2000.L,msize={msize}{aname}")
}

/// Returns mount commands for v4 and for v3, whose locks need a portmapper (`locks`), with the
/// security options. Linux mounts over TCP only.
fn nfs_mount_commands(addr: &Addr, locks: bool, security: &str) -> String {
    let Addr::Tcp { host, port } = addr else {
        return String::new();
    };
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.clone(),
    };
    let nolock = if locks { "" } else { ",nolock" };
    format!(
        "mount -t nfs -o vers=4.2,tcp,port={port}{security} {host}:/ /mnt\n\
         mount -t nfs -o vers=3,tcp,port={port},mountport={port}{nolock}{security} {host}:/ /mnt\n"
    )
}

/// Returns a QEMU command line with a vhost-user device.
fn monitor_options(device: &str) -> String {
    format!(
        "qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=mem,size=2G,share=on -numa node,memdev=mem {device}\n"
    )
}

/// Returns QEMU's options of a virtiofs device. Queues shorter than 1024 would split large
/// requests.
fn fs_device(socket: &Path) -> String {
    format!(
        "-chardev socket,id=fs,path={} -device vhost-user-fs-pci,chardev=fs,tag=share,queue-size=1024,num-request-queues=1",
        socket.display()
    )
}

/// Returns QEMU's options of a block device, which has a queue for each processor of the guest.
fn block_device(socket: &Path) -> String {
    format!(
        "-chardev socket,id=blk,path={} -device vhost-user-blk-pci,chardev=blk",
        socket.display()
    )
}

/// Returns the command that attaches `file` as a disk of Linux. `file` is a path, or the name of an
/// image, which may be empty.
fn nbd_command(addr: &Addr, file: &str) -> String {
    let place = match addr {
        Addr::Tcp { host, port } => format!("{host} {port}"),
        Addr::Unix(path) => format!("-unix {}", path.display()),
        _ => return String::new(),
    };
    let name = match file {
        "" => String::new(),
        file => format!("-N {file} "),
    };
    format!("nbd-client {name}{place} /dev/nbd0\n")
}

/// Returns QEMU's options of a 9P device, for versions with `vhost-user-test-device`, and the mount
/// command for the guest. Linux uses at most 128 descriptors per message, and so 500 KiB.
fn device_options(device: &NinePDevice) -> String {
    let Addr::Unix(socket) = &device.socket.at else {
        return String::new();
    };
    let options = format!(
        "-chardev socket,id=p9,path={} -device vhost-user-test-device-pci,chardev=p9,virtio-id=9,num_vqs=1,vq_size=128,config_size={}",
        socket.display(),
        device.space().len(),
    );
    let tag = &device.tag;
    let mount = format!("mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 {tag} /mnt\n");
    monitor_options(&options) + &mount
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_command_is_one_to_copy() {
        let tcp = "tcp:127.0.0.1:5640".parse().expect("an address");
        assert_eq!(
            mount_command(&tcp, "", 4 << 20),
            "mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,msize=1048600 127.0.0.1 /mnt"
        );
        let unix = "unix:/run/b".parse().expect("an address");
        assert_eq!(
            mount_command(&unix, "data", 8192),
            "mount -t 9p -o trans=unix,version=9p2000.L,msize=8192,aname=data /run/b /mnt"
        );
        let vsock = "vsock-uds:/run/vm:99".parse().expect("an address");
        assert_eq!(
            mount_command(&vsock, "data", 8192),
            r#"python3 -c 'import socket,subprocess; s=socket.socket(socket.AF_VSOCK); s.connect((2,99)); f=s.fileno(); subprocess.run(["mount","-t","9p","-o",f"trans=fd,rfdno={f},wfdno={f},version=9p2000.L,msize=8192,aname=data","barge","/mnt"],check=True,pass_fds=[f])'"#
        );
        let commands = ["FILE", ""].map(|file| nbd_command(&tcp, file));
        assert_eq!(
            commands,
            [
                "nbd-client -N FILE 127.0.0.1 5640 /dev/nbd0\n",
                "nbd-client 127.0.0.1 5640 /dev/nbd0\n"
            ]
        );
        let local = "tcp:[::1]:2049".parse().expect("an address");
        let secured = nfs_mount_commands(&local, true, ",xprtsec=tls");
        assert!(secured.contains("port=2049,xprtsec=tls [::1]:/"));
        let nfs = nfs_mount_commands(&local, false, "");
        assert_eq!(
            nfs.lines().collect::<Vec<_>>(),
            [
                "mount -t nfs -o vers=4.2,tcp,port=2049 [::1]:/ /mnt",
                "mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolock [::1]:/ /mnt",
            ]
        );
    }
}
