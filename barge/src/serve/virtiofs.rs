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

/// The tag of a device. Without a tag the monitor supplies the device's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag([u8; Tag::MOST]);

impl Tag {
    /// Bytes of the tag in the device's configuration (virtio 1.3, 5.11.4).
    const MOST: usize = 36;

    /// An empty tag.
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

/// The caching policy of a guest, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// No caching
    Never,
    /// Names and attributes for a day, no data
    Metadata,
    /// Names and attributes for a second, data while a file is open
    Auto,
    /// Everything for a day; safe only if no other client or program changes the share
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

/// When the device offers a feature, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Negotiate {
    /// Do not offer it
    Never,
    /// Offer it to clients that support it
    Auto,
    /// Offer it, and refuse clients that do not support it
    Always,
}

impl Negotiate {
    /// Returns whether the feature is offered.
    pub(super) fn is_offered(self) -> bool {
        self != Negotiate::Never
    }

    /// Returns the INIT flags without which the client is refused.
    pub(super) fn required(self, flags: InitFlags) -> InitFlags {
        match self {
            Negotiate::Always => flags,
            Negotiate::Never | Negotiate::Auto => InitFlags::empty(),
        }
    }
}

/// The INIT flags of POSIX ACLs.
pub(super) const POSIX_ACL: InitFlags = InitFlags::POSIX_ACL
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::SETXATTR_EXT);

/// Maximum number of request queues of a device.
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
                // Request queues and the high-priority queue.
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

/// Returns the device's configuration: its tag and the number of request queues (virtio 1.3,
/// 5.11.4).
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
