//! The tasks of a server's first process besides serving: the process id file, the ready message
//! and the control socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use command::announce;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use transports::Listener;

use super::args::control::ReadyFormat;
use super::broker::upgrade;
use super::control::{Backend, ControlServer, Controller, with_server};
use super::live::{Listing, LiveRequest};
use super::plan::Plan;
use crate::config::Config;
use crate::{Failure, service};

/// These tasks; dropped at the end of the server.
pub(super) struct Operation {
    pidfile: Option<PidFile>,
    control: Option<ControlServer>,
    ready: ReadyFormat,
    /// The configuration as it is now; `None` for `barge virtiofsd`.
    running: Option<Arc<Mutex<Config>>>,
    /// Set once clients can connect.
    controller: Arc<OnceLock<Arc<Controller>>>,
}

/// The descriptors of these tasks for another program.
#[derive(Default)]
pub(super) struct OperationDescriptors {
    /// The locked process id file.
    pub(super) pidfile: Option<OwnedFd>,
    /// The listener of the control socket.
    pub(super) control: Option<Listener>,
}

impl Operation {
    /// Locks the process id file of `plan`, whose configuration is `running`, and binds its control
    /// socket, unless they are `inherited`.
    pub(super) fn new(
        plan: &Plan,
        running: Option<Arc<Mutex<Config>>>,
        inherited: OperationDescriptors,
    ) -> Result<Operation, Failure> {
        let pidfile = |path| match inherited.pidfile {
            Some(file) => Ok(PidFile::inherit(path, file)),
            None => PidFile::lock(path),
        };
        let control = |addr| match inherited.control {
            Some(listener) => ControlServer::new(listener),
            None => ControlServer::bind(addr),
        };
        Ok(Operation {
            pidfile: plan.pidfile.as_deref().map(pidfile).transpose()?,
            control: plan.control.as_ref().map(control).transpose()?,
            ready: plan.ready,
            running,
            controller: Arc::default(),
        })
    }

    /// Returns duplicates of the descriptors. The files stay when they are dropped.
    pub(super) fn descriptors(&self) -> io::Result<OperationDescriptors> {
        let pidfile = self.pidfile.as_ref().map(|it| it.file.try_clone());
        let control = self.control.as_ref().map(ControlServer::duplicate);
        Ok(OperationDescriptors {
            pidfile: pidfile.transpose()?.map(OwnedFd::from),
            control: control.transpose()?,
        })
    }

    /// Removes the files of inherited descriptors at the end from now on.
    pub(super) fn own_files(&mut self) {
        if let Some(pidfile) = &mut self.pidfile {
            pidfile.is_own = true;
        }
        if let Some(control) = &self.control {
            control.own_file();
        }
    }

    /// Returns the controller, which is set once clients can connect.
    pub(super) fn controller(&self) -> &Arc<OnceLock<Arc<Controller>>> {
        &self.controller
    }

    /// Reports to the user and the service manager that clients of `server` can connect, and serves
    /// the control socket. The user knows it if it was `upgraded`.
    pub(super) fn report_ready(
        &self,
        server: &Arc<dyn Backend>,
        upgraded: bool,
    ) -> Result<(), Failure> {
        let listing = server.request(LiveRequest::List);
        let listing = listing.map_err(|error| Failure::new(error.message))?;
        if let Some(pidfile) = &self.pidfile {
            pidfile.write()?;
        }
        let status = status(&serde_json::from_value(listing.clone()).unwrap_or_default());
        let text = match self.ready {
            ReadyFormat::Text => "ready\n".to_owned(),
            ReadyFormat::Json => format!("{}\n", with_server(listing)),
        };
        if let Some(running) = &self.running {
            let controller = Arc::new(Controller::new(server.clone(), running.clone()));
            let controller = self.controller.get_or_init(|| controller).clone();
            self.control
                .as_ref()
                .map_or(Ok(()), |control| control.start(controller))?;
        }
        let text = if upgraded { "" } else { &text };
        announce(text)?;
        service::notify(&service::ready(&status));
        Ok(())
    }
}

/// Returns the status for the service manager.
fn status(listing: &Listing) -> String {
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let shares = count(listing.shares.len(), "share");
    let endpoints = count(listing.endpoints.len(), "endpoint");
    format!("ready: {shares} at {endpoints}")
}

/// A locked file with the process id, which is removed when it is dropped.
struct PidFile {
    path: PathBuf,
    file: File,
    /// Whether it is removed: not as long as it is that of an earlier program.
    is_own: bool,
}

impl PidFile {
    /// Returns the one at `path`, which an earlier program has locked as `file`.
    fn inherit(path: &Path, file: OwnedFd) -> PidFile {
        PidFile {
            path: path.to_owned(),
            file: file.into(),
            is_own: false,
        }
    }

    /// Creates the file at `path`, or opens an existing one. Returns an error if another process
    /// has locked it.
    fn lock(path: &Path) -> Result<PidFile, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new(format!("--pidfile {}: {why}", path.display()))
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644);
        loop {
            let file = options.open(path).map_err(|error| failed(&error))?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| failed(&"another server has locked it"))?;
            // Its previous server may have removed it meanwhile.
            let own = file.metadata().map_err(|error| failed(&error))?;
            let is_there = std::fs::metadata(path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()));
            if is_there {
                let path = path.to_owned();
                let is_own = true;
                return Ok(PidFile { path, file, is_own });
            }
        }
    }

    fn write(&self) -> Result<(), Failure> {
        let mut file = &self.file;
        let text = format!("{}\n", upgrade::server_id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::new(format!("--pidfile {}: {error}", self.path.display())))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
