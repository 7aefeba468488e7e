//! Landlock (landlock(7)): rules that unprivileged processes put on themselves.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::VisiblePath;

/// The newest ABI whose rights this crate knows. Older kernels enforce those that they know.
const NEWEST: ABI = ABI::V7;

/// Forbids TCP, signals to other processes and their abstract sockets, and with `paths` all other
/// files, as far as the kernel knows how.
pub(crate) fn restrict(paths: Option<&[VisiblePath]>) -> io::Result<()> {
    let other = io::Error::other::<RulesetError>;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessNet::from_all(NEWEST))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .map_err(other)?;
    if paths.is_some() {
        let files = rules.handle_access(AccessFs::from_all(NEWEST));
        rules = files.map_err(other)?;
    }
    // The caller has set it.
    let mut rules = rules.create().map_err(other)?.no_new_privs(false);
    // Descriptors are reopened through /proc/self/fd.
    let own = VisiblePath {
        path: "/proc/self".into(),
        writable: false,
    };
    let own = paths.map(|_| &own);
    for visible in paths.unwrap_or_default().iter().chain(own) {
        let access = match visible.writable {
            true => AccessFs::from_all(NEWEST),
            false => AccessFs::from_read(NEWEST),
        };
        let path = PathFd::new(&visible.path).map_err(io::Error::other)?;
        let rule = PathBeneath::new(path, access);
        rules = rules.add_rule(rule).map_err(other)?;
    }
    rules.restrict_self().map_err(other)?;
    Ok(())
}
