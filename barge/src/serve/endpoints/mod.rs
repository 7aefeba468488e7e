//! All protocols that are served, one in each file.
//!
//! A new protocol is a file with an [`Endpoint`], its options in [`super::args`], and a line in
//! [`from_args`].

mod http;
mod nbd;
mod nfs;
pub(super) mod p9;
mod vhost_user_blk;
mod virtio9p;
pub(super) mod virtiofs;

use super::args::ServeArgs;
use super::endpoint::Endpoint;
use super::vhost::VhostOptions;
use crate::Failure;

/// Returns the endpoints of `args`, in the order of the ready message.
pub(super) fn from_args(args: &ServeArgs) -> Result<Vec<Box<dyn Endpoint>>, Failure> {
    let p9 = p9::NinePServer::new(&args.p9);
    let vhost = VhostOptions {
        affinity: args.limits.queue_affinity.clone().unwrap_or_default(),
        once: false,
    };
    Ok(vec![
        Box::new(p9::P9::new(&args.p9, p9.clone())),
        Box::new(nfs::Nfs::new(&args.nfs)?),
        Box::new(virtiofs::Virtiofs::from_args(&args.virtiofs, vhost.clone())),
        Box::new(virtio9p::Virtio9p::new(&args.p9, p9, vhost.clone())),
        Box::new(vhost_user_blk::VhostUserBlk::new(&args.block, vhost)),
        Box::new(nbd::Nbd::new(&args.block)),
        Box::new(http::Http::new(&args.observability)),
    ])
}
