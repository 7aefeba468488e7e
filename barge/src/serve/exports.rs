//! The exports of a server: layered sources with names.

use std::str::FromStr;
use std::sync::Arc;

use ::nfs::server::{Listed, Referral};
use block::nbd::Image;
use layers::{Bundle, Clients, Gate, ReadOnly, stack};
use vfs::Export;

use super::opening::{Opened, Opener};
use super::plan::{Plan, Share};
use crate::call_log::CallLogFile;
use crate::read_trace::TraceFile;
use crate::source::Source;
use crate::{Failure, status};

/// All exports of a server.
pub(super) struct Exports {
    /// Each source, with its name.
    pub(super) each: Vec<Arc<Export>>,
    /// The gate of each source, if its terms may change.
    pub(super) gates: Vec<Option<Arc<Gate>>>,
    /// The export of clients that name none: the only source, or a tree with all sources as
    /// directories.
    pub(super) whole: Arc<Export>,
    /// The tree of `whole`, if it has several sources.
    pub(super) bundle: Option<Arc<Bundle>>,
    /// Each source as it was opened, before layers, for the status page.
    pub(super) sources: Vec<status::Source>,
    /// The log of all calls, if one is written.
    pub(super) call_log: Option<CallLogFile>,
    /// The read traces that are written.
    pub(super) traces: Vec<Arc<TraceFile>>,
    /// The exports that NFS clients see in listings (MOUNT's EXPORT).
    pub(super) listed: Vec<Listed>,
    /// Referrals to other servers.
    pub(super) referrals: Vec<Referral>,
    /// The image files of sources that are images, by the names of the sources; empty unless disks
    /// are served.
    pub(super) images: Vec<Image>,
    /// Opens further shares at a reload.
    pub(super) opener: Arc<Opener>,
}

/// A line of exports(5) with a source's name in place of the path.
#[derive(Clone, Debug)]
pub(super) struct ClientList {
    name: String,
    clients: Arc<Clients>,
}

impl FromStr for ClientList {
    type Err = String;

    fn from_str(line: &str) -> Result<ClientList, String> {
        let line = line.trim();
        let (name, clients) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("expected NAME CLIENT(OPTIONS), got '{line}'"))?;
        let clients: Clients = clients.parse().map_err(|error| format!("{error}"))?;
        Ok(ClientList {
            name: name.trim_start_matches('/').into(),
            clients: Arc::new(clients),
        })
    }
}

impl Exports {
    /// Returns the source called `name`, or the default export without a name. `option` is for the
    /// error message.
    pub(super) fn named(&self, name: Option<&str>, option: &str) -> Result<Arc<Export>, Failure> {
        let Some(name) = name else {
            return Ok(self.whole.clone());
        };
        let found = self.each.iter().find(|export| export.name == name);
        found.cloned().ok_or_else(|| {
            Failure::usage(format!(
                "{option} {name}=: expected the name of a source, got '{name}'"
            ))
        })
    }

    /// Returns all exports with distinct names, the empty name included; the last is the default
    /// export.
    pub(super) fn list(&self) -> Vec<Arc<Export>> {
        list(&self.each, &self.whole)
    }
}

/// See [`Exports::list`].
pub(super) fn list(each: &[Arc<Export>], whole: &Arc<Export>) -> Vec<Arc<Export>> {
    let mut list = each.to_vec();
    if !each.iter().any(|export| Arc::ptr_eq(export, whole)) {
        list.push(whole.clone());
    }
    list
}

