//! `-o`: what mount(8) passes on, and what is this file system's own.

use std::str::FromStr;

use clap::ValueEnum;
use transports::fusedev::{MountFlag, MountOptions};

use crate::serve::Cache;
use crate::source::Source;

/// An option behind `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountOption {
    /// One that every file system has.
    Flag(MountFlag),
    AllowOther,
    /// What mount(8) shows as the source.
    FsName(String),
    Cache(Cache),
    Writeback,
    /// One for fstab, or that is so anyway.
    Nothing,
}

impl FromStr for MountOption {
    type Err = String;

    fn from_str(text: &str) -> Result<MountOption, String> {
        if let Some(flag) = MountFlag::named(text) {
            return Ok(MountOption::Flag(flag));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(match (name, value) {
            ("allow_other", "") => MountOption::AllowOther,
            ("fsname", value) if !value.is_empty() => MountOption::FsName(value.into()),
            ("cache", value) => MountOption::Cache(Cache::from_str(value, false)?),
            ("writeback", "") => MountOption::Writeback,
            ("default_permissions" | "defaults" | "relatime" | "norelatime", "") => {
                MountOption::Nothing
            }
            (name, _) if is_for_fstab(name) => MountOption::Nothing,
            _ => return Err("there is no such mount option".into()),
        })
    }
}

/// Whether an option is for fstab alone.
pub(crate) fn is_for_fstab(name: &str) -> bool {
    let known = [
        "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
        "comment",
    ];
    known.contains(&name) || name.starts_with("x-")
}

/// What all of them come to.
pub(super) struct Settled {
    pub(super) mount: MountOptions,
    pub(super) fuse: fuse::server::Options,
    pub(super) read_only: bool,
}

/// The last of contrary options counts.
pub(super) fn settle(options: &[MountOption], source: &Source) -> Settled {
    let mut mount = MountOptions {
        source: source.to_string(),
        ..MountOptions::default()
    };
    let mut fuse = fuse::server::Options::default();
    for option in options {
        match option {
            MountOption::Flag(flag) => mount.flags.push(*flag),
            MountOption::AllowOther => mount.allow_other = true,
            MountOption::FsName(name) => mount.source.clone_from(name),
            MountOption::Cache(cache) => fuse.cache = (*cache).into(),
            MountOption::Writeback => fuse.writeback = true,
            MountOption::Nothing => {}
        }
    }
    Settled {
        read_only: mount.is_read_only(),
        mount,
        fuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(text: &str) -> Result<Settled, String> {
        let options: Result<Vec<_>, _> = text.split(',').map(str::parse).collect();
        Ok(settle(
            &options?,
            &Source::Tree(barge_client::Source::Memory),
        ))
    }

    #[test]
    fn options_are_mounts_and_ours_and_fstabs() {
        let all =
            "ro,nosuid,allow_other,cache=always,fsname=home,_netdev,x-systemd.automount,user=me";
        let Settled {
            mount,
            fuse,
            read_only,
        } = settled(all).expect("all known");
        assert!(read_only && mount.allow_other && mount.source == "home");
        assert_eq!(fuse.cache, fuse::server::Cache::Always);
        let plain = settled("defaults").expect("known");
        assert!(!plain.read_only && plain.mount.source == "mem:");
        assert!(!settled("ro,rw").expect("known").read_only);
        for bad in ["", "cache=", "cache=some", "writeback=1", "rows", "fsname="] {
            assert!(settled(bad).is_err(), "{bad}");
        }
    }
}
