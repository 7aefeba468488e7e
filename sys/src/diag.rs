//! Queries about sockets and addresses of this host, over netlink (sock_diag(7), rtnetlink(7)).
//!
//! Each query is one message and one reply, which is available once the query is sent. The
//! structures are those of `linux/netlink.h`, `linux/inet_diag.h` and `linux/rtnetlink.h`.
//!
//! Where the kernel or a sandbox answers no queries about Internet sockets, the tables in
//! `/proc/net` name their owners.
//!
//! A process that leaves its network namespace, or may open no sockets, keeps sockets and tables
//! for its queries ([`keep_sockets`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink,
};

use self::socket_tables::{Search, SocketTables};

mod socket_tables;

/// The sockets and tables that are kept.
static KEPT: OnceLock<Kept> = OnceLock::new();

/// A socket for each kind of query, or the error of opening it, and the tables of sockets.
struct Kept {
    sockets: Result<Mutex<OwnedFd>>,
    routes: Result<Mutex<OwnedFd>>,
    tcp: Mutex<SocketTables>,
    udp: Mutex<SocketTables>,
}

impl Kept {
    fn tables(&self, transport: Transport) -> &Mutex<SocketTables> {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }
}

/// The transport of an Internet socket.
#[derive(Clone, Copy)]
enum Transport {
    Tcp,
    Udp,
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
            Some(kept) => {
                let socket = kept.sockets.as_ref().map_err(|error| *error)?;
                Ok(QuerySocket::Kept(socket.lock()))
            }
            None => open(Some(netlink::SOCK_DIAG)).map(QuerySocket::Own),
        }
    }

    /// Returns a socket for queries about routes.
    fn of_routes() -> Result<QuerySocket> {
        match KEPT.get() {
            Some(kept) => {
                let socket = kept.routes.as_ref().map_err(|error| *error)?;
                Ok(QuerySocket::Kept(socket.lock()))
            }
            None => open(None).map(QuerySocket::Own),
        }
    }
}

