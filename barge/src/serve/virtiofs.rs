//! virtiofs: a vhost-user socket for each share, to which a virtual machine monitor connects.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use engine::{Driven, Engine};
use fuse::server::Server;
use p9::server::Users;
use transports::{Addr, Listener, Ring};
use vfs::Export;
use virtqueue::{Config, Device, Drive, Stop};
use wire::Session;

use super::args::ServeArgs;
use super::users::HostUsers;
use crate::Failure;

/// `[NAME=]SOCKET`: a share and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    name: Option<String>,
    pub(super) socket: PathBuf,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let (name, socket) = match text.split_once('=') {
            Some((name, socket)) if !name.contains('/') => (Some(name.to_owned()), socket),
            _ => (None, text),
        };
        if socket.is_empty() {
            return Err("expected [NAME=]SOCKET".into());
        }
        Ok(Share {
            name,
            socket: socket.into(),
        })
    }
}

/// What a guest may keep, as virtiofsd names it.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Cache {
    /// Nothing
    Never,
    /// Names and attributes, for a day; no data
    Metadata,
    /// Names and attributes for a second, data while a file is open
    Auto,
    /// Everything for a day: nobody else changes the share
    Always,
}

/// The most request queues of a device.
const REQUEST_QUEUES: usize = 64;

/// Serves each share at its socket.
pub(super) fn serve(
    engine: &Arc<Engine>,
    exports: &[Arc<Export>],
    args: &ServeArgs,
) -> Result<(), Failure> {
    for share in &args.virtiofs {
        let server = Server::new(export_of(share, exports)?, args.fuse());
        let listener = super::listen(&Addr::Unix(share.socket.clone()))?;
        give_to_group(share, args)?;
        let engine_too = engine.clone();
        let accept = move |stop: BorrowedFd<'_>| accept(&engine_too, &listener, &server, stop);
        engine.host(accept).map_err(Failure::new)?;
    }
    Ok(())
}

fn export_of(share: &Share, exports: &[Arc<Export>]) -> Result<Arc<Export>, Failure> {
    let found = match (&share.name, exports) {
        (None, [only]) => Some(only),
        (None, _) => None,
        (Some(name), _) => exports.iter().find(|export| export.name == *name),
    };
    found.cloned().ok_or_else(|| {
        Failure::usage(format!(
            "--virtiofs {}: expected NAME=SOCKET with the name of a source",
            share.socket.display()
        ))
    })
}

/// Lets the members of `--socket-group` connect.
fn give_to_group(share: &Share, args: &ServeArgs) -> Result<(), Failure> {
    let Some(group) = &args.socket_group else {
        return Ok(());
    };
    let gid = HostUsers
        .gid(group.as_bytes())
        .ok_or_else(|| Failure::usage(format!("--socket-group {group}: there is no such group")))?;
    let path = &share.socket;
    std::os::unix::fs::chown(path, None, Some(gid))
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o660)))
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// One monitor after the other, as a virtual machine ends and the next one starts.
fn accept(engine: &Arc<Engine>, listener: &Listener, server: &Server, stop: BorrowedFd<'_>) {
    let name = listener.addr().to_string();
    loop {
        match listener.accept_socket(stop) {
            Ok(Some((socket, _))) => {
                tracing::debug!(addr = name, "a monitor connected");
                if let Err(error) = device(engine, socket.into(), server, &name, stop) {
                    tracing::warn!(addr = name, "connection closed: {error}");
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!(addr = name, "no longer listening: {error}");
                return;
            }
        }
    }
}

fn device(
    engine: &Arc<Engine>,
    socket: UnixStream,
    server: &Server,
    name: &str,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let drive = Arc::new(Queues {
        engine: engine.clone(),
        session: Arc::new(server.session()),
    });
    let config = Config {
        // And the one of high priority.
        queues: 1 + REQUEST_QUEUES,
        space: space(REQUEST_QUEUES as u32),
    };
    Device::new(socket, name, config, drive)?.run(stop)
}

/// The device's configuration: a tag, which is the monitor's to choose, and how many request queues it may
/// have (virtio 1.3, 5.11.4).
fn space(queues: u32) -> Vec<u8> {
    let mut space = vec![0; 36];
    space.extend(queues.to_le_bytes());
    space
}

/// All queues of a device lead to one session.
struct Queues {
    engine: Arc<Engine>,
    session: Arc<dyn Session>,
}

impl Drive for Queues {
    fn start(&self, ring: Arc<dyn Ring>) -> io::Result<Stop> {
        let driven: Driven = self.engine.drive(ring, self.session.clone())?;
        Ok(Box::new(|| driven.join()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_socket_and_perhaps_a_name() {
        let share = |text: &str| text.parse::<Share>();
        assert_eq!(share("/run/a=b").map(|share| share.name), Ok(None));
        assert_eq!(
            share("home=/run/s"),
            Ok(Share {
                name: Some("home".into()),
                socket: "/run/s".into(),
            })
        );
        assert!(share("home=").is_err());
    }
}
