//! Sockets that a service manager opened: sd_listen_fds(3).

use transports::{Addr, Listener};

use super::broker::{self, upgrade};
use super::host::Host;
use crate::Failure;

/// The first passed descriptor (SD_LISTEN_FDS_START).
const LISTEN_FDS_START: i32 = 3;

/// Returns whether a service manager has passed sockets to this process.
pub(super) fn is_activated() -> bool {
    listen_fds() > 0
}

/// Returns listeners for the sockets that a service manager has passed to this process, or to its
/// broker.
pub(super) fn listeners(host: &Host) -> Result<Vec<Listener>, Failure> {
    addrs(listen_fds())
        .map(|addr| {
            let listener = host.listen(&addr);
            listener.map_err(|why| Failure::new(format!("inherited {addr}: {}", why.message)))
        })
        .collect()
}

/// Returns the addresses of `listen_fds` passed sockets.
pub(super) fn addrs(listen_fds: i32) -> impl Iterator<Item = Addr> {
    (LISTEN_FDS_START..LISTEN_FDS_START + listen_fds).map(Addr::Fd)
}

/// Returns the names of the descriptors that a service manager has passed to this process, and
/// their numbers.
pub(super) fn names() -> impl Iterator<Item = (String, i32)> {
    let names = match passed() {
        0 => String::new(),
        _ => std::env::var("LISTEN_FDNAMES").unwrap_or_default(),
    };
    let names: Vec<_> = names.split(':').map(str::to_owned).collect();
    names.into_iter().zip(LISTEN_FDS_START..)
}

/// Returns the number of passed sockets. Those that this program has stored come after them.
pub(super) fn listen_fds() -> i32 {
    if let Some(number) = broker::listen_fds().or_else(upgrade::passed_on_fds) {
        return number;
    }
    let stored = names().filter(|(name, _)| upgrade::is_stored(name)).count();
    passed() - i32::try_from(stored).unwrap_or(i32::MAX)
}

/// Returns the number of descriptors that a service manager has passed to this process.
fn passed() -> i32 {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<i32>().ok())
    };
    if number("LISTEN_PID") != Some(std::process::id() as i32) {
        return 0;
    }
    number("LISTEN_FDS").unwrap_or(0)
}
