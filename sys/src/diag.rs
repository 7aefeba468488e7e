//! Queries about TCP sockets and addresses of this host, over netlink (sock_diag(7), rtnetlink(7)).
//!
//! Each query is one message and one reply, which is available once the query is sent. The
//! structures are those of `linux/netlink.h`, `linux/inet_diag.h` and `linux/rtnetlink.h`.
//!
//! A process that leaves its network namespace, or may open no sockets, keeps sockets for its
//! queries ([`keep_sockets`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink,
};

/// The sockets that are kept.
static KEPT: OnceLock<Kept> = OnceLock::new();

/// A socket for each kind of query.
struct Kept {
    sockets: Mutex<OwnedFd>,
    routes: Mutex<OwnedFd>,
}

/// A socket for one query.
enum QuerySocket {
    Own(OwnedFd),
    /// A kept one. Its lock keeps others from the reply.
    Kept(MutexGuard<'static, OwnedFd>),
}

impl AsFd for QuerySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            QuerySocket::Own(socket) => socket.as_fd(),
            QuerySocket::Kept(socket) => socket.as_fd(),
        }
    }
}

impl QuerySocket {
    /// Returns a socket for queries about sockets.
    fn of_sockets() -> Result<QuerySocket> {
        match KEPT.get() {
            Some(kept) => Ok(QuerySocket::Kept(kept.sockets.lock())),
            None => open(Some(netlink::SOCK_DIAG)).map(QuerySocket::Own),
        }
    }

    /// Returns a socket for queries about routes.
    fn of_routes() -> Result<QuerySocket> {
        match KEPT.get() {
            Some(kept) => Ok(QuerySocket::Kept(kept.routes.lock())),
            None => open(None).map(QuerySocket::Own),
        }
    }
}

/// Opens sockets that all later queries of this process use: they are about the network namespace
/// of the calling thread at the first call. Later calls have no effect.
pub fn keep_sockets() -> Result<()> {
    let kept = Kept {
        sockets: Mutex::new(open(Some(netlink::SOCK_DIAG))?),
        routes: Mutex::new(open(None)?),
    };
    KEPT.get_or_init(|| kept);
    Ok(())
}

/// `SOCK_DIAG_BY_FAMILY`
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `sizeof(struct nlmsghdr)`
const HEADER: usize = 16;

/// The maximum reply length that is read. A reply about a socket has 88 bytes, one about a route
/// attributes in addition.
const MAX_REPLY: usize = 1024;

/// `TCP_ESTABLISHED`
const ESTABLISHED: u8 = 1;

/// `RTN_LOCAL`
const LOCAL: u8 = 2;

/// Returns the user id of the owner of the TCP socket at `peer` that is connected to the socket
/// `fd`, whose own address is `local`.
///
/// Returns `None` if this network namespace has no such socket, if it is closed already (Linux
/// reports user 0 and no inode then), if `fd` belongs to another network namespace, or if the
/// kernel has no `tcp_diag`. Errors are those of netlink.
pub fn tcp_owner(fd: BorrowedFd<'_>, peer: SocketAddr, local: SocketAddr) -> Result<Option<u32>> {
    let netlink = QuerySocket::of_sockets()?;
    let ours = crate::peer::network_namespace(netlink.as_fd());
    if crate::peer::network_namespace(fd) != ours {
        return Ok(None);
    }
    let (family, id) = socket_id(peer, local);
    // struct inet_diag_req_v2
    let mut request = vec![family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0];
    request.extend((1u32 << ESTABLISHED).to_ne_bytes());
    request.extend(id);
    // INET_DIAG_NOCOOKIE
    request.extend([0xff; 8]);
    let answer = match query(&netlink, SOCK_DIAG_BY_FAMILY, &request) {
        Err(Errno::NOENT) => return Ok(None),
        answer => answer?,
    };
    Ok(owner(&answer, peer, local))
}

/// Parses `struct inet_diag_msg`.
fn owner(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (family, state) = (*answer.first()?, *answer.get(1)?);
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let ports = answer.get(4..8)?;
    let is_it = ports[..2] == peer.port().to_be_bytes()
        && ports[2..] == local.port().to_be_bytes()
        && address(family, answer.get(8..24)?) == Some(peer.ip().to_canonical())
        && address(family, answer.get(24..40)?) == Some(local.ip().to_canonical());
    let (uid, inode) = (number(64)?, number(68)?);
    (is_it && state == ESTABLISHED && inode != 0).then_some(uid)
}

