//! Sources behind layers, under names.

use std::str::FromStr;
use std::sync::Arc;

use ::nfs::server::{Listed, Referral};
use block::nbd::Image;
use layers::{Bundle, Clients, Gate, ReadOnly, stack};
use vfs::Export;

use super::opening::{Opened, Opener};
use super::plan::{Plan, Share};
use crate::calls::Recorder;
use crate::source::Source;
use crate::touched::TouchedFile;
use crate::{Failure, seeing};

/// What is served.
pub(super) struct Exports {
    /// Each source, by its name.
    pub(super) each: Vec<Arc<Export>>,
    /// Where the terms of each are that may change, if they may.
    pub(super) gates: Vec<Option<Arc<Gate>>>,
    /// What clients get that name none: the only source, or all of them as directories of one tree.
    pub(super) whole: Arc<Export>,
    /// That tree, if it is one.
    pub(super) bundle: Option<Arc<Bundle>>,
    /// Each source as it was opened, before layers.
    pub(super) sources: Vec<seeing::Source>,
    /// What all calls are written to, if they are.
    pub(super) calls: Option<Recorder>,
    /// Where it is written down what is read.
    pub(super) touched: Vec<Arc<TouchedFile>>,
    /// What clients of NFS are told may be mounted.
    pub(super) listed: Vec<Listed>,
    /// What is elsewhere.
    pub(super) referrals: Vec<Referral>,
    /// The files of sources that are images, by their sources' names, where disks are served.
    pub(super) images: Vec<Image>,
    /// What opens more of them.
    pub(super) opener: Arc<Opener>,
}

/// A line of exports(5), with a source's name for the path: who may use it.
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
    /// The one of this name, or what clients get that name none; `option` asked for it.
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

    /// Whatever has a name of its own, the empty one included: the last is for clients that name none.
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

/// Opens what `plan` names; nobody said where to serve it if `unnamed`.
pub(super) fn open(plan: &Plan, unnamed: bool) -> Result<Exports, Failure> {
    let calls = plan.record_calls.as_deref().map(|path| {
        Recorder::new(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    });
    let calls = calls.transpose()?;
    let names = check(plan)?;
    let opener = Arc::new(Opener::new(plan, unnamed, calls.clone())?);
    let opened = names
        .iter()
        .zip(&plan.shares)
        .map(|(name, share)| opener.open(name, share, of(&plan.lists, name)));
    let opened: Vec<Opened> = opened.collect::<Result<_, _>>()?;
    let referrals = referrals(&plan.shares);
    let each: Vec<_> = opened.iter().map(|opened| opened.export.clone()).collect();
    let (whole, bundle) = match each.as_slice() {
        // A referral is told of by the directory that it is in, and a name of a file may be one of several soon.
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
        listed: listed(&each, &whole, &plan.lists),
        gates: opened.iter().map(|opened| opened.gate.clone()).collect(),
        touched: opened
            .iter()
            .filter_map(|opened| opened.touched.clone())
            .collect(),
        sources: opened.into_iter().map(|opened| opened.seen).collect(),
        images: images(plan, names, &opener)?,
        each,
        whole,
        bundle,
        calls,
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
        let (dir, _) = opener.wrap(dir, &share.layers, of(&plan.lists, &name));
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

/// Each source, and the tree of all of them, which is for everybody.
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

/// For whom the source of this name is.
pub(super) fn of<'a>(lists: &'a [ClientList], name: &str) -> Option<&'a Arc<Clients>> {
    let list = lists.iter().find(|list| list.name == name);
    list.map(|list| &list.clients)
}

/// The name of each share. Each list is one's, and each has one list at most.
pub(super) fn check(plan: &Plan) -> Result<Vec<String>, Failure> {
    let (names, lists) = (names(&plan.shares)?, &plan.lists);
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

/// A name for each source: the only one may go without.
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
