//! The origin of an accepted connection, as the kernel reports it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net::{AddressFamily, sockopt};
use sys::vsock::VsockAddr;
use sys::{diag, users};
use vfs::peer::{GuestId, Origin, Owner};
use vfs::{Caller, Groups, LogLimit};

/// Returns the origin of the peer of the socket `fd`, whose IP address was `peer` when the
/// connection was new.
///
/// TCP: the owner of the peer's socket is looked up by the connection's addresses and ports,
/// whatever the addresses are, because a local process can use any address of this host. Two system
/// calls and at most two netlink requests.
pub(crate) fn of_peer(fd: BorrowedFd<'_>, peer: Option<SocketAddr>) -> Origin {
    match sockopt::socket_domain(fd) {
        Ok(AddressFamily::UNIX) => of_unix_peer(fd),
        Ok(AddressFamily::VSOCK) => of_vsock_peer(fd),
        Ok(AddressFamily::INET | AddressFamily::INET6) => match peer {
            Some(peer) => of_tcp_peer(fd, peer),
            // The peer is gone, but the data that it sent can still be read.
            None => Origin::Unidentified {
                addr: Some(Origin::UNSPECIFIED),
            },
        },
        _ => Origin::Inherited,
    }
}

fn of_unix_peer(fd: BorrowedFd<'_>) -> Origin {
    let (uid, gid) = match sys::peer::credentials(fd) {
        Ok(found) => found,
        Err(_) => return Origin::Unidentified { addr: None },
    };
    let owner = Owner {
        uid,
        gid: Some(gid),
        groups: sys::peer::groups(fd).ok().map(Into::into),
    };
    let owner = match uid {
        // In the user namespace of a confined process, all other users have this id.
        OVERFLOW_ID => match diag::unix_owner(fd) {
            Ok(Some(OVERFLOW_ID)) => owner,
            Ok(Some(uid)) => Owner {
                uid,
                gid: None,
                groups: None,
            },
            _ => return Origin::Unidentified { addr: None },
        },
        _ => owner,
    };
    Origin::Local { addr: None, owner }
}

/// Returns the origin of a vsock peer. vsock loopback has no owner and is open to all local users.
fn of_vsock_peer(fd: BorrowedFd<'_>) -> Origin {
    let peer = rustix::net::getpeername(fd).ok().flatten();
    match peer.and_then(|peer| VsockAddr::of(&peer)) {
        Some(VsockAddr { cid, .. }) if cid != VsockAddr::LOCAL => Origin::Guest(GuestId::Cid(cid)),
        _ => Origin::Unidentified { addr: None },
    }
}

/// The limit of lines about connections of unknown users.
static UNKNOWN_USERS: LogLimit<()> = LogLimit::new();

fn of_tcp_peer(fd: BorrowedFd<'_>, peer: SocketAddr) -> Origin {
    let addr = peer.ip().to_canonical();
    let local = rustix::net::getsockname(fd)
        .ok()
        .and_then(|local| SocketAddr::try_from(local).ok());
    let owner = local.map(|local| diag::tcp_owner(fd, peer, local));
    if let Some(Ok(Some(uid))) = owner {
        return Origin::Local {
            addr: Some(addr),
            owner: Owner {
                uid,
                gid: None,
                groups: None,
            },
        };
    }
    let same = || local.is_some_and(|local| local.ip().to_canonical() == addr);
    match diag::is_local(addr).unwrap_or_else(|_| addr.is_loopback() || same()) {
        true => {
            if let Some(Err(error)) = owner
                && let Some(suppressed) = UNKNOWN_USERS.permit(())
            {
                tracing::warn!(%peer, suppressed, "cannot determine the user of a local peer: {error}");
            }
            Origin::Unidentified { addr: Some(addr) }
        }
        false => Origin::Remote {
            addr,
            port: peer.port(),
        },
    }
}

/// Returns the caller for the owner of a socket. Queries the user database for details that the
/// kernel did not report, which may block.
pub fn caller_of(owner: &Owner) -> Caller {
    let user = match (owner.gid, &owner.groups) {
        (Some(_), Some(_)) => None,
        _ => users::by_uid(owner.uid).ok().flatten(),
    };
    let groups = owner.groups.clone().unwrap_or_else(|| {
        let groups = user.as_ref().map(users::groups);
        groups.unwrap_or_default().into()
    });
    // A user that is not in the database has no groups but `nogroup`.
    let gid = owner.gid.or(user.map(|user| user.gid));
    Caller {
        uid: owner.uid,
        gid: gid.unwrap_or(OVERFLOW_ID),
        groups: Groups::Known(groups),
    }
}

/// Linux's overflow id of users and groups.
const OVERFLOW_ID: u32 = 65534;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_local_peer_is_its_socket_s_owner() {
        let own = rustix::process::geteuid().as_raw();
        let (one, _other) = UnixStream::pair().expect("a pair");
        let Origin::Local { addr: None, owner } = of_peer(one.as_fd(), None) else {
            panic!("not local");
        };
        assert_eq!(owner.uid, own);
        let caller = caller_of(&owner);
        assert_eq!(caller.gid, rustix::process::getegid().as_raw());

        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        let client = TcpStream::connect(at).expect("connected");
        let (server, peer) = listener.accept().expect("accepted");
        assert_eq!(of_peer(server.as_fd(), Some(peer)).uid(), Some(own));
        drop(client);
        let origin = of_peer(server.as_fd(), Some(peer));
        let addr = Some(peer.ip());
        assert_eq!(origin, Origin::Unidentified { addr });
    }

    #[test]
    fn an_unknown_user_is_in_no_group() {
        let owner = Owner {
            uid: 0xfffe_fffe,
            gid: None,
            groups: None,
        };
        let caller = caller_of(&owner);
        assert_eq!(
            (caller.gid, caller.groups),
            (OVERFLOW_ID, Groups::Known([].into()))
        );
    }
}