/// Opens the sources of `plan`. `unnamed` says that no address was given.
pub(super) fn open(plan: &Plan, unnamed: bool) -> Result<Exports, Failure> {
    let call_log = plan.record_calls.as_deref().map(|path| {
        CallLogFile::new(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    });
    let call_log = call_log.transpose()?;
    let names = check(plan)?;
    let opener = Arc::new(Opener::new(plan, unnamed, call_log.clone())?);
    let opened = names
        .iter()
        .zip(&plan.shares)
        .map(|(name, share)| opener.open(name, share, of(&plan.client_lists, name)));
    let opened: Vec<Opened> = opened.collect::<Result<_, _>>()?;
    let referrals = referrals(&plan.shares);
    let each: Vec<_> = opened.iter().map(|opened| opened.export.clone()).collect();
    let (whole, bundle) = match each.as_slice() {
        // A referral needs a parent directory, and shares may be added to the named share of a
        // configuration file.
        [only] if referrals.is_empty() && (only.name.is_empty() || plan.file.is_none()) => {
            (only.clone(), None)
        }
        several => {
            let bundle =
                Bundle::new(several, barge_client::source::now()).map_err(Failure::usage)?;
            let hands_over = several.iter().all(|export| export.hands_over);
            let whole = Export::new("", bundle.clone()).handing_over(hands_over);
            (Arc::new(whole), Some(bundle))
        }
    };
    Ok(Exports {
        listed: listed(&each, &whole, &plan.client_lists),
        gates: opened.iter().map(|opened| opened.gate.clone()).collect(),
        traces: opened
            .iter()
            .filter_map(|opened| opened.trace.clone())
            .collect(),
        sources: opened.into_iter().map(|opened| opened.seen).collect(),
        images: images(plan, names, &opener)?,
        each,
        whole,
        bundle,
        call_log,
        referrals,
        opener,
    })
}

fn images(plan: &Plan, names: Vec<String>, opener: &Opener) -> Result<Vec<Image>, Failure> {
    let mut images = Vec::new();
    if plan.block.is_empty() {
        return Ok(images);
    }
    for (name, share) in names.into_iter().zip(&plan.shares) {
        let Source::Tree(tree) = &share.named.source else {
            continue;
        };
        let Some(image) = tree.image() else {
            continue;
        };
        let (file, _) = image.file().map_err(Failure::new)?;
        let dir = barge_client::Source::HostDir(file.to_owned());
        let (dir, path) = dir.find().map_err(Failure::new)?;
        let dir = stack(dir, ReadOnly);
        let (dir, _) = opener.wrap(dir, &share.layers, of(&plan.client_lists, &name));
        images.push(Image {
            name: name.into_bytes(),
            export: Arc::new(Export::new("", dir)),
            path,
        });
    }
    Ok(images)
}

pub(super) fn referrals(shares: &[Share]) -> Vec<Referral> {
    let referral = |share: &Share| match &share.named.source {
        Source::Referral { path, hosts } => Some(Referral {
            name: share.named.name.clone()?,
            path: path.clone(),
            hosts: hosts.clone(),
        }),
        _ => None,
    };
    shares.iter().filter_map(referral).collect()
}

/// Returns each source for listings, and the tree of all sources, which is open to all clients.
pub(super) fn listed(
    each: &[Arc<Export>],
    whole: &Arc<Export>,
    lists: &[ClientList],
) -> Vec<Listed> {
    let several = !each.iter().any(|export| Arc::ptr_eq(export, whole));
    let whole = several.then(|| Listed {
        path: "/".into(),
        clients: Vec::new(),
    });
    let each = each.iter().map(|export| Listed {
        path: format!("/{}", export.name),
        clients: of(lists, &export.name)
            .iter()
            .flat_map(|list| list.entries())
            .map(|entry| entry.pattern.to_string())
            .collect(),
    });
    whole.into_iter().chain(each).collect()
}

/// Returns the clients that may use the source called `name`, or `None` if all may.
pub(super) fn of<'a>(lists: &'a [ClientList], name: &str) -> Option<&'a Arc<Clients>> {
    let list = lists.iter().find(|list| list.name == name);
    list.map(|list| &list.clients)
}

/// Returns the name of each share. Fails if a list is for no share, or if a share has two lists.
pub(super) fn check(plan: &Plan) -> Result<Vec<String>, Failure> {
    let (names, lists) = (names(&plan.shares)?, &plan.client_lists);
    for (at, ClientList { name, .. }) in lists.iter().enumerate() {
        if !names.contains(name) {
            let known = names.iter().map(|name| format!("'/{name}'"));
            let known: Vec<_> = known.collect();
            return Err(Failure::usage(format!(
                "--export: expected {}, got '/{name}'",
                known.join(" or ")
            )));
        }
        if of(&lists[..at], name).is_some() {
            return Err(Failure::usage(format!(
                "--export: expected one line for '/{name}', got two"
            )));
        }
    }
    Ok(names)
}

/// Returns a name for each source. Only a single source may be without one.
fn names(shares: &[Share]) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = Vec::new();
    for Share { named: source, .. } in shares {
        let name = match &source.name {
            Some(name) => name.clone(),
            None if shares.len() == 1 && !matches!(source.source, Source::Referral { .. }) => {
                String::new()
            }
            None => {
                return Err(Failure::usage(format!(
                    "several sources, and referrals, need names: expected NAME={0}, got {0}",
                    source.source
                )));
            }
        };
        if names.contains(&name) {
            return Err(Failure::usage(format!("two sources are named '{name}'")));
        }
        names.push(name);
    }
    Ok(names)
}
