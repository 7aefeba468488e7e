//! A process that serves a part of the server.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;

use super::objects::{Objects, SharedObject};
use super::parts::Part;
use super::requests::Responder;
use crate::config::Config;

/// A process that serves a part of the server, and those that replace it after crashes.
pub(super) struct Process {
    pub(super) part: Part,
    pub(super) responder: Responder,
    /// The broker's end of the socket for requests for figures.
    pub(super) control: OwnedFd,
    /// The process's ends of the sockets for its requests, and for those for figures.
    pub(super) childs_ends: (OwnedFd, OwnedFd),
    /// Whether it connects to other hosts.
    pub(super) network: AtomicBool,
    /// The same of the next process of this part.
    pub(super) next_network: AtomicBool,
    /// The process, if it runs.
    pub(super) child: Mutex<Option<Pid>>,
    /// Whether it serves clients, and handles signals.
    pub(super) serving: AtomicBool,
    /// The time since when it serves, or has served.
    pub(super) serving_since: Mutex<Option<Instant>>,
    /// Whether it was killed, as it did not handle signals yet.
    pub(super) killed: AtomicBool,
    /// Whether it has a root of its own.
    pub(super) rooted: AtomicBool,
    /// The objects that were passed to it, or that are in its root.
    pub(super) reached: Mutex<HashSet<u32>>,
    /// False if it has sources, and all have failed to open.
    pub(super) has_source: AtomicBool,
    /// The number of processes that were started.
    pub(super) starts: AtomicUsize,
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(child) = *self.child.lock() {
            // It may have ended.
            let _ = kill_process(child, signal);
        }
    }

    pub(super) fn stop(&self) {
        if self.serving.load(Ordering::SeqCst) {
            self.signal(Signal::TERM);
        } else {
            self.kill();
        }
    }

    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        self.signal(Signal::KILL);
    }

    /// Returns whether Landlock refuses files to it that its sources do not have.
    pub(super) fn is_confined_by_path(&self) -> bool {
        let privileged = sys::caps::effective().contains(CapabilitySet::DAC_READ_SEARCH);
        !self.network.load(Ordering::SeqCst) && !self.rooted.load(Ordering::SeqCst) && !privileged
    }

    /// Adds those objects of `config` to its root, if it has its own, that were found and that it
    /// lacks.
    pub(super) fn reach(&self, config: &Config, objects: &Objects) -> io::Result<()> {
        let found = config.objects().filter_map(|number| {
            let object = objects.get(number)?;
            object.found().is_some().then_some((number, object))
        });
        for (number, object) in found.collect::<Vec<_>>() {
            self.add_to_root(number, &object)?;
        }
        Ok(())
    }

    /// Adds the object `number`, which was found, to its root, if it has its own and lacks it.
    pub(super) fn add_to_root(&self, number: u32, object: &SharedObject) -> io::Result<()> {
        let Some(child) = self.rooted_child() else {
            return Ok(());
        };
        if self.reached.lock().contains(&number) {
            return Ok(());
        }
        let added = sandbox::root::add(child, &object.copy(number)?);
        added.map_err(io::Error::other)?;
        self.reached.lock().insert(number);
        Ok(())
    }

    /// Removes those objects from its root, if it has its own, that are not among `objects`.
    pub(super) fn hide_others(&self, objects: &Objects) {
        let Some(child) = self.rooted_child() else {
            return;
        };
        let is_other = |number: &u32| objects.get(*number).is_none();
        let others: Vec<u32> = self.reached.lock().extract_if(is_other).collect();
        for number in others {
            if let Err(error) = sandbox::root::remove(child, number) {
                tracing::warn!("{error}");
            }
        }
    }

    fn rooted_child(&self) -> Option<Pid> {
        let child = *self.child.lock();
        child.filter(|_| self.rooted.load(Ordering::SeqCst))
    }
}
