//! Sources behind layers, under names.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use ::nfs::server::{Listed, Referral};
use block::nbd::Image;
use layers::record::Event;
use layers::squash::Whom;
use layers::{Bundle, Clients, ReadOnly, Record, Trace, stack};
use vfs::{Export, FileSystem, Level};

use super::nfs;
use super::plan::{Layers, Plan};
use super::recovery::names_file;
use crate::calls::Recorder;
use crate::source::{Named, Source, overlaid};
use crate::{Failure, seeing};

/// What is served.
pub(super) struct Exports {
    /// Each source, by its name.
    pub(super) each: Vec<Arc<Export>>,
    /// What clients get that name none: the only source, or all of them as directories of one tree.
    pub(super) whole: Arc<Export>,
    /// Each source as it was opened, before layers.
    pub(super) sources: Vec<seeing::Source>,
    /// What all calls are written to, if they are.
    pub(super) trace: Option<Recorder>,
    /// What clients of NFS are told may be mounted.
    pub(super) listed: Vec<Listed>,
    /// What is elsewhere.
    pub(super) referrals: Vec<Referral>,
    /// The files of sources that are images, by their sources' names, where disks are served.
    pub(super) images: Vec<Image>,
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
        let mut list = self.each.clone();
        if list.len() > 1 || !self.referrals.is_empty() {
            list.push(self.whole.clone());
        }
        list
    }
}

/// Opens what `plan` names; nobody said where to serve it if `unnamed`.
pub(super) fn open(plan: &Plan, unnamed: bool) -> Result<Exports, Failure> {
    let trace = plan.trace.as_deref().map(|path| {
        Recorder::new(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    });
    let trace = trace.transpose()?;
    let mut sources = Vec::new();
    let names = names(&plan.sources)?;
    let each = open_each(plan, &names, unnamed, trace.as_ref(), &mut sources)?;
    let referrals = referrals(&plan.sources);
    let whole = match each.as_slice() {
        // A referral is told of by the directory that it is in.
        [only] if referrals.is_empty() => only.clone(),
        several => {
            let bundle =
                Bundle::new(several, barge_client::source::now()).map_err(Failure::usage)?;
            Arc::new(Export::new("", bundle))
        }
    };
    let listed = listed(&each, &whole, &plan.lists);
    Ok(Exports {
        each,
        whole,
        sources,
        trace,
        listed,
        referrals,
        images: images(plan, names)?,
    })
}

fn images(plan: &Plan, names: Vec<String>) -> Result<Vec<Image>, Failure> {
    let mut images = Vec::new();
    if plan.block.is_empty() {
        return Ok(images);
    }
    for (name, Named { source, .. }) in names.into_iter().zip(&plan.sources) {
        let Source::Tree(tree) = source else {
            continue;
        };
        let Some(image) = tree.image() else {
            continue;
        };
        let (file, _) = image.file().map_err(Failure::new)?;
        let dir = barge_client::Source::HostDir(file.to_owned());
        let (dir, path) = dir.find().map_err(Failure::new)?;
        let dir = wrap(stack(dir, ReadOnly), &plan.layers, of(&plan.lists, &name));
        images.push(Image {
            name: name.into_bytes(),
            export: Arc::new(Export::new("", dir)),
            path,
        });
    }
    Ok(images)
}

fn referrals(sources: &[Named]) -> Vec<Referral> {
    let referral = |named: &Named| match &named.source {
        Source::Referral { path, hosts } => Some(Referral {
            name: named.name.clone()?,
            path: path.clone(),
            hosts: hosts.clone(),
        }),
        _ => None,
    };
    sources.iter().filter_map(referral).collect()
}

/// Each source, and the tree of all of them, which is for everybody.
fn listed(each: &[Arc<Export>], whole: &Arc<Export>, lists: &[ClientList]) -> Vec<Listed> {
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

fn of<'a>(lists: &'a [ClientList], name: &str) -> Option<&'a Arc<Clients>> {
    let list = lists.iter().find(|list| list.name == name);
    list.map(|list| &list.clients)
}

/// Each list is a source's, and each source has one at most.
fn check(lists: &[ClientList], names: &[String]) -> Result<(), Failure> {
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
    Ok(())
}

fn open_each(
    plan: &Plan,
    names: &[String],
    unnamed: bool,
    trace: Option<&Recorder>,
    sources: &mut Vec<seeing::Source>,
) -> Result<Vec<Arc<Export>>, Failure> {
    check(&plan.lists, names)?;
    let share = usize::try_from(sys::limits::descriptors() / 4 * 3).unwrap_or(usize::MAX);
    let options = hostdir::Options {
        descriptors: Some(share / plan.sources.len()),
        ..plan.hostdir.clone()
    };
    let nfs = plan.nfs.as_ref();
    let known_by = nfs.and_then(|nfs| Some((nfs, nfs::known_addr(nfs, unnamed)?)));
    names
        .iter()
        .zip(&plan.sources)
        .map(|(name, Named { source, .. })| {
            let names = match (source, &known_by) {
                (Source::Tree(barge_client::Source::HostDir(_)), Some((nfs, addr))) => {
                    names_file(nfs.state_dir.as_deref(), addr, name)
                }
                _ => None,
            };
            let mut fs = source.open(hostdir::Options {
                names,
                ..options.clone()
            })?;
            sources.push(seeing::Source {
                name: name.clone(),
                source: source.to_string(),
                cache: seeing::SourceCache::Image(fs.clone()),
            });
            if let Some(touched) = &plan.touched {
                fs = touched.over(fs);
            }
            if let Some(dir) = &plan.overlay {
                fs = overlaid(fs, dir, options.clone())?;
            }
            if plan.kernel_handles && fs.capabilities().handles != Level::Native {
                return Err(Failure::usage(format!(
                    "{source}: expected a file system with handles and CAP_DAC_READ_SEARCH, as handles are mandatory"
                )));
            }
            let clients = of(&plan.lists, name);
            let mut fs = wrap(fs, &plan.layers, clients);
            if let Some(trace) = trace {
                let (trace, name, start) = (trace.clone(), name.clone(), Instant::now());
                let take = Box::new(move |event: &Event<'_>| trace.write(&name, event));
                fs = stack(fs, Record::new(Arc::new(move || start.elapsed()), take));
            }
            Ok(Arc::new(Export::new(name.as_str(), fs)))
        })
        .collect()
}

fn wrap(
    mut fs: Arc<dyn FileSystem>,
    layers: &Layers,
    clients: Option<&Arc<Clients>>,
) -> Arc<dyn FileSystem> {
    for ids in &layers.ids {
        fs = stack(fs, ids.clone());
    }
    // Who may do what with a client's name goes by its own ids.
    if let Some(map) = &layers.xattrs {
        fs = stack(fs, map.clone());
    }
    if layers.squash.whom != Whom::None {
        fs = stack(fs, layers.squash);
    }
    if layers.read_only {
        fs = stack(fs, ReadOnly);
    }
    if let Some(clients) = clients {
        fs = stack(fs, clients.clone());
    }
    if tracing::enabled!(tracing::Level::TRACE) {
        let start = Instant::now();
        fs = stack(fs, Trace::new(Arc::new(move || start.elapsed())));
    }
    fs
}

/// A name for each source: the only one may go without.
fn names(sources: &[Named]) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = Vec::new();
    for source in sources {
        let name = match &source.name {
            Some(name) => name.clone(),
            None if sources.len() == 1 && !matches!(source.source, Source::Referral { .. }) => {
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
