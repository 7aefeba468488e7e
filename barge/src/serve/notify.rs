//! Calls to NLM clients, over UDP to the ports that their portmappers return: SM_NOTIFY after a
//! restart, as statd sends it, and results of asynchronous NLM calls (`*_RES`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use concurrency::ThreadPool;
use nfs::client::v3::{GetPort, NlmCall, Notify};
use nfs::client::{Body, Calls, ClientCall, Credentials, Received};
use nfs::nlm::Procedure;
use nfs::portmap;
use nfs::server::{Monitored, NlmCallback, Server};
use serde::{Deserialize, Serialize};
use vfs::Caller;

use super::host::Host;

/// Number of clients that are notified at once, so that clients that do not reply delay few others.
pub(super) const THREADS: usize = 16;

/// Timeout of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Attempts per client, of about a second each: they end within the ten seconds of grace that
/// clients have to be notified, and outlast the move of an address to this host after a takeover.
const MAX_ATTEMPTS: usize = 8;

/// Time after which no further client is notified.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(60);

/// The sender of calls to clients.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) host: Host,
    /// The source address of calls, if NFS is served at one: clients identify the server by it.
    pub(super) from: Option<IpAddr>,
}

/// A program of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientProgram {
    Nlm,
    Nsm,
}

/// Notifies the clients that `server` lists, on threads of their own.
pub(super) fn start(server: &Arc<Server>, sender: &Sender) {
    let clients = server.to_notify();
    let pool = ThreadPool::new("barge-nsm", THREADS, clients.len());
    let state = server.nsm_state();
    let end = Instant::now() + NOTIFY_TIMEOUT;
    for client in clients {
        let (server, sender) = (Arc::downgrade(server), sender.clone());
        pool.run(move || {
            if Instant::now() < end {
                notify_client(&server, &sender, &client, state);
            }
        });
    }
}

/// Notifies `client`, unless the server has been dropped meanwhile.
fn notify_client(server: &Weak<Server>, sender: &Sender, client: &Monitored, state: i32) {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    let portmapper = SocketAddr::new(client.addr, portmap::PORT);
    let notified =
        (0..MAX_ATTEMPTS).find_map(|_| send_notify(sender, portmapper, &name, state).ok());
    let Some(server) = server.upgrade() else {
        return;
    };
    let shown = client.name.escape_ascii();
    match notified {
        Some(()) => {
            tracing::info!(client = %shown, addr = %client.addr, "notified of the restart");
            server.notified();
        }
        None => {
            tracing::warn!(client = %shown, addr = %client.addr, "NSM does not reply: the client loses its locks");
        }
    }
}

/// Notifies the client whose portmapper is at `portmapper`, with one attempt.
fn send_notify(sender: &Sender, portmapper: SocketAddr, name: &str, state: i32) -> io::Result<()> {
    let program = ClientProgram::Nsm;
    let socket = sender.host.call_client(sender.from, portmapper, program)?;
    let name_of = name.as_bytes();
    ask(
        &socket,
        name,
        &Notify {
            name: name_of,
            state,
        },
        |()| (),
    )
}

/// Returns a UDP socket that is connected to the port that the portmapper at `portmapper` returns
/// for `program`, from the address `from` if it is of the same family. Waits for the reply, and as
/// long for an address or a route that the host does not have yet.
pub(super) fn connect(
    from: Option<IpAddr>,
    portmapper: SocketAddr,
    program: ClientProgram,
) -> io::Result<UdpSocket> {
    let program = match program {
        ClientProgram::Nlm => &GetPort::NLM,
        ClientProgram::Nsm => &GetPort::NSM,
    };
    let asked = socket(from, portmapper).inspect_err(|_| std::thread::sleep(REPLY_TIMEOUT))?;
    let port = ask(&asked, "", program, |port| port)?;
    if port == 0 {
        return Err(unregistered());
    }
    socket(from, SocketAddr::new(portmapper.ip(), port))
}

/// Returns a new UDP socket that is connected to `to`, from the address `from` if it is of the same
/// family.
fn socket(from: Option<IpAddr>, to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = from.filter(|from| from.is_ipv4() == any.is_ipv4());
    let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(socket)
}

/// Maximum number of queued calls. Further calls are dropped: the client retransmits its request.
const MAX_QUEUED_CALLS: usize = 1024;

/// Returns a function that sends NLM calls to clients on a pool of threads, which end when the
/// function is dropped.
pub(super) fn caller(sender: Sender) -> Arc<dyn Fn(NlmCallback) + Send + Sync> {
    const THREADS: usize = 4;
    let pool = ThreadPool::new("barge-nlm", THREADS, MAX_QUEUED_CALLS);
    Arc::new(move |call: NlmCallback| {
        let sender = sender.clone();
        pool.try_run(move || {
            let portmapper = SocketAddr::new(call.addr, portmap::PORT);
            if let Err(error) = send_callback(&sender, portmapper, &call) {
                tracing::debug!(addr = %call.addr, "NLM call failed: {error}");
            }
        });
    })
}

/// Sends a call to the client whose portmapper is at `portmapper`.
fn send_callback(sender: &Sender, portmapper: SocketAddr, call: &NlmCallback) -> io::Result<()> {
    let machine = "";
    let program = ClientProgram::Nlm;
    let socket = sender.host.call_client(sender.from, portmapper, program)?;
    let arguments = &call.arguments;
    macro_rules! by {
        ($procedure:ident) => {
            ask(
                &socket,
                machine,
                &NlmCall::<{ Procedure::$procedure as u32 }>(arguments),
                |()| (),
            )
        };
    }
    match call.procedure {
        Procedure::TestRes => by!(TestRes),
        Procedure::LockRes => by!(LockRes),
        Procedure::CancelRes => by!(CancelRes),
        _ => by!(UnlockRes),
    }
}

