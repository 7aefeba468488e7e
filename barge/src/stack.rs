//! The layers between a source and its clients.
//!
//! Their order is that of [`Stack`]'s fields, from the source up. It is the same for all commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use layers::call_log::Event;
use layers::gate::AccessPolicy;
use layers::squash::SquashMode;
use layers::{
    CallLog, DiskCache, DiskQuota, Gate, Hide, Latency, Limiter, MapIds, OwnerOverride, PageCache,
    Pokes, SealedHandles, Trace, XattrMap, stack,
};
use vfs::source_stats::RemoteCounters;
use vfs::{FileSystem, HandleKey, Support};

use crate::Failure;
use crate::call_log::CallLogFile;
use crate::read_trace::TraceFile;
use crate::serve::agent::AgentShares;
use crate::source::open_overlay;

/// The layers to stack on a source. A layer that is absent costs nothing.
#[derive(Default)]
pub(crate) struct Stack<'a> {
    /// The layer that limits disk space. It lies on the source itself, whose nodes live as long as
    /// any client uses them; hidden files use space as well.
    pub(crate) quota: Option<Arc<DiskQuota>>,
    /// The counters of calls of a source on another server.
    pub(crate) remote: Option<Arc<RemoteCounters>>,
    /// The disk cache for files of another server.
    pub(crate) disk_cache: Option<Arc<DiskCache>>,
    /// The trace of first accesses, which are those that reach the source.
    pub(crate) read_trace: Option<Arc<TraceFile>>,
    /// The directory that stores changes, and the options to open it with.
    pub(crate) overlay: Option<(PathBuf, hostdir::Options)>,
    /// The layer that hides paths.
    pub(crate) hidden: Option<Hide>,
    /// The key that seals file handles.
    pub(crate) seal: Option<HandleKey>,
    pub(crate) page_cache: Option<Arc<PageCache>>,
    /// Owner and group of all files.
    pub(crate) owner: OwnerOverride,
    pub(crate) ids: &'a [MapIds],
    /// The right to use an attribute's name depends on the client's own ids: above the id maps.
    pub(crate) xattrs: Option<&'a XattrMap>,
    pub(crate) access: Access,
    /// The shares with agents in guests, to add this one to if it reports changes, and its name. An
    /// agent is recognised by the user that it claims: above all that maps users.
    pub(crate) agents: Option<(&'a AgentShares, &'a str)>,
    /// Whether requests are logged at level TRACE.
    pub(crate) log_requests: bool,
    /// The log of all calls, and the name of the export in it.
    pub(crate) call_log: Option<(CallLogFile, &'a str)>,
    /// The limits of the share: above all others, which do not see requests that wait.
    pub(crate) limiter: Option<Arc<Limiter>>,
}

/// The policy of access.
#[derive(Default)]
pub(crate) enum Access {
    /// Every client has the access that the source permits.
    #[default]
    Unrestricted,
    /// Terms that do not change while the tree is served.
    Fixed {
        terms: AccessPolicy,
        /// Whether clients may connect over sockets, and not only as devices.
        connected: bool,
    },
    /// Terms that may change, or end.
    Gated(Arc<Gate>),
}

impl Stack<'_> {
    /// Stacks the layers on `fs`. Returns an error if a directory of a layer cannot be used.
    pub(crate) fn wrap(self, mut fs: Arc<dyn FileSystem>) -> Result<Arc<dyn FileSystem>, Failure> {
        if let Some(quota) = self.quota {
            fs = stack(fs, quota);
        }
        if let Some(counters) = self.remote {
            let start = Instant::now();
            fs = stack(
                fs,
                Latency::new(Arc::new(move || start.elapsed()), counters),
            );
        }
        if let Some(cache) = self.disk_cache {
            fs = stack(fs, cache);
        }
        if let Some(trace) = &self.read_trace {
            fs = trace.wrap(fs);
        }
        if let Some((dir, options)) = self.overlay {
            fs = open_overlay(fs, &dir, options)?;
        }
        if let Some(hidden) = self.hidden {
            fs = stack(fs, hidden);
        }
        if let Some(key) = self.seal {
            fs = stack(fs, SealedHandles(key));
        }
        if let Some(pages) = self.page_cache {
            fs = stack(fs, pages);
        }
        if self.owner != OwnerOverride::default() {
            fs = stack(fs, self.owner);
        }
        for ids in self.ids {
            fs = stack(fs, ids.clone());
        }
        if let Some(map) = self.xattrs {
            fs = stack(fs, map.clone());
        }
        fs = self.access.wrap(fs);
        let reports_changes = fs.capabilities().changes != Support::None;
        if let Some((shares, name)) = self.agents.filter(|_| reports_changes) {
            let key = sys::random::bytes().map_err(Failure::new)?;
            let pokes = Pokes::new(key);
            shares.add(name, &fs, pokes.clone());
            fs = stack(fs, pokes);
        }
        if self.log_requests && tracing::enabled!(tracing::Level::TRACE) {
            let start = Instant::now();
            fs = stack(fs, Trace::new(Arc::new(move || start.elapsed())));
        }
        if let Some((log, name)) = self.call_log {
            let (name, start) = (name.to_owned(), Instant::now());
            let write = Box::new(move |event: &Event<'_>| log.write(&name, event));
            fs = stack(fs, CallLog::new(Arc::new(move || start.elapsed()), write));
        }
        if let Some(limiter) = self.limiter {
            fs = stack(fs, limiter);
        }
        Ok(fs)
    }
}

impl Access {
    fn wrap(self, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        let (terms, connected) = match self {
            Access::Unrestricted => return fs,
            Access::Gated(gate) => return stack(fs, gate),
            Access::Fixed { terms, connected } => (terms, connected),
        };
        let squashes = match terms.squash.mode {
            SquashMode::None | SquashMode::RemoteRoot => false,
            SquashMode::Root | SquashMode::All => true,
        };
        if connected || squashes || terms.read_only {
            return stack(fs, terms);
        }
        fs
    }
}

#[cfg(test)]
mod tests {
    use layers::Squash;

    use super::*;

    fn access(mode: SquashMode, connected: bool, read_only: bool) -> Stack<'static> {
        Stack {
            access: Access::Fixed {
                terms: AccessPolicy {
                    squash: Squash::new(mode),
                    read_only,
                    admission: Arc::default(),
                },
                connected,
            },
            ..Stack::default()
        }
    }

    #[test]
    fn a_source_has_no_layer_that_changes_nothing() {
        let now = Arc::new(sources::now);
        let source: Arc<dyn FileSystem> = memory::Memory::new(now);
        let over = |stack: Stack<'_>| {
            let fs = stack.wrap(source.clone());
            fs.unwrap_or_else(|failure| panic!("{failure:?}"))
        };
        let is_source = |stack| Arc::ptr_eq(&over(stack), &source);
        assert!(is_source(Stack::default()));
        assert!(is_source(access(SquashMode::None, false, false)));
        assert!(is_source(access(SquashMode::RemoteRoot, false, false)));
        let shares = AgentShares::default();
        assert!(is_source(Stack {
            agents: Some((&shares, "share")),
            ..Stack::default()
        }));
        assert!(!is_source(access(SquashMode::None, true, false)));
        assert!(!is_source(access(SquashMode::Root, false, false)));
        let read_only = over(access(SquashMode::None, false, true));
        assert!(read_only.capabilities().read_only);
    }
}
