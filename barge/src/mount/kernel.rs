//! Mounts of images with the kernel's EROFS, which need no server process.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags};
use sources::Image;

use super::{Backend, MountArgs};
use crate::{CommandResult, Failure, background, service, signals};

/// Mounts `image` on `dir`. The kernel mounts files from Linux 6.12 on, and block devices.
pub(super) fn mount(image: &Image, dir: &Path, flags: MountFlags) -> io::Result<()> {
    let (file, devices) = image.file()?;
    let devices: Vec<_> = devices
        .iter()
        .map(|device| format!("device={}", device.display()))
        .collect();
    let data = CString::new(devices.join(","))?;
    let flags = flags | MountFlags::RDONLY;
    Ok(rustix::mount::mount(
        file,
        dir,
        "erofs",
        flags,
        data.as_c_str(),
    )?)
}

/// The end of a mount.
enum Event {
    /// A signal to stop.
    Stop,
    /// umount(8).
    Unmounted,
}

/// Waits for a signal to stop, and unmounts then, or until the image is unmounted by another
/// process.
pub(super) fn wait_for_unmount(args: &MountArgs) -> CommandResult {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", args.dir.display()));
    let mounted = fs::metadata(&args.dir).map_err(failed)?.dev();
    let (sender, receiver) = channel();
    let stop = sender.clone();
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    // Poll reports an exception whenever mounts change (proc_pid_mounts(5)); the file is always
    // readable.
    let mounts = fs::File::open("/proc/self/mounts").map_err(failed)?;
    let dir = args.dir.clone();
    std::thread::spawn(move || {
        let is_mounted = || fs::metadata(&dir).is_ok_and(|metadata| metadata.dev() == mounted);
        while is_mounted() {
            let mut changes = [PollFd::new(&mounts, PollFlags::PRI)];
            if poll(&mut changes, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
        }
        let _ = sender.send(Event::Unmounted);
    });
    background::report_ready(&args.ready_text(Backend::Erofs, true))?;
    service::notify_ready("ready");
    let done = match receiver.recv() {
        Ok(Event::Stop) => rustix::mount::unmount(&args.dir, UnmountFlags::DETACH)
            .map_err(|error| failed(error.into())),
        _ => Ok(()),
    };
    drop(signals);
    done.map(|()| std::process::ExitCode::SUCCESS)
}
