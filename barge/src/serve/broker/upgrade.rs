//! An upgrade in place: the broker executes the installed program, which continues with its process
//! id, its listening sockets and the connections of clients.
//!
//! The processes that serve hand their connections over to the broker and end
//! ([`super::connections`]). Then the broker executes the program, which finds the descriptors in a
//! manifest. If that fails, it starts the processes again itself.
//!
//! At a stop under a service manager with a store of descriptors (sd_notify(3), `FDSTORE=1`), the
//! descriptors and the manifest go there instead, and a restart continues with them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use sys::inherit::keep_on_exec;
use transports::Listener;

use super::connections::ConnectionDescriptors;
use super::objects::Objects;
use super::parts::Part;
use crate::config::Config;
use crate::serve::{activation, handle_key};
use crate::{Failure, service};

/// The environment variable with the descriptor of the manifest.
pub(crate) const MANIFEST: &str = "BARGE_UPGRADE";

/// The environment variable that makes a program check its options and end. Its value is the
/// version of the manifest that it would get.
pub(crate) const CHECK: &str = "BARGE_UPGRADE_CHECK";

/// The version of the manifest.
const VERSION: &str = "3";

/// Time for the installed program to check its options.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The sockets of a part of the server between two programs.
#[derive(Default)]
pub(super) struct PartSockets {
    pub(super) listeners: Vec<((String, usize), Listener)>,
    pub(super) connections: ConnectionDescriptors,
}

/// The description of the descriptors of a program that was executed for an upgrade.
#[derive(Serialize, Deserialize)]
struct Manifest {
    parts: Vec<PartManifest>,
    /// The configuration, unless it is read again.
    running: Option<Config>,
    /// The objects of its shares.
    objects: Vec<ObjectManifest>,
    /// The secret of a server that stores none.
    temporary_key: [u8; handle_key::LEN],
}

#[derive(Serialize, Deserialize)]
struct PartManifest {
    part: Part,
    listeners: Vec<ListenerManifest>,
    connections: Vec<Vec<i32>>,
}

#[derive(Serialize, Deserialize)]
struct ObjectManifest {
    number: u32,
    writable: bool,
    fd: i32,
}

#[derive(Serialize, Deserialize)]
struct ListenerManifest {
    /// The address of the configuration, and its position among equal ones.
    addr: String,
    place: usize,
    /// The address that clients connect to.
    bound: String,
    /// Whether the listener removes the file of its Unix socket.
    has_file: bool,
    fd: i32,
}

/// The sockets and the configuration that this program has taken over from another one.
#[derive(Default)]
pub(in crate::serve) struct TakenOver {
    parts: Vec<(Part, PartSockets)>,
    /// The configuration, unless it is read again.
    pub(in crate::serve) running: Option<Config>,
    /// The objects of its shares.
    pub(super) objects: Objects,
    /// The secret of a server that stores none.
    pub(super) temporary_key: Option<[u8; handle_key::LEN]>,
}

impl TakenOver {
    /// Returns those of this process, if it was executed for an upgrade, or if the service manager
    /// has stored them.
    pub(in crate::serve) fn of_this_process() -> Result<Option<TakenOver>, Failure> {
        if let Some(number) = std::env::var_os(MANIFEST) {
            let failed = |error: io::Error| Failure::new(format!("{MANIFEST}: {error}"));
            let number = number.to_str().and_then(|text| text.parse().ok());
            let number: i32 = number.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
            let read = sys::inherit::take(number)
                .and_then(|manifest| TakenOver::read(manifest, sys::inherit::take));
            return read.map(Some).map_err(failed);
        }
        let mut stored = stored_descriptors();
        let Some(manifest) = stored.remove(STORED_MANIFEST) else {
            return Ok(None);
        };
        let names: Vec<_> = stored.keys().cloned().collect();
        let take = |number: i32| {
            let found = stored.remove(&stored_name(number));
            // The service manager drops connections that have ended.
            found.ok_or_else(|| rustix::io::Errno::BADF.into())
        };
        let taken = TakenOver::read(manifest, take);
        for name in names.iter().map(String::as_str).chain([STORED_MANIFEST]) {
            service::notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
        }
        let ignored = |error| {
            tracing::warn!("the stored connections are of no use: {error}");
            None
        };
        Ok(taken.map_or_else(ignored, Some))
    }

