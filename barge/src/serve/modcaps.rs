//! `--modcaps`: changes to the capabilities that are kept.

use std::str::FromStr;

use rustix::thread::CapabilitySet;

/// Capabilities to keep beyond the default ones, and default ones to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Modcaps {
    added: CapabilitySet,
    dropped: CapabilitySet,
}

/// The capabilities that creating files as other users takes; virtiofsd's default.
const DEFAULT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);

/// Those for acting as the callers, and for kernel file handles.
pub(crate) const WITH_HANDLES: CapabilitySet = DEFAULT.union(CapabilitySet::DAC_READ_SEARCH);

impl FromStr for Modcaps {
    type Err = String;

    /// Parses `+NAME` and `-NAME`, with the names of capabilities(7) without `CAP_` and colons
    /// between.
    fn from_str(text: &str) -> Result<Modcaps, String> {
        let mut modcaps = Modcaps::NONE;
        for change in text.split(':') {
            let bad = || format!("expected +CAPABILITY or -CAPABILITY, got {change:?}");
            let name = change.get(1..).ok_or_else(bad)?.to_uppercase();
            let named = CapabilitySet::from_name(&name).ok_or_else(bad)?;
            let add = match &change[..1] {
                "+" => true,
                "-" => false,
                _ => return Err(bad()),
            };
            modcaps.added.set(named, add);
            modcaps.dropped.set(named, !add);
        }
        Ok(modcaps)
    }
}

impl Modcaps {
    /// No changes.
    pub(super) const NONE: Modcaps = Modcaps {
        added: CapabilitySet::empty(),
        dropped: CapabilitySet::empty(),
    };

    /// Returns `usual` with the changes.
    pub(super) fn change(self, usual: CapabilitySet) -> CapabilitySet {
        (usual | self.added) - self.dropped
    }

    /// Returns the capabilities that virtiofsd keeps. `handles` says whether kernel file handles
    /// are used, which take CAP_DAC_READ_SEARCH.
    pub(super) fn apply(self, handles: bool) -> Result<CapabilitySet, String> {
        if handles && self.dropped.contains(CapabilitySet::DAC_READ_SEARCH) {
            return Err(
                "--modcaps: expected dac_read_search to be kept, or --inode-file-handles=never"
                    .into(),
            );
        }
        let mut usual = DEFAULT;
        usual.set(CapabilitySet::DAC_READ_SEARCH, handles);
        Ok(self.change(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_capability_counts() {
        let kept = |text: &str| {
            let modcaps: Modcaps = text.parse().expect(text);
            modcaps.apply(false).expect(text)
        };
        assert_eq!(Modcaps::NONE.apply(false), Ok(DEFAULT));
        let sys_admin = CapabilitySet::SYS_ADMIN;
        assert_eq!(
            kept("+sys_admin:-chown"),
            (DEFAULT | sys_admin) - CapabilitySet::CHOWN
        );
        assert_eq!(kept("-CHOWN:+chown"), DEFAULT);
        for text in ["", ":", "+", "chown", "*chown", "+chwon", "+chown:", "é"] {
            assert!(text.parse::<Modcaps>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn handles_take_a_capability() {
        let without: Modcaps = "-dac_read_search".parse().expect("a change");
        assert!(without.apply(true).is_err());
        assert_eq!(without.apply(false), Ok(DEFAULT));
        let kept = Modcaps::NONE.apply(true).expect("nothing was taken");
        assert_eq!(kept, DEFAULT | CapabilitySet::DAC_READ_SEARCH);
    }
}
