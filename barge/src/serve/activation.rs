//! Sockets that a service manager opened: sd_listen_fds(3).

use transports::{Addr, Listener};

use crate::Failure;

/// The first passed descriptor (SD_LISTEN_FDS_START).
const LISTEN_FDS_START: i32 = 3;

/// Returns whether a service manager has passed sockets to this process.
pub(super) fn is_activated() -> bool {
    listen_fds() > 0
}

/// Returns listeners for the sockets that a service manager has passed to this process.
pub(super) fn listeners() -> Result<Vec<Listener>, Failure> {
    (LISTEN_FDS_START..LISTEN_FDS_START + listen_fds())
        .map(|fd| {
            Listener::bind(&Addr::Fd(fd))
                .map_err(|error| Failure::new(format!("inherited descriptor {fd}: {error}")))
        })
        .collect()
}

fn listen_fds() -> i32 {
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
