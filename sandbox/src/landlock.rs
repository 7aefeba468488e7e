//! Landlock (landlock(7)): rules that unprivileged processes put on themselves.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::{Object, VisiblePath};

/// The newest ABI whose rights this crate knows. Older kernels enforce those that they know.
const NEWEST: ABI = ABI::V7;

/// The restrictions that a kernel can enforce; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// None: before Linux 5.13, or not enabled.
    None,
    /// Of files.
    Files,
    /// Of TCP: Linux 6.7.
    Tcp,
    /// Of signals and abstract sockets: Linux 6.12.
    Signals,
}

/// Returns the restrictions that the running kernel can enforce.
pub fn support() -> Support {
    let rules = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let creates = |rules: Result<Ruleset, RulesetError>| rules.is_ok_and(|it| it.create().is_ok());
    if !creates(rules().handle_access(AccessFs::from_all(ABI::V1))) {
        Support::None
    } else if !creates(rules().handle_access(AccessNet::from_all(ABI::V4))) {
        Support::Files
    } else if !creates(rules().scope(Scope::from_all(ABI::V6))) {
        Support::Tcp
    } else {
        Support::Signals
    }
}

/// Forbids signals to other processes and their abstract sockets, TCP unless `tcp` is set, and all
/// files that are not `reachable`, as far as the kernel knows how.
pub(crate) fn restrict(
    reachable: Option<(&[VisiblePath], &[Object])>,
    tcp: bool,
) -> io::Result<()> {
    let other = io::Error::other::<RulesetError>;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(NEWEST))
        .map_err(other)?;
    if !tcp {
        let network = rules.handle_access(AccessNet::from_all(NEWEST));
        rules = network.map_err(other)?;
    }
    if reachable.is_some() {
        let files = rules.handle_access(AccessFs::from_all(NEWEST));
        rules = files.map_err(other)?;
    }
    // The caller has set it.
    let mut rules = rules.create().map_err(other)?.no_new_privs(false);
    let Some((paths, objects)) = reachable else {
        rules.restrict_self().map_err(other)?;
        return Ok(());
    };
    // Descriptors are reopened through /proc/self/fd.
    let own = VisiblePath {
        path: "/proc/self".into(),
        writable: false,
    };
    let access = |writable| match writable {
        true => AccessFs::from_all(NEWEST),
        false => AccessFs::from_read(NEWEST),
    };
    for visible in paths.iter().chain([&own]) {
        // Opening it fails later, with a message of its own.
        let Ok(path) = PathFd::new(&visible.path) else {
            continue;
        };
        let rule = PathBeneath::new(path, access(visible.writable));
        rules = rules.add_rule(rule).map_err(other)?;
    }
    for object in objects {
        let rule = PathBeneath::new(&object.descriptor, access(object.writable));
        rules = rules.add_rule(rule).map_err(other)?;
    }
    rules.restrict_self().map_err(other)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn support_is_that_of_the_kernel_version() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc");
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        let version = (next().unwrap_or(0), next().unwrap_or(0));
        let expected = match version {
            (..=5, ..=12) => Support::None,
            (5, _) | (6, ..=6) => Support::Files,
            (6, ..=11) => Support::Tcp,
            _ => Support::Signals,
        };
        // A kernel may have it disabled.
        assert!([expected, Support::None].contains(&support()));
    }
}
