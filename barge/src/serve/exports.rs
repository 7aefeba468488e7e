//! The exports of a server: layered sources with names.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use block::nbd::Image;
use layers::{Bundle, Clients, Gate, Limiter};
use nfs::server::Locations;
use vfs::Export;

use super::args::access::ClientList;
use super::awaited::{self, AwaitedTree};
use super::host::Host;
use super::opener::{
    AwaitedShare, ExportRequirements, OpenedShare, Opener, OpeningShare, warn_of_local_locks,
};
use super::share::{Share, Sources};
use crate::call_log::CallLogFile;
use crate::read_trace::TraceFile;
use crate::source::Source;
use crate::{Failure, status};

/// All exports of a server.
pub(super) struct Exports {
    /// Each source, with its name.
    pub(super) shares: Vec<Arc<Export>>,
    /// The gate of each source, if its terms may change.
    pub(super) gates: Vec<Option<Arc<Gate>>>,
    /// The limits of each source, if there are any or they may change.
    pub(super) limiters: Vec<Option<Arc<Limiter>>>,
    /// Each source, if it was not open when the server started.
    pub(super) awaited: Vec<Option<Arc<AwaitedShare>>>,
    /// The export of clients that name none: the only source, or a tree with all sources as
    /// directories.
    pub(super) default: Arc<Export>,
    /// The tree of `whole`, if it has several sources.
    pub(super) bundle: Option<Arc<Bundle>>,
    /// Each source as it was opened, before layers, for the status page.
    pub(super) sources: Arc<status::ObservedSources>,
    /// The clients that may use each source.
    pub(super) client_lists: Vec<ClientList>,
    /// The log of all calls, if one is written.
    pub(super) call_log: Option<CallLogFile>,
    /// The read traces that are written.
    pub(super) traces: Vec<Arc<TraceFile>>,
    /// Referrals to other servers.
    pub(super) referrals: Vec<Locations>,
    /// The image files of sources that are images, by the names of the sources; empty unless disks
    /// are served.
    pub(super) images: Vec<Image>,
    /// Opens further shares at a reload.
    pub(super) opener: Arc<Opener>,
}

impl Exports {
    /// Returns the source called `name`, or the default export without a name. `option` is for the
    /// error message.
    pub(super) fn named(&self, name: Option<&str>, option: &str) -> Result<Arc<Export>, Failure> {
        let Some(name) = name else {
            return Ok(self.default.clone());
        };
        let found = self.shares.iter().find(|export| export.name == name);
        found.cloned().ok_or_else(|| {
            Failure::usage(format!(
                "{option} {name}=: expected the name of a source, got '{name}'"
            ))
        })
    }

    /// Returns the exports that clients can choose from.
    pub(super) fn catalog(&self) -> Catalog<'_> {
        Catalog {
            shares: &self.shares,
            default: &self.default,
            client_lists: &self.client_lists,
        }
    }

    /// Drops the references to single sources. Those of a source that a reload removes are closed
    /// once no client uses them.
    pub(super) fn release(&mut self) {
        self.shares.clear();
        self.gates.clear();
        self.limiters.clear();
        self.awaited.clear();
    }
}

/// The exports that clients can choose from; a reload may change them.
pub(super) struct Catalog<'a> {
    pub(super) shares: &'a [Arc<Export>],
    /// See [`Exports::default`].
    pub(super) default: &'a Arc<Export>,
    pub(super) client_lists: &'a [ClientList],
}

impl Catalog<'_> {
    /// Returns whether the default export is a tree of several sources.
    pub(super) fn is_bundle(&self) -> bool {
        !self
            .shares
            .iter()
            .any(|export| Arc::ptr_eq(export, self.default))
    }

    /// Returns all exports with distinct names, the empty name included; the last is the default
    /// export.
    pub(super) fn list(&self) -> Vec<Arc<Export>> {
        let mut list = self.shares.to_vec();
        if self.is_bundle() {
            list.push(self.default.clone());
        }
        list
    }
}

/// Opens `sources` as `demands` require, with logs in files of `host`.
pub(super) fn open(
    sources: &Sources,
    demands: ExportRequirements,
    host: &Host,
) -> Result<Exports, Failure> {
    let call_log = sources.record_calls.as_deref().map(|path| {
        let file = host.create(path);
        file.map(CallLogFile::new)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    });
    let call_log = call_log.transpose()?;
    let names = check(sources)?;
    let serves_images = demands.images;
    let opener = Arc::new(Opener::new(sources, demands, call_log.clone(), host)?);
    let opening = names.iter().zip(&sources.shares).map(|(name, share)| {
        let clients = clients_of(&sources.client_lists, name);
        opener.begin(name, share, clients, host)
    });
    let opening: Vec<OpeningShare> = opening.collect::<Result<_, _>>()?;
    let first_failure = wait(&opening, Instant::now() + awaited::TIMEOUT);
    if !host.serves_without_sources()
        && let Some(failure) = first_failure
    {
        return Err(failure);
    }
    let opened: Vec<OpenedShare> = opening.into_iter().map(OpeningShare::serve).collect();
    let referrals = referrals(&sources.shares);
    let each: Vec<_> = opened.iter().map(|opened| opened.export.clone()).collect();
    let (whole, bundle) = match each.as_slice() {
        // A referral needs a parent directory, and shares may be added to the named share of a
        // configuration file.
        [only] if referrals.is_empty() && (only.name.is_empty() || !sources.reloadable) => {
            (only.clone(), None)
        }
        several => {
            let bundle = Bundle::new(several, sources::now()).map_err(Failure::usage)?;
            let hands_over = several.iter().all(|export| export.fd_passing);
            let whole = Export::new("", bundle.clone()).with_fd_passing(hands_over);
            let whole = whole.with_local_locks_warning(warn_of_local_locks);
            (Arc::new(whole), Some(bundle))
        }
    };
    let images = match serves_images {
        true => images(sources, &opener, |name| {
            let opened = opened.iter().find(|one| one.export.name == name);
            opened.and_then(|one| one.limiter.clone())
        }),
        false => Vec::new(),
    };
    Ok(Exports {
        gates: opened.iter().map(|opened| opened.gate.clone()).collect(),
        limiters: opened.iter().map(|it| it.limiter.clone()).collect(),
        traces: opened
            .iter()
            .filter_map(|opened| opened.trace.clone())
            .collect(),
        awaited: opened.iter().map(|opened| opened.awaited.clone()).collect(),
        sources: Arc::new(status::ObservedSources::new(
            opened.into_iter().map(|opened| opened.unlayered).collect(),
        )),
        client_lists: sources.client_lists.clone(),
        images,
        shares: each,
        default: whole,
        bundle,
        call_log,
        referrals,
        opener,
    })
}