    /// Returns those of a manifest, whose descriptors `take` returns. Those of a connection after a
    /// missing one are closed: its open files, or the connection too.
    fn read(
        manifest: OwnedFd,
        mut take: impl FnMut(i32) -> io::Result<OwnedFd>,
    ) -> io::Result<TakenOver> {
        let mut file = File::from(manifest);
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let manifest: Manifest = serde_json::from_slice(&text)?;
        let mut parts = Vec::new();
        for part in manifest.parts {
            let mut sockets = PartSockets::default();
            for one in part.listeners {
                let bound = one.bound.parse().map_err(io::Error::other)?;
                let listener = Listener::inherit(take(one.fd)?, &bound, one.has_file)?;
                sockets.listeners.push(((one.addr, one.place), listener));
            }
            for fds in part.connections {
                // All of them, as each is one of this process.
                let fds: Vec<_> = fds.into_iter().map(&mut take).collect();
                let present = fds.into_iter().map_while(Result::ok);
                sockets.connections.push(present.collect());
            }
            parts.push((part.part, sockets));
        }
        let objects = manifest.objects.into_iter();
        let objects = objects.map(|it| Ok((it.number, it.writable, take(it.fd)?)));
        let objects = objects.collect::<io::Result<_>>()?;
        Ok(TakenOver {
            parts,
            running: manifest.running,
            objects: Objects::of(objects),
            temporary_key: Some(manifest.temporary_key),
        })
    }

    /// Removes and returns the sockets of `part`.
    pub(super) fn take(&mut self, part: &Part) -> PartSockets {
        let found = self.parts.iter().position(|(own, _)| own == part);
        found.map_or_else(PartSockets::default, |at| self.parts.swap_remove(at).1)
    }
}

/// The name of the manifest in the service manager's store.
const STORED_MANIFEST: &str = "barge-upgrade-manifest";

/// The start of the names of other descriptors there, before a number.
const STORED: &str = "barge-upgrade-";

/// Returns the name of the descriptor `number` of the manifest in the service manager's store.
fn stored_name(number: i32) -> String {
    format!("{STORED}{number}")
}

/// Returns the descriptors of the service manager's store by their names (sd_listen_fds(3)).
fn stored_descriptors() -> HashMap<String, OwnedFd> {
    let numbers = activation::names().filter(|(name, _)| is_stored(name));
    let taken = numbers.filter_map(|(name, number)| Some((name, sys::inherit::take(number).ok()?)));
    taken.collect()
}

/// Returns whether `name` is that of a descriptor in the service manager's store. Sockets have the
/// names of their units, such as `barge-nfs.socket`.
pub(in crate::serve) fn is_stored(name: &str) -> bool {
    let number = name.strip_prefix(STORED);
    let is_number = number.is_some_and(|number| number.parse::<i32>().is_ok());
    is_number || name == STORED_MANIFEST
}

/// Returns whether a service manager stores descriptors of this process.
pub(super) fn has_store() -> bool {
    let most = std::env::var("FDSTORE").ok();
    most.and_then(|most| most.parse().ok())
        .is_some_and(|most: u32| most > 0)
}

/// Passes the sockets of `parts` to the service manager's store. The files of Unix sockets stay.
pub(super) fn store(
    parts: Vec<(Part, PartSockets)>,
    running: Option<Config>,
    key: [u8; handle_key::LEN],
) -> io::Result<()> {
    let mut duplicates = Vec::new();
    // A restart follows the paths of shares anew.
    let manifest = write_manifest(&parts, running, None, key, &mut duplicates)?;
    let connections = parts.iter().flat_map(|(_, sockets)| &sockets.connections);
    for fd in duplicates.iter().chain(connections.flatten()) {
        service::store(&stored_name(fd.as_raw_fd()), fd.as_fd())?;
    }
    service::store(STORED_MANIFEST, manifest.as_fd())?;
    service::wait_until_processed()?;
    for (_, sockets) in parts {
        for (_, mut listener) in sockets.listeners {
            listener.keep_file();
        }
    }
    Ok(())
}

/// Returns whether this process is to check its options only, or an error if it could not continue
/// the process that requests this.
pub(in crate::serve) fn is_check() -> Result<bool, Failure> {
    match std::env::var_os(CHECK) {
        None => Ok(false),
        Some(version) if version == VERSION => Ok(true),
        Some(_) => Err(Failure::new(
            "an upgrade from the running version takes a restart",
        )),
    }
}

/// Makes `program` check the options of this process. Returns the reason if it cannot continue.
pub(super) fn check(program: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", program.display());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    command.env_remove(MANIFEST).env(CHECK, VERSION);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    let deadline = Instant::now() + CHECK_TIMEOUT;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{}: it does not end", program.display()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(errors) = child.stderr.take() {
        // Its last line is the error; others are lost beyond a page.
        let _ = errors.take(4096).read_to_string(&mut text);
    }
    let why = text.lines().last().unwrap_or("it fails");
    Err(format!("{}: {why}", program.display()))
}

/// The holder of the connections after the processes that serve have ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Successor {
    /// The installed program.
    Program,
    /// The service manager, until the next start.
    ServiceManager,
}

/// The progress of an upgrade.
#[derive(Default)]
pub(super) struct Upgrade {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Default)]
enum Stage {
    #[default]
    None,
    /// This number of processes have ended, for a program or for the service manager's store.
    Ending(usize, Successor),
    /// The program could not be executed, for this reason.
    Failed(String),
}

