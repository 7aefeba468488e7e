//! Opens planned shares: sources, layers and exports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use layers::gate::Terms;
use layers::record::Event;
use layers::squash::Whom;
use layers::{Clients, Gate, ReadOnly, Record, Sealed, Trace, stack};
use transports::Addr;
use vfs::{Export, FileSystem, HandleKey, Level};

use super::plan::{Layers, Plan, Share};
use super::recovery::names_file;
use super::{handle_key, nfs};
use crate::calls::Recorder;
use crate::source::{Source, overlaid};
use crate::touched::TouchedFile;
use crate::{Failure, seeing};

/// Minimum number of shares to divide descriptors by if a configuration file can add shares.
const ROOM: usize = 16;

/// Opens shares with the options that all of them have in common.
pub(super) struct Opener {
    /// The state directory of NFS, and the address that identifies this server in it.
    known_by: Option<(Option<PathBuf>, Addr)>,
    /// The secret that the keys for sealed handles derive from; only with NFS.
    secret: Option<HandleKey>,
    calls: Option<Recorder>,
    kernel_handles: bool,
    /// Descriptors per source.
    descriptors: usize,
    /// Whether the terms of a share may change.
    gated: bool,
    /// Whether clients of other hosts may connect.
    networked: bool,
}

/// An opened share.
pub(super) struct Opened {
    pub(super) export: Arc<Export>,
    /// The gate with the terms, if they may change.
    pub(super) gate: Option<Arc<Gate>>,
    /// The source as it was opened, before layers, for the status page.
    pub(super) seen: seeing::Source,
    /// The read trace, if one is written.
    pub(super) touched: Option<Arc<TouchedFile>>,
}

impl Opener {
    /// Prepares to open the shares of `plan`. `unnamed` says that no address was given.
    pub(super) fn new(
        plan: &Plan,
        unnamed: bool,
        calls: Option<Recorder>,
    ) -> Result<Opener, Failure> {
        let nfs = plan.nfs.as_ref();
        let known_by = nfs.and_then(|nfs| {
            let addr = nfs::known_addr(nfs, unnamed)?;
            Some((nfs.state_dir.clone(), addr))
        });
        let secret = match &known_by {
            Some((dir, addr)) => Some(handle_key::of_server(dir.as_deref(), addr)?),
            None => None,
        };
        let gated = plan.file.is_some();
        let shares = match gated {
            true => plan.shares.len().max(ROOM),
            false => plan.shares.len(),
        };
        // A connection uses one descriptor, and another one while requests wait.
        let all = usize::try_from(sys::limits::descriptors()).unwrap_or(usize::MAX);
        let connections = plan.tuning.connections.min(all / 2);
        let descriptors = (all / 4 * 3).min(all - connections);
        Ok(Opener {
            known_by,
            secret,
            calls,
            kernel_handles: plan.kernel_handles,
            descriptors: descriptors / shares,
            gated,
            networked: unnamed || plan.is_networked(),
        })
    }

    /// Opens `share` under `name` for `clients`, or for all clients.
    pub(super) fn open(
        &self,
        name: &str,
        share: &Share,
        clients: Option<&Arc<Clients>>,
    ) -> Result<Opened, Failure> {
        let source = &share.named.source;
        let names = match (source, &self.known_by) {
            (Source::Tree(barge_client::Source::HostDir(_)), Some((dir, addr))) => {
                names_file(dir.as_deref(), addr, name)
            }
            _ => None,
        };
        let secret = self.secret.as_ref();
        let key = secret.map(|secret| secret.derive("export", &[name.as_bytes()]));
        let options = hostdir::Options {
            descriptors: Some(self.descriptors),
            key: key.clone(),
            ..share.hostdir.clone()
        };
        let mut fs = source.open(hostdir::Options {
            handle_index: names,
            ..options.clone()
        })?;
        let seen = seeing::Source {
            name: name.to_owned(),
            source: source.to_string(),
            cache: seeing::SourceCache::Image(fs.clone()),
        };
        let touched = share.record.as_deref();
        let touched = touched.map(TouchedFile::create).transpose()?;
        if let Some(touched) = &touched {
            fs = touched.over(fs);
        }
        let seals = match (&share.overlay, source) {
            (Some(dir), _) => {
                fs = overlaid(fs, dir, options)?;
                true
            }
            (None, source) => matches!(source, Source::Tree(barge_client::Source::HostDir(_))),
        };
        if let Some(key) = key.filter(|_| !seals) {
            fs = stack(fs, Sealed(key));
        }
        if self.kernel_handles && fs.capabilities().handles != Level::Native {
            return Err(Failure::usage(format!(
                "{source}: expected a file system with handles and CAP_DAC_READ_SEARCH, as handles are mandatory"
            )));
        }
        let (mut fs, gate) = self.wrap(fs, &share.layers, clients);
        if let Some(calls) = &self.calls {
            let (calls, name, start) = (calls.clone(), name.to_owned(), Instant::now());
            let take = Box::new(move |event: &Event<'_>| calls.write(&name, event));
            fs = stack(fs, Record::new(Arc::new(move || start.elapsed()), take));
        }
        Ok(Opened {
            export: Arc::new(Export::new(name, fs).handing_over(share.hands_over)),
            gate,
            seen,
            touched,
        })
    }

    /// Stacks the layers of a share on `fs`. Also returns the gate, if the terms may change.
    pub(super) fn wrap(
        &self,
        mut fs: Arc<dyn FileSystem>,
        layers: &Layers,
        clients: Option<&Arc<Clients>>,
    ) -> (Arc<dyn FileSystem>, Option<Arc<Gate>>) {
        for ids in &layers.ids {
            fs = stack(fs, ids.clone());
        }
        // The right to use an attribute's name depends on the client's own ids: above the id maps.
        if let Some(map) = &layers.xattrs {
            fs = stack(fs, map.clone());
        }
        let terms = terms(layers, clients);
        let gate = self.gated.then(|| Arc::new(Gate::new(terms.clone())));
        match &gate {
            Some(gate) => fs = stack(fs, gate.clone()),
            None => {
                let squashes = match terms.squash.whom {
                    Whom::None => false,
                    Whom::RemoteRoot => self.networked,
                    Whom::Root | Whom::All => true,
                };
                if squashes {
                    fs = stack(fs, terms.squash);
                }
                if terms.read_only {
                    fs = stack(fs, ReadOnly);
                }
                if let Some(clients) = terms.clients {
                    fs = stack(fs, clients);
                }
            }
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            let start = Instant::now();
            fs = stack(fs, Trace::new(Arc::new(move || start.elapsed())));
        }
        (fs, gate)
    }
}

/// Returns the terms of a share. With a list of clients, the list instead of the default says for
/// each client whether its super-user is squashed.
pub(super) fn terms(layers: &Layers, clients: Option<&Arc<Clients>>) -> Terms {
    let mut terms = layers.terms.clone();
    if clients.is_some() && terms.squash.whom == Whom::RemoteRoot {
        terms.squash.whom = Whom::None;
    }
    Terms {
        clients: clients.cloned(),
        ..terms
    }
}
