//! An upgrade in place: the installed program continues with the listening sockets and the
//! connections of clients.
//!
//! The processes that serve hand their connections over to the broker and end
//! ([`super::connections`]). Then the broker starts the program, which finds copies of the
//! descriptors in a manifest, and gives up once that serves ([`super::successor`]). If the program
//! fails before, the broker starts its own processes again.
//!
//! At a stop under a service manager with a store of descriptors (sd_notify(3), `FDSTORE=1`), the
//! descriptors and the manifest go there instead, and a restart continues with them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use transports::Listener;

use super::connections::ConnectionDescriptors;
use super::objects::{Objects, SharedObject};
use super::parts::Part;
use super::successor::{self, NewProgram, Predecessor};
use crate::config::Config;
use crate::serve::operation::OperationDescriptors;
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

/// The needs of another program besides the sockets.
pub(super) struct Settings {
    /// The configuration, unless it is read again.
    pub(super) running: Option<Config>,
    /// The objects of its shares, as [`Objects::list`] returns them.
    pub(super) objects: Vec<(u32, Arc<SharedObject>)>,
    /// The secret of a server that stores none.
    pub(super) temporary_key: [u8; handle_key::LEN],
}

/// The description of the descriptors of a program that was started for an upgrade.
#[derive(Serialize, Deserialize)]
struct Manifest {
    parts: Vec<PartManifest>,
    /// The configuration, unless it is read again.
    running: Option<Config>,
    /// The objects of its shares.
    objects: Vec<ObjectManifest>,
    /// The secret of a server that stores none.
    temporary_key: [u8; handle_key::LEN],
    /// `None` if the service manager has stored the descriptors.
    predecessor: Option<PredecessorManifest>,
}

/// The descriptors and facts that a program passes on which still runs.
#[derive(Serialize, Deserialize)]
struct PredecessorManifest {
    /// The descriptor of the socket to it.
    channel: i32,
    /// That of the pipe that processes hold before the new program begins.
    lifeline: i32,
    /// That of the locked process id file.
    pidfile: Option<i32>,
    control: Option<ListenerManifest>,
    /// The number of sockets that a service manager had passed to the first program.
    listen_fds: i32,
    /// The process id that users know the server by.
    server_id: u32,
}

/// The facts of an earlier program that stay true for this process.
struct Inherited {
    listen_fds: i32,
    server_id: u32,
}

/// Set once, before anything reads it.
static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Returns the number of sockets that a service manager has passed to an earlier program, if there
/// is one: it was another process.
pub(in crate::serve) fn passed_on_fds() -> Option<i32> {
    INHERITED.get().map(|it| it.listen_fds)
}

