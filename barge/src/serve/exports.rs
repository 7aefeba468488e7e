//! Sources behind layers, under names.

use std::sync::Arc;
use std::time::Instant;

use layers::squash::Whom;
use layers::{IdMap, IdRange, MapIds, ReadOnly, Trace, stack};
use vfs::{Export, FileSystem};

use super::args::ServeArgs;
use crate::Failure;
use crate::source::{Named, Source};

/// Opens what `args` name.
pub(super) fn open(args: &ServeArgs) -> Result<Vec<Arc<Export>>, Failure> {
    let current = [Named {
        name: None,
        source: Source::HostDir(".".into()),
    }];
    let (sources, read_only) = match args.sources.as_slice() {
        [] => (&current[..], true),
        sources => (sources, args.read_only),
    };
    let names = names(sources)?;
    let share = usize::try_from(sys::limits::descriptors() / 4 * 3).unwrap_or(usize::MAX);
    let options = hostdir::Options {
        identity: args.identity(),
        descriptors: Some(share / sources.len()),
        ..Default::default()
    };
    names
        .into_iter()
        .zip(sources)
        .map(|(name, source)| {
            let fs = source.source.open(options.clone())?;
            Ok(Arc::new(Export::new(name, wrap(fs, args, read_only)?)))
        })
        .collect()
}

/// The layers that `args` ask for, from the source up to the client.
fn wrap(
    mut fs: Arc<dyn FileSystem>,
    args: &ServeArgs,
    read_only: bool,
) -> Result<Arc<dyn FileSystem>, Failure> {
    if let Some(map) = &args.xattrmap {
        fs = stack(fs, map.clone());
    }
    if !args.map_uid.is_empty() || !args.map_gid.is_empty() {
        let (uids, gids) = (id_map(&args.map_uid)?, id_map(&args.map_gid)?);
        fs = stack(fs, MapIds { uids, gids });
    }
    let squash = args.squash();
    if squash.whom != Whom::None {
        fs = stack(fs, squash);
    }
    if read_only {
        fs = stack(fs, ReadOnly);
    }
    if tracing::enabled!(tracing::Level::TRACE) {
        let start = Instant::now();
        fs = stack(fs, Trace::new(Arc::new(move || start.elapsed())));
    }
    Ok(fs)
}

/// No ranges leave ids as they are.
fn id_map(ranges: &[IdRange]) -> Result<IdMap, Failure> {
    match ranges {
        [] => Ok(IdMap::identity()),
        ranges => IdMap::new(ranges.to_vec()).map_err(Failure::usage),
    }
}

/// A name for each source: the only one may go without.
fn names(sources: &[Named]) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = Vec::new();
    for source in sources {
        let name = match &source.name {
            Some(name) => name.clone(),
            None if sources.len() == 1 => String::new(),
            None => {
                return Err(Failure::usage(format!(
                    "several sources need names: expected NAME={0}, got {0}",
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
