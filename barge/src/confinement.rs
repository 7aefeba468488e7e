//! Confinement of commands that read from other servers, or parse images of strangers: they need
//! fewer system calls than their process has. [`crate::serve`] confines processes that serve.

use rustix::thread::CapabilitySet;
use sandbox::landlock::{self, Support};
use sandbox::{Confinement, seccomp};
use sources::Source;

/// Confines a command that opens `sources`, if one is on another server, before the process starts
/// a thread: it executes no program, mounts and traces nothing and signals no other process. If
/// all of them are on servers of files, it also writes no file.
pub(crate) fn enter_reader<'a>(sources: impl IntoIterator<Item = &'a Source>) {
    let sources: Vec<_> = sources.into_iter().collect();
    if sources.iter().any(|source| connects(source)) {
        let remote = |source: &&Source| matches!(source, Source::Remote(_));
        // Images in object stores and registries may be cached in a directory.
        let directories = !sources.iter().all(remote);
        enter(CapabilitySet::all(), true, directories);
    }
}

/// Confines a command that writes files with what it reads, likewise. `network` says whether it
/// reads from other servers.
pub(crate) fn enter_writer(network: bool) {
    enter(CapabilitySet::all(), network, true);
}

/// Returns whether a source is on another server.
pub(crate) fn connects(source: &Source) -> bool {
    source.connects()
}

/// Confines a command that has opened all its files, and parses them: it has no capabilities, and
/// neither opens files to write them nor sockets.
pub(crate) fn enter_parser() {
    enter(CapabilitySet::empty(), false, false);
}

/// Confines the calling thread, and those that it starts later.
fn enter(capabilities: CapabilitySet, network: bool, directories: bool) {
    let confinement = Confinement {
        paths: Vec::new(),
        objects: Vec::new(),
        namespaces: false,
        landlock: true,
        // No path is out of reach.
        kernel_handles: true,
        capabilities,
        network,
        directories,
        changes: false,
        // Libraries that look up names may try other calls.
        seccomp: seccomp::Action::Errno,
    };
    // A kernel without filters of system calls runs the command without them.
    if let Err(error) = confinement.enter() {
        tracing::debug!("not confined: {error}");
    }
}

/// Logs the restrictions of Landlock that the running kernel lacks.
pub(crate) fn log_missing_barriers() {
    let missing = match landlock::support() {
        Support::None => "files, TCP, signals and abstract sockets",
        Support::Files => "TCP, signals and abstract sockets",
        Support::Tcp => "signals and abstract sockets",
        Support::Signals => return,
    };
    tracing::info!("this kernel has no Landlock for {missing}");
}
