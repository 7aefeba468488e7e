//! The ready message: commands to mount or use the exports. [`super::operation`] adds the
//! line `ready`.

use command::announce;
use transports::Addr;

use super::endpoint::{Endpoint, EndpointEntry};
use super::exports::Exports;
use super::plan::Plan;
use super::{access, quickstart};
use crate::Failure;

/// Prints how to mount on standard output, and an introduction as well if no address was given
/// (`by_default`).
pub(super) fn print(
    endpoints: &[Box<dyn Endpoint>],
    exports: &Exports,
    plan: &Plan,
    by_default: bool,
) -> Result<(), Failure> {
    let newcomer = by_default && plan.run.is_none();
    let introduction = newcomer.then(|| quickstart::introduction(exports, plan));
    let [mut text, last] = introduction.unwrap_or_default();
    for endpoint in endpoints {
        let entries = endpoint.entries(&exports.catalog());
        text.extend(entries.iter().map(EndpointEntry::text));
    }
    text.push_str(&last);
    let claiming = endpoints.iter().flat_map(|one| one.claimed_user_addrs());
    let claiming: Vec<&Addr> = claiming.collect();
    if !claiming.is_empty() {
        text.push_str(&access::lines(plan, claiming.into_iter().any(is_open)));
    }
    announce(text)
}

/// Returns whether other hosts may connect, as far as the address says: an inherited socket may be
/// a TCP socket.
fn is_open(addr: &Addr) -> bool {
    match addr {
        Addr::Tcp { host, .. } => {
            let ip = host.parse::<std::net::IpAddr>();
            ip.map_or(host != "localhost", |ip| !ip.is_loopback())
        }
        Addr::Fd(_) => true,
        Addr::Unix(_) | Addr::Vsock { .. } | Addr::VsockUds { .. } => false,
    }
}
