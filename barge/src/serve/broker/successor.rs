//! The installed program as a child of the running one during an upgrade.
//!
//! Both have an end of a socket. The new program resumes all sessions, but neither accepts a
//! connection nor reads from one, and reports that it serves. The running one has kept all
//! descriptors: until it replies, it can kill the new one and continue itself. With the reply it
//! gives up, and the new one begins.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use serde::{Deserialize, Serialize};
use sys::inherit::keep_on_exec;

use super::upgrade::{CHECK, MANIFEST};
use crate::child::message;

/// Time for the installed program to report that it serves.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for killed processes to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A message between the programs, or to the [`parent`](super::parent).
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The new program has resumed all sessions, and waits for [`Message::Begin`].
    Serves,
    /// The old program has given up. The socket to the parent is passed, if that is not the
    /// sender.
    Begin,
    /// The process with this id serves from now on: to the parent, before the sender ends.
    Successor(i32),
}

/// The ends of the sockets for the new program, which inherits them.
pub(super) struct ChildsEnds {
    pub(super) channel: OwnedFd,
    /// The end of a pipe, which each process of the new program holds until that begins.
    pub(super) lifeline: OwnedFd,
}

/// The ends of the running program.
pub(super) struct OwnEnds {
    channel: OwnedFd,
    lifeline: OwnedFd,
}

/// Returns both sides of the sockets.
pub(super) fn ends() -> io::Result<(OwnEnds, ChildsEnds)> {
    let (channel, childs_channel) = message::pair()?;
    let (lifeline, childs_lifeline) = pipe_with(PipeFlags::CLOEXEC)?;
    let own = OwnEnds { channel, lifeline };
    let childs = ChildsEnds {
        channel: childs_channel,
        lifeline: childs_lifeline,
    };
    Ok((own, childs))
}

/// The installed program, which has not begun to serve.
pub(super) struct NewProgram {
    child: Child,
    ends: OwnEnds,
}

impl NewProgram {
    /// Starts `program` with the arguments of this process. It inherits `descriptors`, of which one
    /// is the `manifest`.
    pub(super) fn start<'a>(
        program: &Path,
        ends: OwnEnds,
        manifest: &'a OwnedFd,
        descriptors: impl Iterator<Item = &'a OwnedFd>,
    ) -> io::Result<NewProgram> {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.args(arguments);
        command.env_remove(CHECK);
        command.env(MANIFEST, manifest.as_raw_fd().to_string());
        // Signals of the terminal reach it through this process.
        command.process_group(0);
        let all: Vec<_> = descriptors.chain([manifest]).collect();
        let keep = |keep| all.iter().try_for_each(|fd| keep_on_exec(fd.as_fd(), keep));
        let started = keep(true).and_then(|()| command.spawn());
        // Fails only for a descriptor that is not open.
        let _ = keep(false);
        let child = started?;
        Ok(NewProgram { child, ends })
    }

    /// Returns its process id.
    pub(super) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it reports that it serves. Returns the reason if it does not.
    pub(super) fn wait(&self) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let ended = pidfd_open(self.id(), PidfdFlags::empty());
        let ended = ended.map_err(|errno| failed(errno.into()))?;
        let deadline = Instant::now() + SERVE_TIMEOUT;
        let mut reports = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("it does not serve within {SERVE_TIMEOUT:?}"));
            }
            let mut ready = vec![PollFd::new(&ended, PollFlags::IN)];
            if reports {
                ready.push(PollFd::new(&self.ends.channel, PollFlags::IN));
            }
            let polled = poll(&mut ready, Timespec::try_from(left).ok().as_ref());
            match polled {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            if !ready[0].revents().is_empty() {
                return Err("it ended before it served".into());
            }
            if ready.get(1).is_some_and(|it| !it.revents().is_empty()) {
                match message::receive::<Message>(self.ends.channel.as_fd()) {
                    Ok((Message::Serves, _)) => return Ok(()),
                    Ok(_) => {}
                    // It may be about to end.
                    Err(_) => reports = false,
                }
            }
        }
    }

    /// Makes it begin. `parent` is the socket to the parent of both.
    pub(super) fn begin(&self, parent: &OwnedFd) -> io::Result<()> {
        begin(&self.ends.channel, Some(parent))
    }

    /// Returns the socket to it.
    pub(super) fn channel(&self) -> &OwnedFd {
        &self.ends.channel
    }

    /// Kills it with its group and its descendants, and waits until all have ended. Returns how it
    /// has ended, unless `why` says more.
    pub(super) fn kill(mut self, why: String) -> String {
        let own = self.id();
        let has_ended = self.has_ended();
        // It starts no others while its descendants are looked for.
        let _ = kill_process_group(own, Signal::STOP);
        let descendants = descendants(own);
        let handles = descendants
            .into_iter()
            .filter_map(|it| pidfd_open(it, PidfdFlags::empty()).ok());
        let handles: Vec<_> = handles.collect();
        // Any of them may have ended.
        let _ = kill_process_group(own, Signal::KILL);
        for handle in &handles {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
        let ended = self.child.wait();
        // Processes that it has started may still have the server's state open.
        if !self.wait_for_hang_up() {
            tracing::error!("upgrade: a process of the installed program does not end");
        }
        match ended {
            Ok(status) if has_ended => format!("{why} ({})", text(status)),
            _ => why,
        }
    }

    /// Returns whether it has ended by itself.
    fn has_ended(&self) -> bool {
        let handle = pidfd_open(self.id(), PidfdFlags::empty());
        handle.is_ok_and(|handle| is_ready(&handle, PollFlags::IN, Duration::ZERO))
    }

    /// Waits until no process has the other end of the pipe.
    fn wait_for_hang_up(&self) -> bool {
        is_ready(&self.ends.lifeline, PollFlags::empty(), KILL_TIMEOUT)
    }
}

