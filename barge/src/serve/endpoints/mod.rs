//! All protocols that are served, one in each file.
//!
//! A new protocol is a file with an [`Endpoint`], its options in [`super::args`], and a line in
//! [`from_args`]. Each address of 9P and NBD, and each device, is an endpoint of its own, which can
//! be added and removed while the server runs.

mod agent;
mod http;
mod nbd;
mod nfs;
pub(super) mod p9;
mod vhost_user_blk;
mod virtio9p;
pub(super) mod virtiofs;

use transports::Addr;

use super::args::ServeArgs;
use super::args::device::{Drive, NinePDevice, VirtiofsDevice};
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
    let mut all: Vec<Box<dyn Endpoint>> = vec![Box::new(p9::P9::new(None, p9.clone()))];
    for addr in &args.p9.addrs {
        all.push(Box::new(p9::P9::new(Some(addr.clone()), p9.clone())));
    }
    all.push(Box::new(nfs::Nfs::new(&args.nfs)?));
    for share in &args.virtiofs.shares {
        let device = virtiofs::Virtiofs::from_args(&args.virtiofs, share.clone(), vhost.clone());
        all.push(Box::new(device));
    }
    for device in &args.p9.virtio_9p {
        let device = virtio9p::Virtio9p::new(device.clone(), p9.clone(), vhost.clone());
        all.push(Box::new(device));
    }
    for drive in &args.block.drives {
        let device = vhost_user_blk::VhostUserBlk::new(drive.clone(), vhost.clone());
        all.push(Box::new(device));
    }
    for addr in &args.block.nbd {
        all.push(Box::new(nbd::Nbd::new(addr.clone())));
    }
    all.push(Box::new(agent::Agents::new(&args.agent.agent)));
    all.push(Box::new(http::Http::new(args)?));
    Ok(all)
}

/// Returns the value of the option `key` of an endpoint as [`Endpoint::setting`] does, or `None` if
/// it is no value of such an option.
pub(super) fn normalized(key: &str, value: &str) -> Option<String> {
    match key {
        "9p" | "nbd" => Some(value.parse::<Addr>().ok()?.to_string()),
        "virtiofs" => Some(value.parse::<VirtiofsDevice>().ok()?.to_string()),
        "virtio-9p" => Some(value.parse::<NinePDevice>().ok()?.to_string()),
        "block" => Some(value.parse::<Drive>().ok()?.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::serve::plan::Plan;

    #[test]
    fn added_9p_endpoints_share_the_server_of_those_that_run() {
        let plan = |text: &str| {
            let config = Config::addition(text).expect("valid");
            let plan = Plan::of_settings(&config);
            plan.unwrap_or_else(|why| panic!("{why:?}")).endpoints
        };
        let running = plan("9p = 'unix:/a'\n");
        let mut added = plan("9p = 'unix:/b'\n");
        let server = |one: &dyn Endpoint| p9::NinePServer::of_endpoint(one).cloned();
        let list_of = |all: &[Box<dyn Endpoint>]| {
            let server = all.iter().find_map(|one| server(&**one));
            server.expect("a server").list_address()
        };
        assert_ne!(list_of(&running), list_of(&added));
        for one in &mut added {
            for other in &running {
                one.share_limits(&**other);
            }
        }
        assert_eq!(list_of(&running), list_of(&added));
    }
}
