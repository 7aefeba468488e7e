//! The machines that guests run on: QEMU, and user-mode Linux.

mod qemu;
mod uml;

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::Result;

use crate::config::{GuestConfig, Mount};

pub(crate) use qemu::{TCG, add_machine, has_device};
pub(crate) use uml::try_boot as try_user_mode;

/// A machine for guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// QEMU, with this `-accel`.
    Qemu(String),
    /// User-mode Linux: the kernel is a process of the host and emulates nothing, so it runs far
    /// faster than QEMU without KVM. It has one processor, and virtiofs with one queue as its only
    /// virtio device. Its run has a network namespace, so servers listen on all addresses there.
    UserMode,
}

/// The files that connect a guest to the harness: descriptors that the machine inherits, and paths.
pub(crate) struct Files<'a> {
    /// The control port.
    pub(crate) control: RawFd,
    /// The port for the scripts' output.
    pub(crate) output: RawFd,
    pub(crate) initramfs: &'a Path,
    /// The log of the kernel's console.
    pub(crate) console: &'a Path,
    /// The log of the machine itself.
    pub(crate) log: File,
    /// The guest's directory of the run.
    pub(crate) dir: &'a Path,
    /// The guest's number in the run.
    pub(crate) number: usize,
    /// QEMU: the file with the guest's memory; the machine makes one if none.
    pub(crate) memory: Option<&'a Path>,
}

impl FromStr for Machine {
    type Err = Infallible;

    /// Parses an `-accel` of QEMU, or `uml`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "uml" => Self::UserMode,
            accel => Self::Qemu(accel.into()),
        })
    }
}

impl Machine {
    /// Returns QEMU with the accelerator that works everywhere.
    pub fn qemu() -> Self {
        Self::Qemu(TCG.into())
    }

    /// Returns an error with the reason if no guest can run on it here.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Qemu(_) => qemu::check(),
            Self::UserMode => uml::check(),
        }
    }

    /// Returns the address on which servers listen for guests.
    pub(crate) fn listen(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "127.0.0.1",
            Self::UserMode => "0.0.0.0",
        }
    }

    /// Returns the options that let a guest's root act as root. QEMU connects from this host, as
    /// the harness's user; user-mode Linux is another host to the server.
    pub(crate) fn access(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "",
            Self::UserMode => " --squash none",
        }
    }

    /// Returns the read-only mount of the host's root. The tree does not change while a guest uses
    /// it, except for shares, which are not accessed through it.
    pub(crate) fn root(&self) -> Mount {
        match self {
            Self::Qemu(_) => {
                let options =
                    ["ro,trans=virtio,msize=512000,cache=loose,access=any,noxattr".into()];
                Mount::usual("9p", Some("root".into()), &options)
            }
            Self::UserMode => Mount {
                fs_type: "hostfs".into(),
                options: "ro,/".into(),
                device: "root".into(),
            },
        }
    }

    /// Returns whether guests read files of the host, and get long replies in files: user-mode
    /// Linux's serial lines lose their reader's wake-up if more than 4 KiB arrive at once.
    pub(crate) fn reads_files(&self) -> bool {
        *self == Self::UserMode
    }

    /// Returns the modules of the machine's devices.
    pub(crate) fn modules(&self) -> &'static [&'static str] {
        match self {
            Self::Qemu(_) => qemu::MODULES,
            Self::UserMode => &[],
        }
    }

    /// Returns the name of the machine for the guest's init.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "qemu",
            Self::UserMode => "uml",
        }
    }

    /// Returns the command that boots a guest with the image of a kernel.
    pub(crate) fn command(
        &self,
        config: &GuestConfig,
        kernel: &Path,
        files: Files,
    ) -> Result<Command> {
        match self {
            Self::Qemu(accel) => qemu::command(config, accel, kernel, files),
            Self::UserMode => uml::command(config, kernel, files),
        }
    }

    /// Runs `work`, with its servers and guests, in the network that this machine's guests reach.
    pub(crate) fn with_network<T: Send>(
        &self,
        guests: usize,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        match self {
            Self::Qemu(_) => work(),
            Self::UserMode => uml::with_network(guests, work),
        }
    }
}