/// Returns the id of the process that users know as the server: it passes signals on.
pub(in crate::serve) fn server_id() -> u32 {
    INHERITED
        .get()
        .map_or_else(std::process::id, |it| it.server_id)
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

impl ListenerManifest {
    /// Describes `listener`, which is at `addr` and `place` of the configuration. Adds a duplicate
    /// that another program inherits to `duplicates`. Returns `None` for an inherited connection
    /// that was given away.
    fn of(
        listener: &Listener,
        (addr, place): (&str, usize),
        duplicates: &mut Vec<OwnedFd>,
    ) -> Option<ListenerManifest> {
        let fd = listener.inheritable().ok()?;
        let number = fd.as_raw_fd();
        duplicates.push(fd);
        Some(ListenerManifest {
            addr: addr.to_owned(),
            place,
            bound: listener.addr().to_string(),
            has_file: listener.has_file(),
            fd: number,
        })
    }

    /// Returns the listener, whose descriptor `take` returns.
    fn listener(&self, take: &mut impl FnMut(i32) -> io::Result<OwnedFd>) -> io::Result<Listener> {
        let bound = self.bound.parse().map_err(io::Error::other)?;
        Listener::inherit(take(self.fd)?, &bound, self.has_file)
    }
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
    /// Those of the operation of the server.
    pub(super) operation: OperationDescriptors,
    /// The program that still runs.
    pub(super) predecessor: Option<Predecessor>,
}

impl TakenOver {
    /// Returns those of this process, if it was started for an upgrade, or if the service manager
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
                let listener = one.listener(&mut take)?;
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
        let mut taken = TakenOver {
            parts,
            running: manifest.running,
            objects: Objects::of(objects),
            temporary_key: Some(manifest.temporary_key),
            ..TakenOver::default()
        };
        if let Some(of) = manifest.predecessor {
            let control = of.control.map(|it| it.listener(&mut take)).transpose()?;
            taken.operation = OperationDescriptors {
                pidfile: of.pidfile.map(&mut take).transpose()?,
                control,
            };
            taken.predecessor = Some(Predecessor {
                channel: take(of.channel)?,
                lifeline: take(of.lifeline)?,
            });
            INHERITED.get_or_init(|| Inherited {
                listen_fds: of.listen_fds,
                server_id: of.server_id,
            });
        }
        Ok(taken)
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
pub(super) fn store(parts: Vec<(Part, PartSockets)>, settings: Settings) -> io::Result<()> {
    let mut duplicates = Vec::new();
    let manifest = write_manifest(&parts, settings, None, &mut duplicates)?;
    let connections = parts.iter().flat_map(|(_, sockets)| &sockets.connections);
    for fd in duplicates.iter().chain(connections.flatten()) {
        service::store(&stored_name(fd.as_raw_fd()), fd.as_fd())?;
    }
    service::store(STORED_MANIFEST, manifest.as_fd())?;
    service::wait_until_processed()?;
    for (_, sockets) in parts {
        for (_, listener) in sockets.listeners {
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

/// The progress of an upgrade.
#[derive(Default)]
pub(super) struct Upgrade {
    stage: Mutex<Stage>,
    changed: Condvar,
    /// The installed program, which has not begun to serve.
    program: Mutex<Option<Pid>>,
}

#[derive(Default)]
enum Stage {
    #[default]
    None,
    /// This number of processes have ended, and wait.
    Ending(usize),
}

impl Upgrade {
    /// Begins an upgrade. Returns `false` if one is in progress.
    pub(super) fn begin(&self) -> bool {
        let mut stage = self.stage.lock();
        let begins = matches!(*stage, Stage::None);
        if begins {
            *stage = Stage::Ending(0);
        }
        begins
    }

    /// Returns whether an upgrade is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Ending(_))
    }

    /// Notes that a process has ended. Returns once the upgrade has failed.
    pub(super) fn process_ended(&self) {
        let mut stage = self.stage.lock();
        if let Stage::Ending(ended) = &mut *stage {
            *ended += 1;
            self.changed.notify_all();
        }
        let ending = |stage: &mut Stage| matches!(*stage, Stage::Ending(_));
        self.changed.wait_while(&mut stage, ending);
    }

    /// Waits until `count` processes have ended, for `time` at most, and returns whether they have.
    pub(super) fn wait_for_ends(&self, count: usize, time: Duration) -> bool {
        let mut stage = self.stage.lock();
        let fewer = |stage: &mut Stage| matches!(*stage, Stage::Ending(ended) if ended < count);
        !self
            .changed
            .wait_while_for(&mut stage, fewer, time)
            .timed_out()
    }

    /// Ends an upgrade that has failed.
    pub(super) fn fail(&self) {
        *self.stage.lock() = Stage::None;
        self.changed.notify_all();
    }

    /// Sets the installed program, which has not begun to serve, or notes that it has ended.
    pub(super) fn set_program(&self, program: Option<Pid>) {
        *self.program.lock() = program;
    }

    /// Stops the installed program, if it has not begun to serve.
    pub(super) fn stop_program(&self) {
        if let Some(program) = *self.program.lock() {
            successor::terminate(program);
        }
    }
}

/// Starts `program` with the arguments of this process, and with the sockets of `parts` and
/// `operation`.
pub(super) fn start(
    program: &Path,
    parts: &[(Part, PartSockets)],
    operation: OperationDescriptors,
    settings: Settings,
) -> io::Result<NewProgram> {
    let mut duplicates = Vec::new();
    let (ends, childs) = successor::ends()?;
    let control = operation.control.as_ref();
    let predecessor = PredecessorManifest {
        channel: childs.channel.as_raw_fd(),
        lifeline: childs.lifeline.as_raw_fd(),
        pidfile: operation.pidfile.as_ref().map(AsRawFd::as_raw_fd),
        control: control.and_then(|it| ListenerManifest::of(it, ("", 0), &mut duplicates)),
        listen_fds: activation::listen_fds(),
        server_id: server_id(),
    };
    let manifest = write_manifest(parts, settings, Some(predecessor), &mut duplicates)?;
    let connections = parts.iter().flat_map(|(_, sockets)| &sockets.connections);
    let own = [&childs.channel, &childs.lifeline];
    let inherited = connections.flatten().chain(own).chain(&operation.pidfile);
    NewProgram::start(program, ends, &manifest, inherited)
}

/// Writes the manifest to a file in memory. Adds descriptors that it names, and that the program
/// inherits, to `duplicates`; it also names those of connections.
fn write_manifest(
    parts: &[(Part, PartSockets)],
    settings: Settings,
    predecessor: Option<PredecessorManifest>,
    duplicates: &mut Vec<OwnedFd>,
) -> io::Result<OwnedFd> {
    let mut manifest = Manifest {
        parts: Vec::new(),
        running: settings.running,
        objects: Vec::new(),
        temporary_key: settings.temporary_key,
        predecessor,
    };
    for (number, object) in settings.objects {
        let Some(found) = object.found() else {
            continue;
        };
        let fd = rustix::io::dup(found)?;
        manifest.objects.push(ObjectManifest {
            number,
            writable: object.is_writable(),
            fd: fd.as_raw_fd(),
        });
        duplicates.push(fd);
    }
    for (part, sockets) in parts {
        let listeners = sockets
            .listeners
            .iter()
            .filter_map(|((addr, place), it)| ListenerManifest::of(it, (addr, *place), duplicates));
        let mut own = PartManifest {
            part: part.clone(),
            listeners: listeners.collect(),
            connections: Vec::new(),
        };
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