/// Sends a call in a datagram, and waits for the reply.
fn ask<A: ClientCall, T>(
    socket: &UdpSocket,
    machine: &str,
    request: &A,
    read: impl Fn(A::Answer<'_>) -> T,
) -> io::Result<T> {
    const MARK: usize = 4;
    let failed = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut calls = Calls::new(Credentials::new(machine), 1 << 16);
    let mut call = Vec::new();
    // A peer that has answered another call with this xid would answer as it did then.
    let xid = u32::from_ne_bytes(sys::random::bytes()?);
    calls
        .call(xid, &Caller::ROOT, request, &mut call)
        .map_err(|errno| failed(errno.to_string()))?;
    // Datagrams have no record mark.
    let sent = socket.send(&call[MARK..]);
    sent.inspect_err(|_| std::thread::sleep(REPLY_TIMEOUT))?;
    let mut reply = [0; MARK + 1024];
    let len = socket.recv(&mut reply[MARK..]).inspect_err(|error| {
        // No program listens at the port yet; it may soon.
        if error.kind() == io::ErrorKind::ConnectionRefused {
            std::thread::sleep(REPLY_TIMEOUT);
        }
    })?;
    reply[..MARK].copy_from_slice(&(len as u32 | 1 << 31).to_be_bytes());
    let reply = &reply[..MARK + len];
    match calls.receive(reply) {
        Ok(Received::Answer { result: Ok(()), .. }) => {}
        other => return Err(failed(format!("expected a reply, got {other:?}"))),
    }
    let body = Body::of(reply).map_err(|what| failed(what.to_string()))?;
    let answer = request.answer(body.bytes());
    answer.map(read).map_err(|why| failed(format!("{why:?}")))
}

fn unregistered() -> io::Error {
    std::thread::sleep(REPLY_TIMEOUT);
    io::ErrorKind::NotFound.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Sender = Sender {
        host: Host::Direct {
            socket_group: None,
            active: None,
        },
        from: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };

    /// Replies to the next call with `results`, and returns the call from the program number on.
    fn answer(socket: &UdpSocket, results: &[u8]) -> Vec<u8> {
        let mut call = [0; 1024];
        let (len, from) = socket.recv_from(&mut call).expect("a call");
        let head = [&call[..4], &[0, 0, 0, 1], &[0; 16], results].concat();
        socket.send_to(&head, from).expect("sent");
        call[12..len].to_vec()
    }

    #[test]
    fn a_portmapper_says_where_and_that_is_told_the_name_and_the_state() {
        let [portmapper, nsm] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bound"));
        let at = portmapper.local_addr().expect("an address");
        let port = u32::from(nsm.local_addr().expect("an address").port());
        let telling = std::thread::spawn(move || send_notify(&HERE, at, "server", 7));
        let query = answer(&portmapper, &port.to_be_bytes());
        let word = |number: u32| number.to_be_bytes();
        assert_eq!(query[..12], [word(100_000), word(2), word(3)].concat());
        assert!(query.ends_with(&[word(100_024), word(1), word(17), word(0)].concat()));
        let notify = answer(&nsm, &[]);
        assert_eq!(notify[..12], [word(100_024), word(1), word(6)].concat());
        let name = [&word(6)[..], b"server\0\0", &word(7)].concat();
        assert!(notify.ends_with(&name), "{notify:?}");
        assert!(telling.join().expect("no panic").is_ok());
    }

    #[test]
    fn an_attempt_from_an_address_that_is_not_here_yet_takes_the_time_of_one_without_a_reply() {
        let portmapper = "127.0.0.1:111".parse().expect("an address");
        let sender = Sender {
            from: "192.0.2.1".parse().ok(),
            ..HERE
        };
        let start = Instant::now();
        assert!(send_notify(&sender, portmapper, "server", 7).is_err());
        assert!(start.elapsed() >= REPLY_TIMEOUT);
    }

    #[test]
    fn an_answer_by_a_call_arrives_as_it_was_given() {
        let [portmapper, nlm] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bound"));
        let at = portmapper.local_addr().expect("an address");
        let port = u32::from(nlm.local_addr().expect("an address").port());
        let call = NlmCallback {
            addr: at.ip(),
            procedure: Procedure::LockRes,
            arguments: b"results!".to_vec(),
        };
        let calling = std::thread::spawn(move || send_callback(&HERE, at, &call));
        let word = |number: u32| number.to_be_bytes();
        let query = answer(&portmapper, &word(port));
        assert!(query.ends_with(&[word(100_021), word(4), word(17), word(0)].concat()));
        let called = answer(&nlm, &[]);
        assert_eq!(called[..12], [word(100_021), word(4), word(12)].concat());
        assert!(called.ends_with(b"results!"), "{called:?}");
        assert!(calling.join().expect("no panic").is_ok());
    }

    #[test]
    fn who_is_not_there_or_has_no_nsm_is_not_told() {
        let portmapper = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let at = portmapper.local_addr().expect("an address");
        let telling = std::thread::spawn(move || send_notify(&HERE, at, "server", 7));
        answer(&portmapper, &[0; 4]);
        assert!(telling.join().expect("no panic").is_err());
        drop(portmapper);
        assert!(send_notify(&HERE, at, "server", 7).is_err());
    }
}