impl Upgrade {
    /// Begins an upgrade. Returns `false` if one is in progress.
    pub(super) fn begin(&self, successor: Successor) -> bool {
        let mut stage = self.stage.lock();
        let begins = !matches!(*stage, Stage::Ending(..));
        if begins {
            *stage = Stage::Ending(0, successor);
        }
        begins
    }

    /// Returns whether an upgrade is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Ending(..))
    }

    /// Waits until the upgrade has failed, for `time` at most, and returns the reason.
    pub(super) fn wait(&self, time: Duration) -> Option<String> {
        let mut stage = self.stage.lock();
        let ending = |stage: &mut Stage| matches!(*stage, Stage::Ending(..));
        self.changed.wait_while_for(&mut stage, ending, time);
        match &*stage {
            Stage::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Notes that one of `count` processes has ended. The last one calls `execute`, which returns
    /// only if the upgrade has failed, with the reason. Returns once it has.
    pub(super) fn process_ended(&self, count: usize, execute: impl FnOnce(Successor) -> String) {
        let mut stage = self.stage.lock();
        let Stage::Ending(ended, successor) = &mut *stage else {
            return;
        };
        *ended += 1;
        if *ended == count {
            *stage = Stage::Failed(execute(*successor));
            self.changed.notify_all();
            return;
        }
        let ending = |stage: &mut Stage| matches!(*stage, Stage::Ending(..));
        self.changed.wait_while(&mut stage, ending);
    }
}

/// Executes `program` with the arguments of this process, with the sockets of `parts`, and with the
/// `objects` of shares. Returns only if that fails.
pub(super) fn execute(
    program: &Path,
    parts: &[(Part, PartSockets)],
    running: Option<Config>,
    objects: &Objects,
    key: [u8; handle_key::LEN],
) -> io::Error {
    let mut duplicates = Vec::new();
    let manifest = match write_manifest(parts, running, Some(objects), key, &mut duplicates) {
        Ok(manifest) => manifest,
        Err(error) => return error,
    };
    let connections = parts.iter().flat_map(|(_, sockets)| &sockets.connections);
    let originals: Vec<_> = connections.flatten().chain([&manifest]).collect();
    let keep = |keep| {
        let mut all = originals.iter();
        all.try_for_each(|fd| keep_on_exec(fd.as_fd(), keep))
    };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments);
    command.env(MANIFEST, manifest.as_raw_fd().to_string());
    let error = match keep(true) {
        Ok(()) => command.exec(),
        Err(error) => error,
    };
    // Fails only for a descriptor that is not open.
    let _ = keep(false);
    error
}

/// Writes the manifest to a file in memory. Adds descriptors that it names, and that the program
/// inherits, to `duplicates`; it also names those of connections.
fn write_manifest(
    parts: &[(Part, PartSockets)],
    running: Option<Config>,
    objects: Option<&Objects>,
    temporary_key: [u8; handle_key::LEN],
    duplicates: &mut Vec<OwnedFd>,
) -> io::Result<OwnedFd> {
    let mut manifest = Manifest {
        parts: Vec::new(),
        running,
        objects: Vec::new(),
        temporary_key,
    };
    for (number, writable, found) in objects.map(Objects::list).unwrap_or_default() {
        let fd = rustix::io::dup(found.descriptor())?;
        manifest.objects.push(ObjectManifest {
            number,
            writable,
            fd: fd.as_raw_fd(),
        });
        duplicates.push(fd);
    }
    for (part, sockets) in parts {
        let mut own = PartManifest {
            part: part.clone(),
            listeners: Vec::new(),
            connections: Vec::new(),
        };
        for ((addr, place), listener) in &sockets.listeners {
            // An inherited connection was given away.
            let Ok(fd) = listener.inheritable() else {
                continue;
            };
            own.listeners.push(ListenerManifest {
                addr: addr.clone(),
                place: *place,
                bound: listener.addr().to_string(),
                has_file: listener.has_file(),
                fd: fd.as_raw_fd(),
            });
            duplicates.push(fd);
        }
        for fds in &sockets.connections {
            let numbers = fds.iter().map(AsRawFd::as_raw_fd);
            own.connections.push(numbers.collect());
        }
        manifest.parts.push(own);
    }
    let mut file = File::from(memfd_create("barge-upgrade", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&manifest)?)?;
    Ok(file.into())
}

/// Returns the path of this program: another one may be installed there later.
pub(super) fn program() -> Option<PathBuf> {
    std::env::current_exe().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_units_are_not_taken_for_stored_descriptors() {
        assert!(is_stored(STORED_MANIFEST) && is_stored(&stored_name(17)));
        for name in [
            "barge-nfs.socket",
            "barge-upgrade-a.socket",
            "barge-upgrade-",
            "unknown",
        ] {
            assert!(!is_stored(name), "{name}");
        }
    }
}