/// Opens sockets and tables that all later queries of this process use: they are about the network
/// namespace of the calling thread at the first call. Later calls have no effect. A query returns
/// the error of opening its socket.
pub fn keep_sockets() {
    KEPT.get_or_init(|| Kept {
        sockets: open(Some(netlink::SOCK_DIAG)).map(Mutex::new),
        routes: open(None).map(Mutex::new),
        tcp: Mutex::new(SocketTables::open(Transport::Tcp)),
        udp: Mutex::new(SocketTables::open(Transport::Udp)),
    });
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

/// The states of a TCP socket that is connected: `TCP_ESTABLISHED`, those of one that sends nothing
/// more (`TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`), and that of one that receives nothing more
/// (`TCP_CLOSE_WAIT`).
const CONNECTED: [u8; 4] = [ESTABLISHED, 4, 5, 8];

/// `TCP_CLOSE`, the state of a UDP socket that is not connected.
const CLOSE: u8 = 7;

/// `RTN_LOCAL`
const LOCAL: u8 = 2;

/// Returns the user id of the owner of the TCP socket at `peer` that is connected to the socket
/// `fd`, whose own address is `local`.
///
/// Returns `None` if this network namespace has no such socket, if it is closed already (Linux
/// reports user 0 and no inode then), or if `fd` belongs to another network namespace. Errors are
/// those of netlink, where `/proc/net` does not answer either.
pub fn tcp_owner(fd: BorrowedFd<'_>, peer: SocketAddr, local: SocketAddr) -> Result<Option<u32>> {
    owner(Transport::Tcp, QuerySocket::of_sockets(), fd, peer, local)
}

/// Returns the user id of the owner of the UDP socket at `peer`, which has sent a datagram to the
/// socket `fd`. A socket that is bound to all addresses of the host counts as well.
///
/// Returns `None` as [`tcp_owner`] does. Users can share a port only if both set `SO_REUSEADDR`.
pub fn udp_owner(fd: BorrowedFd<'_>, peer: SocketAddr, local: SocketAddr) -> Result<Option<u32>> {
    // A socket at all addresses has received the datagram at one that is not known: mostly the
    // sender's, on loopback.
    let local = match local.ip().is_unspecified() {
        true => SocketAddr::new(peer.ip(), local.port()),
        false => local,
    };
    owner(Transport::Udp, QuerySocket::of_sockets(), fd, peer, local)
}

/// Returns the owner as `netlink` reports it, or `/proc/net` in its place.
fn owner(
    transport: Transport,
    netlink: Result<QuerySocket>,
    fd: BorrowedFd<'_>,
    peer: SocketAddr,
    local: SocketAddr,
) -> Result<Option<u32>> {
    let answer = netlink.and_then(|netlink| {
        let ours = crate::peer::network_namespace(netlink.as_fd());
        if crate::peer::network_namespace(fd) != ours {
            return Ok(None);
        }
        let found = inet_socket(&netlink, transport, peer, local)?;
        match found.is_some() || answers(&netlink, transport, peer, local) {
            true => Ok(found),
            false => Err(Errno::NOENT),
        }
    });
    match answer {
        Ok(found) => Ok(found.and_then(|answer| match transport {
            Transport::Tcp => tcp_owner_in(&answer, peer, local),
            Transport::Udp => udp_owner_in(&answer, peer),
        })),
        Err(error) => match owner_in_tables(transport, fd, peer, local) {
            // The connection has ended, or belongs to another network namespace.
            Err(Errno::NOENT) if error == Errno::NOENT => Ok(None),
            found => found.map_err(|_| error),
        },
    }
}

/// Returns whether the kernel answers queries about sockets of this transport, which is known once
/// it has found the socket at `local`. Without `CONFIG_INET_DIAG` it finds none (`ENOENT`).
fn answers(
    netlink: &QuerySocket,
    transport: Transport,
    peer: SocketAddr,
    local: SocketAddr,
) -> bool {
    static ANSWERS: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let answers = &ANSWERS[transport as usize];
    if !answers.load(Ordering::Relaxed) {
        let own = inet_socket(netlink, transport, local, peer);
        answers.store(matches!(own, Ok(Some(_))), Ordering::Relaxed);
    }
    answers.load(Ordering::Relaxed)
}

/// Returns the owner as the tables of sockets report it.
fn owner_in_tables(
    transport: Transport,
    fd: BorrowedFd<'_>,
    peer: SocketAddr,
    local: SocketAddr,
) -> Result<Option<u32>> {
    let inode = rustix::fs::fstat(fd)?.st_ino;
    let search = Search::new(transport, peer, local, inode).ok_or(Errno::NOENT)?;
    match KEPT.get() {
        Some(kept) => kept.tables(transport).lock().owner(search),
        None => SocketTables::open(transport).owner(search),
    }
}

/// Queries the Internet socket at `peer` of this network namespace. Returns `None` if it has no
/// such socket.
fn inet_socket(
    netlink: &QuerySocket,
    transport: Transport,
    peer: SocketAddr,
    local: SocketAddr,
) -> Result<Option<Vec<u8>>> {
    let (protocol, states, (family, id)) = match transport {
        Transport::Tcp => {
            let states = CONNECTED.iter().fold(0u32, |all, state| all | 1 << state);
            (libc::IPPROTO_TCP, states, socket_id(peer, local))
        }
        Transport::Udp => {
            let states = 1 << ESTABLISHED | 1 << CLOSE;
            // Linux takes the addresses of UDP sockets in the other order, "for historical
            // reasons".
            (libc::IPPROTO_UDP, states, socket_id(local, peer))
        }
    };
    // struct inet_diag_req_v2
    let mut request = vec![family.as_raw() as u8, protocol as u8, 0, 0];
    request.extend(states.to_ne_bytes());
    request.extend(id);
    // INET_DIAG_NOCOOKIE
    request.extend([0xff; 8]);
    socket(netlink, &request)
}

/// Queries a socket. Returns `None` if there is none.
fn socket(netlink: &QuerySocket, request: &[u8]) -> Result<Option<Vec<u8>>> {
    match query(netlink, SOCK_DIAG_BY_FAMILY, request) {
        Err(Errno::NOENT) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Parses `struct inet_diag_msg` about the TCP socket at `peer`.
fn tcp_owner_in(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (family, state) = (*answer.first()?, *answer.get(1)?);
    let ports = answer.get(4..8)?;
    let is_it = ports[..2] == peer.port().to_be_bytes()
        && ports[2..] == local.port().to_be_bytes()
        && address(family, answer.get(8..24)?) == Some(peer.ip().to_canonical())
        && address(family, answer.get(24..40)?) == Some(local.ip().to_canonical());
    let uid = open_socket_owner(answer)?;
    (is_it && CONNECTED.contains(&state)).then_some(uid)
}

/// Parses `struct inet_diag_msg` about the UDP socket at `peer`.
fn udp_owner_in(answer: &[u8], peer: SocketAddr) -> Option<u32> {
    let at = address(*answer.first()?, answer.get(8..24)?)?;
    let is_it = answer.get(4..6)? == peer.port().to_be_bytes()
        && (at == peer.ip().to_canonical() || at.is_unspecified());
    let uid = open_socket_owner(answer)?;
    is_it.then_some(uid)
}

/// Returns the user id in `struct inet_diag_msg`, if the socket is open.
fn open_socket_owner(answer: &[u8]) -> Option<u32> {
    let (uid, inode) = (number(answer, 64)?, number(answer, 68)?);
    (inode != 0).then_some(uid)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the user id of the owner of the Unix socket that is connected to the socket `fd`, as
/// the user namespace names it in which the process was when it kept its sockets; `SO_PEERCRED` is
/// of the present one.
///
/// Returns `None` if the peer is closed or was created in another network namespace, or before
/// Linux 5.3.
pub fn unix_owner(fd: BorrowedFd<'_>) -> Result<Option<u32>> {
    let netlink = QuerySocket::of_sockets()?;
    let inode = rustix::fs::fstat(fd)?.st_ino as u32;
    let Some(ours) = unix_socket(&netlink, inode)? else {
        return Ok(None);
    };
    let Some(peer) = attribute(&ours, UNIX_DIAG_PEER).filter(|&inode| inode != 0) else {
        return Ok(None);
    };
    let Some(theirs) = unix_socket(&netlink, peer)? else {
        return Ok(None);
    };
    // The number of a socket that was closed meanwhile may be another one's.
    if attribute(&theirs, UNIX_DIAG_PEER) != Some(inode) {
        return Ok(None);
    }
    Ok(attribute(&theirs, UNIX_DIAG_UID))
}

/// Attributes of a reply about a Unix socket (`linux/unix_diag.h`).
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_UID: u16 = 7;

/// Returns the attributes of the Unix socket with this inode number.
fn unix_socket(netlink: &QuerySocket, inode: u32) -> Result<Option<Vec<u8>>> {
    // UDIAG_SHOW_PEER, UDIAG_SHOW_UID
    const SHOW: u32 = 0x4 | 0x40;
    // struct unix_diag_req
    let mut request = vec![AddressFamily::UNIX.as_raw() as u8, 0, 0, 0];
    for number in [u32::MAX, inode, SHOW, u32::MAX, u32::MAX] {
        request.extend(number.to_ne_bytes());
    }
    let answer = socket(netlink, &request)?;
    // struct unix_diag_msg
    Ok(answer.and_then(|answer| answer.get(16..).map(<[u8]>::to_vec)))
}

/// Returns the number in the attribute `kind` among `attributes` (`struct rtattr`).
fn attribute(mut attributes: &[u8], kind: u16) -> Option<u32> {
    while let Some((head, rest)) = attributes.split_at_checked(4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if u16::from_ne_bytes([head[2], head[3]]) == kind {
            return number(rest, 0).filter(|_| len >= 8);
        }
        attributes = attributes.get(len.next_multiple_of(4).max(4)..)?;
    }
    None
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

    /// Returns what netlink and the tables say, which is the same.
    fn both(
        transport: Transport,
        fd: BorrowedFd<'_>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Result<Option<u32>> {
        let found = match transport {
            Transport::Tcp => tcp_owner(fd, peer, local),
            Transport::Udp => udp_owner(fd, peer, local),
        };
        // As where a seccomp profile refuses AF_NETLINK, and as without CONFIG_INET_DIAG.
        for error in [Errno::AFNOSUPPORT, Errno::NOENT] {
            let without = owner(transport, Err(error), fd, peer, local);
            // A connection that has ended is in no table.
            let without = without.or_else(|found| match found == error {
                true => Ok(None),
                false => Err(found),
            });
            assert_eq!(without, found, "{error}");
        }
        found
    }

    fn owner_of_peer(server: &TcpStream) -> Result<Option<u32>> {
        let at = (server.peer_addr(), server.local_addr());
        let (Ok(peer), Ok(local)) = at else {
            panic!("{at:?}");
        };
        both(Transport::Tcp, server.as_fd(), peer, local)
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
    fn the_owner_of_a_datagram_s_sender_is_found() {
        let own = rustix::process::geteuid().as_raw();
        let bind = |at: &str| std::net::UdpSocket::bind((at, 0)).expect("bound");
        for (at, from, to) in [
            ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
            ("127.0.0.1", "0.0.0.0", "127.0.0.1"),
            ("::1", "::1", "::1"),
            ("::", "::", "::1"),
            ("::", "0.0.0.0", "127.0.0.1"),
        ] {
            for connects in [false, true] {
                let (server, client) = (bind(at), bind(from));
                let local = server.local_addr().expect("an address");
                if connects {
                    client.connect((to, local.port())).expect("connected");
                    client.send(b"x").expect("sent");
                } else {
                    client.send_to(b"x", (to, local.port())).expect("sent");
                }
                let (_, peer) = server.recv_from(&mut [0]).expect("received");
                let found = both(Transport::Udp, server.as_fd(), peer, local);
                assert_eq!(found, Ok(Some(own)), "{at} {from} {connects}");
                drop(client);
                let found = both(Transport::Udp, server.as_fd(), peer, local);
                assert_eq!(found, Ok(None));
            }
        }
    }

    #[test]
    fn the_owner_of_a_unix_socket_is_that_of_the_other_end() {
        use std::os::unix::net::UnixStream;
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: switching users needs root");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&at).expect("bound");
        for (path, mode) in [(dir.path(), 0o755), (&*at, 0o666)] {
            let any = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, any).expect("set");
        }
        let other = std::thread::spawn(move || {
            crate::creds::set_fs_uid(65533).expect("root may");
            UnixStream::connect(at).expect("connected")
        });
        let (server, _) = listener.accept().expect("accepted");
        let client = other.join().expect("no panic");
        assert_eq!(unix_owner(server.as_fd()), Ok(Some(65533)));
        drop(client);
        assert_eq!(unix_owner(server.as_fd()), Ok(None));
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

    #[test]
    fn a_socket_that_sends_nothing_more_is_still_its_user_s() {
        let own = rustix::process::geteuid().as_raw();
        let (client, server) = connect("127.0.0.1", "127.0.0.1");
        client
            .shutdown(std::net::Shutdown::Write)
            .expect("shut down");
        assert_eq!(owner_of_peer(&server), Ok(Some(own)));
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
        assert_eq!(both(Transport::Tcp, server.as_fd(), peer, local), Ok(None));
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
        assert_eq!(both(Transport::Tcp, server.as_fd(), peer, local), Ok(None));
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