/// Makes the new program at the other end of `channel` begin.
pub(super) fn begin(channel: &OwnedFd, parent: Option<&OwnedFd>) -> io::Result<()> {
    let parent = parent.map(AsFd::as_fd);
    message::send(channel.as_fd(), &Message::Begin, parent)
}

/// Sends SIGTERM to the process `id`, which may have ended.
pub(super) fn terminate(id: Pid) {
    let _ = kill_process(id, Signal::TERM);
}

/// Returns whether `fd` has one of `events`, a hang-up or an error, within `time`.
fn is_ready(fd: &OwnedFd, events: PollFlags, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut ready = [PollFd::new(fd, events)];
        match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            polled => return polled.is_ok_and(|count| count > 0),
        }
    }
}

/// Returns how a process has ended.
fn text(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or_default()),
    }
}

/// Returns the children of `id`, their children, and so on (proc_tid_children(5)).
fn descendants(id: Pid) -> Vec<Pid> {
    let mut all = vec![id];
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero()));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
            all.extend(ids.filter_map(Pid::from_raw));
        }
        next += 1;
    }
    all.split_off(1)
}

/// The running program, as the new one knows it.
pub(super) struct Predecessor {
    pub(super) channel: OwnedFd,
    /// See [`ChildsEnds::lifeline`].
    pub(super) lifeline: OwnedFd,
}

impl Predecessor {
    /// Reports that this program serves, and waits until it may begin. Returns the socket to its
    /// parent: the running program becomes that, or passes the socket on.
    pub(super) fn report(self) -> io::Result<OwnedFd> {
        message::send(self.channel.as_fd(), &Message::Serves, None)?;
        match message::receive(self.channel.as_fd())? {
            (Message::Begin, Some(parent)) => Ok(parent),
            (Message::Begin, None) => Ok(self.channel),
            (other, _) => Err(message::unexpected(&other)),
        }
    }
}

/// Waits until the parent at the other end of `socket` has ended.
pub(super) fn wait_for_end(socket: &OwnedFd) {
    while message::receive::<Message>(socket.as_fd())
        .is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
    {}
}