/// Waits until `deadline` for the sources of `shares` to open. Returns the first failure if all of
/// them have failed, or if options are wrong.
fn wait(shares: &[OpeningShare], deadline: Instant) -> Option<Failure> {
    let failures = shares.iter().map(|share| share.wait(deadline).err());
    let failures: Vec<Option<Option<Failure>>> = failures.collect();
    let have_all_failed = failures
        .iter()
        .all(|failure| matches!(failure, Some(Some(_))));
    let mut failures = failures.into_iter().flatten().flatten();
    failures.find(|failure| have_all_failed || failure.status == Failure::USAGE)
}

/// Returns the image files of those of `sources` that are images. `limiter` returns the limits of a
/// share.
pub(super) fn images(
    sources: &Sources,
    opener: &Arc<Opener>,
    limiter: impl Fn(&str) -> Option<Arc<Limiter>>,
) -> Vec<Image> {
    let images = sources.shares.iter().filter(|share| {
        let here = share.source_here();
        here.tree().is_some_and(|tree| tree.image().is_some())
    });
    let opening = images.map(|share| {
        let name = share.named.name.clone().unwrap_or_default();
        let clients = clients_of(&sources.client_lists, &name);
        let limiter = limiter(&name);
        let file = opener.begin_image(&name, share, clients, limiter);
        (name, file)
    });
    let opening: Vec<_> = opening.collect();
    let deadline = Instant::now() + awaited::TIMEOUT;
    let image = |(name, file): (String, Arc<AwaitedTree>)| Image {
        name: name.into_bytes(),
        export: Arc::new(Export::new("", file.wait(deadline).unwrap_or(file))),
        // The root is the file.
        path: Vec::new(),
    };
    opening.into_iter().map(image).collect()
}

fn referrals(shares: &[Share]) -> Vec<Locations> {
    let referral = |share: &Share| match &share.named.source {
        Source::Referral(location) => Some(Locations {
            name: share.named.name.clone()?,
            locations: vec![location.clone()],
        }),
        _ => None,
    };
    shares.iter().filter_map(referral).collect()
}

/// Returns the clients that may use the source called `name`, or `None` if all may.
pub(super) fn clients_of<'a>(lists: &'a [ClientList], name: &str) -> Option<&'a Arc<Clients>> {
    let list = lists.iter().find(|list| list.name == name);
    list.map(|list| &list.clients)
}

/// Returns the name of each share. Fails if a list is for no share, or if a share has two lists.
pub(super) fn check(sources: &Sources) -> Result<Vec<String>, Failure> {
    let names = names(&sources.shares)?;
    check_lists(&names, &sources.client_lists)?;
    Ok(names)
}

/// Returns an error if one of `lists` is for none of the shares `names`, or if a share has two.
pub(super) fn check_lists(names: &[impl AsRef<str>], lists: &[ClientList]) -> Result<(), Failure> {
    let known: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
    let mut listed = HashSet::new();
    for ClientList { name, .. } in lists {
        if !known.contains(&**name) {
            let names = names.iter().map(|name| format!("'/{}'", name.as_ref()));
            let names: Vec<_> = names.collect();
            return Err(Failure::usage(format!(
                "--export: expected {}, got '/{name}'",
                names.join(" or ")
            )));
        }
        if !listed.insert(name) {
            return Err(Failure::usage(format!(
                "--export: expected one line for '/{name}', got two"
            )));
        }
    }
    Ok(())
}

/// Returns a name for each source. Only a single source may be without one.
fn names(shares: &[Share]) -> Result<Vec<String>, Failure> {
    let (mut names, mut known) = (Vec::new(), HashSet::new());
    for Share { named: source, .. } in shares {
        let name = match &source.name {
            Some(name) => name.clone(),
            None if shares.len() == 1 && !matches!(source.source, Source::Referral(_)) => {
                String::new()
            }
            None => {
                return Err(Failure::usage(format!(
                    "several sources, and referrals, need names: expected NAME={0}, got {0}",
                    source.source.shown()
                )));
            }
        };
        if !known.insert(name.clone()) {
            return Err(Failure::usage(format!("two sources are named '{name}'")));
        }
        names.push(name);
    }
    Ok(names)
}
