//! Listening at an address that the command line names.

use transports::{Addr, Listener};

use crate::{Failure, diagnose};

/// Listens at `addr`. Only this user and the members of `group` may connect to a Unix socket.
pub(crate) fn listen(addr: &Addr, group: Option<u32>) -> Result<Listener, Failure> {
    Listener::bind_for(addr, group)
        .map_err(|error| Failure::new(diagnose::listen_error(addr, &error)))
}
