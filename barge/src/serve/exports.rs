//! Sources behind layers, under names.

use std::sync::Arc;
use std::time::Instant;

use layers::squash::Whom;
use layers::{Bundle, ReadOnly, Trace, stack};
use vfs::{Export, FileSystem, Level};

use super::plan::{Layers, Plan};
use crate::Failure;
use crate::source::{self, Named};

/// What is served.
pub(super) struct Exports {
    /// Each source, by its name.
    pub(super) each: Vec<Arc<Export>>,
    /// What clients get that name none: the only source, or all of them as directories of one tree.
    pub(super) whole: Arc<Export>,
}

impl Exports {
    /// Whatever has a name of its own, the empty one included: the last is for clients that name none.
    pub(super) fn list(&self) -> Vec<Arc<Export>> {
        let mut list = self.each.clone();
        if list.len() > 1 {
            list.push(self.whole.clone());
        }
        list
    }
}

/// Opens what `plan` names.
pub(super) fn open(plan: &Plan) -> Result<Exports, Failure> {
    let each = open_each(plan)?;
    let whole = match each.as_slice() {
        [only] => only.clone(),
        several => {
            let bundle = Bundle::new(several, source::now()).map_err(Failure::usage)?;
            Arc::new(Export::new("", bundle))
        }
    };
    Ok(Exports { each, whole })
}

fn open_each(plan: &Plan) -> Result<Vec<Arc<Export>>, Failure> {
    let names = names(&plan.sources)?;
    let share = usize::try_from(sys::limits::descriptors() / 4 * 3).unwrap_or(usize::MAX);
    let options = hostdir::Options {
        descriptors: Some(share / plan.sources.len()),
        ..plan.hostdir.clone()
    };
    names
        .into_iter()
        .zip(&plan.sources)
        .map(|(name, Named { source, .. })| {
            let fs = source.open(options.clone())?;
            if plan.kernel_handles && fs.capabilities().handles != Level::Native {
                return Err(Failure::usage(format!(
                    "{source}: expected a file system with handles and CAP_DAC_READ_SEARCH, as handles are mandatory"
                )));
            }
            Ok(Arc::new(Export::new(name, wrap(fs, &plan.layers))))
        })
        .collect()
}

fn wrap(mut fs: Arc<dyn FileSystem>, layers: &Layers) -> Arc<dyn FileSystem> {
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
