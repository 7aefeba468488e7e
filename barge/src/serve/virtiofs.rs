//! virtiofs: a vhost-user socket for each share, to which a virtual machine monitor connects.

use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use fuse::numbers::InitFlags;
use fuse::server::Server;
use virtqueue::Config;

use super::exports::Exports;
use super::plan::Virtiofs;
use super::vhost::{Kind, Place, Socket, Vhost};
use crate::Failure;

/// What a device is called where its configuration is read; no name is the monitor's to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag([u8; Tag::MOST]);

impl Tag {
    /// Bytes that the configuration has for it (virtio 1.3, 5.11.4).
    const MOST: usize = 36;

    /// No name.
    pub(super) const NONE: Tag = Tag([0; Tag::MOST]);
}

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Tag, String> {
        let mut tag = Tag::NONE;
        let place = tag
            .0
            .get_mut(..text.len())
            .filter(|place| !place.is_empty());
        let expected = || format!("expected 1 to {} bytes, got {}", Tag::MOST, text.len());
        place.ok_or_else(expected)?.copy_from_slice(text.as_bytes());
        Ok(tag)
    }
}

/// What a guest may keep, as virtiofsd names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// Nothing
    Never,
    /// Names and attributes, for a day; no data
    Metadata,
    /// Names and attributes for a second, data while a file is open
    Auto,
    /// Everything for a day: nobody else changes the share
    Always,
}

impl From<Cache> for fuse::server::Cache {
    fn from(cache: Cache) -> fuse::server::Cache {
        match cache {
            Cache::Never => fuse::server::Cache::Never,
            Cache::Metadata => fuse::server::Cache::Metadata,
            Cache::Auto => fuse::server::Cache::Auto,
            Cache::Always => fuse::server::Cache::Always,
        }
    }
}

/// Whether the device offers a feature, as virtiofsd names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Negotiate {
    /// Not at all
    Never,
    /// If the client can
    Auto,
    /// Or the client is refused
    Always,
}

impl Negotiate {
    /// Whether it is offered.
    pub(super) fn is_offered(self) -> bool {
        self != Negotiate::Never
    }

    /// The flags of INIT without which the client is refused.
    pub(super) fn required(self, flags: InitFlags) -> InitFlags {
        match self {
            Negotiate::Always => flags,
            Negotiate::Never | Negotiate::Auto => InitFlags::empty(),
        }
    }
}

/// The flags of INIT that make POSIX ACLs.
pub(super) const POSIX_ACL: InitFlags = InitFlags::POSIX_ACL
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::SETXATTR_EXT);

/// The most request queues of a device.
const REQUEST_QUEUES: usize = 64;

/// Opens the sockets of `plan`.
pub(super) fn places(
    exports: &Exports,
    plan: &Virtiofs,
    vhost: &Vhost,
) -> Result<Vec<Place>, Failure> {
    let place = |share: &Socket| {
        let export = exports.named(share.name.as_deref(), "--virtiofs")?;
        let server = Server::new(export, plan.options.clone());
        let kind = Kind {
            session: Box::new(move || Arc::new(server.session())),
            config: Config {
                // And the one of high priority.
                queues: 1 + REQUEST_QUEUES,
                features: 0,
                space: plan
                    .tag
                    .map_or(Vec::new(), |tag| space(tag, REQUEST_QUEUES)),
            },
            free: 1,
        };
        Place::open(&share.at, vhost, kind)
    };
    plan.shares.iter().map(place).collect()
}

/// The device's configuration: its tag, and how many request queues it may have (virtio 1.3, 5.11.4).
fn space(tag: Tag, queues: usize) -> Vec<u8> {
    let mut space = tag.0.to_vec();
    space.extend((queues as u32).to_le_bytes());
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_short() {
        assert_eq!(
            space(Tag::NONE, 64),
            [&[0; 36][..], &[64, 0, 0, 0]].concat()
        );
        let tag = |text: &str| text.parse::<Tag>().map(|tag| tag.0[..3].to_vec());
        assert_eq!(tag("fs"), Ok(b"fs\0".into()));
        assert!(tag(&"x".repeat(36)).is_ok() && tag(&"x".repeat(37)).is_err() && tag("").is_err());
    }
}