/// Builds `struct inet_diag_sockid` without its cookie, from the peer socket's view, and the family
/// to search. An IPv6 socket that is connected to an IPv4 one reports IPv4-mapped addresses, which
/// are converted.
fn socket_id(peer: SocketAddr, local: SocketAddr) -> (AddressFamily, Vec<u8>) {
    let mut id = [peer.port().to_be_bytes(), local.port().to_be_bytes()].concat();
    let mut family = AddressFamily::INET6;
    for addr in [peer, local] {
        let mut bytes = [0; 16];
        match addr.ip().to_canonical() {
            IpAddr::V4(addr) => {
                family = AddressFamily::INET;
                bytes[..4].copy_from_slice(&addr.octets());
            }
            IpAddr::V6(addr) => bytes = addr.octets(),
        }
        id.extend(bytes);
    }
    // The interface of a link-local address.
    let device = match peer {
        SocketAddr::V6(peer) => peer.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    id.extend(device.to_ne_bytes());
    (family, id)
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    let v4: [u8; 4] = [bytes[0], bytes[1], bytes[2], bytes[3]];
    match AddressFamily::from_raw(family.into()) {
        AddressFamily::INET => Some(IpAddr::from(v4)),
        AddressFamily::INET6 => Some(IpAddr::from(bytes).to_canonical()),
        _ => None,
    }
}

/// Returns whether `addr` is an address of this host, in this network namespace.
pub fn is_local(addr: IpAddr) -> Result<bool> {
    let addr = addr.to_canonical();
    if addr.is_loopback() {
        return Ok(true);
    }
    let (family, bytes) = match addr {
        IpAddr::V4(addr) => (AddressFamily::INET, addr.octets().to_vec()),
        IpAddr::V6(addr) => (AddressFamily::INET6, addr.octets().to_vec()),
    };
    // `struct rtmsg`, and RTA_DST.
    let mut request = vec![0; 12];
    request[0] = family.as_raw() as u8;
    request[1] = 8 * bytes.len() as u8;
    request.extend((4 + bytes.len() as u16).to_ne_bytes());
    request.extend(libc::RTA_DST.to_ne_bytes());
    request.extend(bytes);
    match query(&QuerySocket::of_routes()?, libc::RTM_GETROUTE, &request) {
        Ok(route) => Ok(route.get(7) == Some(&LOCAL)),
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH) => Ok(false),
        Err(error) => Err(error),
    }
}

fn open(protocol: Option<Protocol>) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
}

/// Sends a request, and returns the reply without its header.
fn query(netlink: &QuerySocket, kind: u16, body: &[u8]) -> Result<Vec<u8>> {
    static SEQUENCE: AtomicU32 = AtomicU32::new(0);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend(sequence);
    // The sender's port, which the kernel fills in.
    message.extend([0; 4]);
    message.extend(body);
    rustix::io::retry_on_intr(|| rustix::net::send(netlink, &message, SendFlags::empty()))?;
    let mut answer = vec![0; MAX_REPLY];
    let answer = loop {
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(netlink, &mut *answer, RecvFlags::DONTWAIT)
        })?;
        // A kept socket may have the reply of an earlier query that failed.
        let reply = &answer[..received.0];
        if reply.get(8..12) == Some(&sequence) {
            break reply;
        }
    };
    let kind = answer.get(4..6).ok_or(Errno::BADMSG)?;
    let body = answer.get(HEADER..).ok_or(Errno::BADMSG)?;
    if kind != (libc::NLMSG_ERROR as u16).to_ne_bytes() {
        return Ok(body.to_vec());
    }
    let error = body.get(..4).and_then(|error| error.try_into().ok());
    match error.map(i32::from_ne_bytes) {
        Some(error) if error < 0 => Err(Errno::from_raw_os_error(-error)),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns both ends of a connection to `to`, at a socket bound to `at`.
    fn connect(at: &str, to: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((at, 0)).expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let client = TcpStream::connect((to, port)).expect("connected");
        (client, listener.accept().expect("accepted").0)
    }

    fn owner_of_peer(server: &TcpStream) -> Result<Option<u32>> {
        let at = (server.peer_addr(), server.local_addr());
        let (Ok(peer), Ok(local)) = at else {
            panic!("{at:?}");
        };
        tcp_owner(server.as_fd(), peer, local)
    }

    #[test]
    fn the_owner_of_a_local_peer_is_found_whatever_the_addresses() {
        let own = rustix::process::geteuid().as_raw();
        for (at, to) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.2", "127.0.0.2"),
            ("::1", "::1"),
            ("::", "127.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1"),
            ("::", "::ffff:127.0.0.1"),
        ] {
            let (_client, server) = connect(at, to);
            assert_eq!(owner_of_peer(&server), Ok(Some(own)), "{at} {to}");
        }
    }

    #[test]
    fn another_user_s_socket_is_that_user_s() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: switching users needs root");
        }
        let found = std::thread::spawn(|| {
            crate::creds::set_fs_uid(65534).expect("root may");
            let (_client, server) = connect("127.0.0.1", "127.0.0.1");
            owner_of_peer(&server)
        });
        assert_eq!(found.join().expect("no panic"), Ok(Some(65534)));
    }

    /// Linux reports user 0 as its owner.
    #[test]
    fn a_socket_that_is_closed_already_is_nobody_s() {
        let (client, server) = connect("127.0.0.1", "127.0.0.1");
        let at = (client.local_addr(), server.local_addr());
        let (Ok(peer), Ok(local)) = at else {
            panic!("{at:?}");
        };
        drop(client);
        assert_eq!(tcp_owner(server.as_fd(), peer, local), Ok(None));
    }

    /// Also if its last bytes are in transit, and the connection still exists.
    #[test]
    fn a_socket_that_is_closed_with_bytes_to_send_is_nobody_s() {
        use std::io::Write;
        let (mut client, server) = connect("127.0.0.1", "127.0.0.1");
        let at = (client.local_addr(), server.local_addr());
        let (Ok(peer), Ok(local)) = at else {
            panic!("{at:?}");
        };
        client.set_nonblocking(true).expect("set");
        while client.write(&[0; 1 << 16]).is_ok() {}
        drop(client);
        assert_eq!(tcp_owner(server.as_fd(), peer, local), Ok(None));
    }

    #[test]
    fn a_socket_that_only_listens_is_no_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(tcp_owner(listener.as_fd(), at, elsewhere), Ok(None));
    }

    #[test]
    fn addresses_of_this_host_are_told_from_others() {
        for (addr, local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            let found = is_local(addr.parse().expect("an address"));
            assert_eq!(found, Ok(local), "{addr}");
        }
    }
}
