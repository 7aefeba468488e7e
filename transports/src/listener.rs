use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use sys::vsock::VsockAddr;
use vfs::LogLimit;
use vfs::peer::GuestId;

use crate::accept::{Backoff, Severity};
use crate::link::timespec;
use crate::{Addr, StreamLink, vsock};

/// A source of connections.
pub struct Listener {
    source: Source,
    addr: Addr,
    /// The file of a Unix socket, which this server created.
    file: Option<PathBuf>,
    /// Whether the file is removed when this listener is dropped.
    removes_file: AtomicBool,
    /// The rate limit for log lines about errors of accept(2).
    log_limit: LogLimit<()>,
    /// The only guest whose connections arrive here.
    guest: Option<GuestId>,
}

enum Source {
    Socket(OwnedFd),
    /// An inherited connection: the only one.
    Single(Mutex<Option<OwnedFd>>),
}

impl Listener {
    /// Listens at `addr`. Replaces the file of a Unix socket without a listener. Only this user may
    /// connect to a Unix socket that has a file.
    pub fn bind(addr: &Addr) -> io::Result<Listener> {
        Listener::bind_for(addr, None)
    }

    /// Does the same as [`Listener::bind`], and allows members of the group with the id `group` to
    /// connect to a Unix socket as well.
    pub fn bind_for(addr: &Addr, group: Option<u32>) -> io::Result<Listener> {
        match addr {
            Addr::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port))?;
                let port = listener.local_addr()?.port();
                let addr = Addr::Tcp {
                    host: host.clone(),
                    port,
                };
                Ok(Listener {
                    source: Source::Socket(listener.into()),
                    addr,
                    file: None,
                    removes_file: AtomicBool::new(true),
                    log_limit: LogLimit::new(),
                    guest: None,
                })
            }
            Addr::Unix(path) => {
                let (listener, file) = bind_unix(path, group)?;
                Ok(Listener {
                    source: Source::Socket(listener),
                    addr: addr.clone(),
                    file,
                    removes_file: AtomicBool::new(true),
                    log_limit: LogLimit::new(),
                    guest: None,
                })
            }
            Addr::Vsock { cid, port } => {
                let (socket, port) = vsock::listen(*cid, *port)?;
                Ok(Listener {
                    source: Source::Socket(socket),
                    addr: Addr::Vsock { cid: *cid, port },
                    file: None,
                    removes_file: AtomicBool::new(true),
                    log_limit: LogLimit::new(),
                    guest: None,
                })
            }
            Addr::VsockUds { path, port } => {
                let (listener, file) = bind_unix(&vsock::uds_of_port(path, *port), group)?;
                Ok(Listener {
                    source: Source::Socket(listener),
                    addr: addr.clone(),
                    file,
                    removes_file: AtomicBool::new(true),
                    log_limit: LogLimit::new(),
                    guest: Some(next_guest()),
                })
            }
            Addr::Fd(number) => Listener::from_fd(sys::inherit::fd(*number)?, addr),
        }
    }

    /// Listens on a socket that another process has bound to `addr`, or serves a connection. The
    /// file of a Unix socket stays when it is dropped.
    pub fn from_fd(fd: OwnedFd, addr: &Addr) -> io::Result<Listener> {
        let (source, bound) = match sockopt::socket_acceptconn(&fd) {
            Ok(true) => {
                let bound = local_addr(&fd)?;
                (Source::Socket(fd), bound)
            }
            _ => (Source::Single(Mutex::new(Some(fd))), None),
        };
        let addr = match addr {
            Addr::Fd(_) => bound.unwrap_or_else(|| addr.clone()),
            named => named.clone(),
        };
        Ok(Listener {
            source,
            file: None,
            removes_file: AtomicBool::new(true),
            log_limit: LogLimit::new(),
            guest: matches!(addr, Addr::VsockUds { .. }).then(next_guest),
            addr,
        })
    }

    /// Listens on a socket that an earlier program of this server had bound to `addr`. `has_file`
    /// says whether that created the file of a Unix socket, which stays until
    /// [`Listener::own_file`].
    pub fn inherit(fd: OwnedFd, addr: &Addr, has_file: bool) -> io::Result<Listener> {
        let mut listener = Listener::from_fd(fd, addr)?;
        listener.file = match addr {
            Addr::Unix(path) if has_file => Some(path.clone()),
            Addr::VsockUds { path, port } if has_file => Some(vsock::uds_of_port(path, *port)),
            _ => None,
        };
        listener.keep_file();
        Ok(listener)
    }

    /// Makes the file of a Unix socket stay when it is dropped.
    pub fn keep_file(&self) {
        self.removes_file.store(false, Ordering::Relaxed);
    }

    /// Makes it remove the file of its Unix socket when it is dropped, if this server created that.
    pub fn own_file(&self) {
        self.removes_file.store(true, Ordering::Relaxed);
    }

    /// Returns whether this server created the file of its Unix socket.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns its address: with the port that the system chose, if any, and for an inherited
    /// socket the address that clients connect to.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Duplicates its socket as a descriptor that a program executed next inherits, where
    /// [`Addr::Fd`] listens. Returns `EBADF` for an inherited connection that was accepted.
    pub fn inheritable(&self) -> io::Result<OwnedFd> {
        match &self.source {
            Source::Socket(socket) => Ok(rustix::io::dup(socket)?),
            Source::Single(connection) => match &*connection.lock() {
                Some(connection) => Ok(rustix::io::dup(connection)?),
                None => Err(rustix::io::Errno::BADF.into()),
            },
        }
    }

    /// Duplicates its socket for another process, where [`Listener::from_fd`] listens. An inherited
    /// connection is given away. Returns `EBADF` if it was accepted or given away before.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        match &self.source {
            Source::Socket(socket) => Ok(rustix::io::fcntl_dupfd_cloexec(socket, 0)?),
            Source::Single(connection) => {
                let connection = connection.lock().take();
                connection.ok_or_else(|| rustix::io::Errno::BADF.into())
            }
        }
    }

    /// Accepts the next connection. Returns `None` if there will be no more, or `stop` is readable.
    pub fn accept(&self, stop: BorrowedFd<'_>) -> io::Result<Option<StreamLink>> {
        let link = loop {
            let Some((fd, peer)) = self.accept_socket(stop)? else {
                return Ok(None);
            };
            match StreamLink::new(fd, peer) {
                Ok(link) => break link,
                Err(error) => tracing::debug!("connection lost: {error}"),
            }
        };
        Ok(Some(self.of_guest(link)))
    }

    /// Returns the link of a connection that another process has accepted at the same address, from
    /// the peer with the name `peer`.
    pub fn adopt(&self, connection: OwnedFd, peer: String) -> io::Result<StreamLink> {
        Ok(self.of_guest(StreamLink::new(connection, peer)?))
    }

    fn of_guest(&self, link: StreamLink) -> StreamLink {
        match self.guest {
            Some(guest) => link.with_guest(guest),
            None => link,
        }
    }

    /// Does the same as [`Listener::accept`], and returns the socket and the peer's name.
    pub fn accept_socket(&self, stop: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, String)>> {
        let socket = match &self.source {
            Source::Socket(socket) => socket,
            Source::Single(fd) => {
                let fd = fd.lock().take();
                return Ok(fd.map(|fd| (fd, self.addr.to_string())));
            }
        };
        let accept = || rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC);
        let accepted = self.accept_with(socket, stop, accept)?;
        Ok(accepted.map(|(fd, peer)| (fd, self.name(peer))))
    }

    /// Returns the next connection from `accept`, called when `socket` is readable, and retries
    /// after errors that are not final.
    fn accept_with<C>(
        &self,
        socket: &OwnedFd,
        stop: BorrowedFd<'_>,
        mut accept: impl FnMut() -> rustix::io::Result<C>,
    ) -> io::Result<Option<C>> {
        let mut backoff = Backoff::default();
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(socket, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                done => done?,
            };
            if !fds[0].revents().is_empty() {
                return Ok(None);
            }
            let error = match accept() {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) => error,
            };
            let pause = match Severity::of(error) {
                Severity::Connection => continue,
                Severity::Listener => return Err(error.into()),
                Severity::System => backoff.next(),
            };
            if let Some(suppressed) = self.log_limit.permit(()) {
                let addr = &self.addr;
                tracing::warn!(%addr, suppressed, "cannot accept connections for now: {}", error_text(error));
            }
            if wait_for(stop, pause)? {
                return Ok(None);
            }
        }
    }

    fn name(&self, peer: Option<rustix::net::SocketAddrAny>) -> String {
        if let Some(VsockAddr { cid, port }) = peer.as_ref().and_then(VsockAddr::of) {
            return format!("vsock:{cid}:{port}");
        }
        match peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok()) {
            Some(peer) => format!("tcp:{peer}"),
            None => self.addr.to_string(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && self.removes_file.load(Ordering::Relaxed)
        {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Returns a number for the guest of a listener that serves a single one.
fn next_guest() -> GuestId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    GuestId::Listener(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the address at which clients reach a listening socket, if any.
fn local_addr(socket: &OwnedFd) -> io::Result<Option<Addr>> {
    let any = rustix::net::getsockname(socket)?;
    if let Ok(ip) = std::net::SocketAddr::try_from(any.clone()) {
        let (host, port) = (ip.ip().to_string(), ip.port());
        return Ok(Some(Addr::Tcp { host, port }));
    }
    if let Some(VsockAddr { cid, port }) = VsockAddr::of(&any) {
        let cid = (cid != VsockAddr::ANY).then_some(cid);
        return Ok(Some(Addr::Vsock { cid, port }));
    }
    let unix = SocketAddrUnix::try_from(any)?;
    let name = unix.abstract_name().map(|name| [b"@", name].concat());
    let path = name.or_else(|| unix.path_bytes().map(<[u8]>::to_vec));
    Ok(path.map(|path| Addr::Unix(PathBuf::from(OsString::from_vec(path)))))
}

fn bind_unix(path: &Path, group: Option<u32>) -> io::Result<(OwnedFd, Option<PathBuf>)> {
    if let Some(addr) = abstract_addr(path)? {
        return Ok((UnixListener::bind_addr(&addr)?.into(), None));
    }
    let socket = match bind_private(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            bind_private(path)
        }
        done => done,
    }?;
    let opened = group.map_or(Ok(()), |group| allow_group(path, group));
    if let Err(error) = opened.and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?)) {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok((socket, Some(path.to_owned())))
}

/// The maximum number of connections that wait to be accepted, as in std.
const BACKLOG: i32 = 128;

/// Creates a socket bound to `path`, to which only this user may connect. The file has its mode
/// from its creation on: Linux takes it from the socket's own inode (`unix_bind_bsd()` in
/// `net/unix/af_unix.c`).
fn bind_private(path: &Path) -> io::Result<OwnedFd> {
    let addr = SocketAddrUnix::new(path)?;
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &addr)?;
    Ok(socket)
}

/// Allows the members of a group to connect to the socket at `path`, which does not listen yet.
fn allow_group(path: &Path, group: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let group = rustix::fs::Gid::from_raw(group);
    rustix::fs::chownat(&file, c"", None, Some(group), AtFlags::EMPTY_PATH)?;
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    Ok(rustix::fs::chmod(itself, mode)?)
}

fn abstract_addr(path: &Path) -> io::Result<Option<SocketAddr>> {
    path.as_os_str()
        .as_bytes()
        .strip_prefix(b"@")
        .map(SocketAddr::from_abstract_name)
        .transpose()
}

fn is_abandoned(path: &Path) -> bool {
    // connect(2) refuses other files with the same error.
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket
        && matches!(UnixStream::connect(path), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Waits until `stop` is readable, for `time` at most, and returns whether it is.
fn wait_for(stop: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    let time = timespec(time);
    match poll(&mut fds, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error's text, and the limit that was reached if it can be raised.
fn error_text(error: rustix::io::Errno) -> String {
    let text = io::Error::from(error);
    match error {
        rustix::io::Errno::MFILE => format!(
            "{text}: the limit is {} (RLIMIT_NOFILE); clients wait until connections are closed",
            sys::limits::descriptors()
        ),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, dial};
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    fn exchange(addr: &Addr) {
        let listener = Listener::bind(addr).expect("bound");
        let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let client = dial(listener.addr()).expect("connected");
        let server = listener
            .accept(never.as_fd())
            .expect("accepted")
            .expect("one");
        assert_eq!(client.send(b"ping", true).expect("sent"), 4);
        let mut buf = [0; 8];
        assert_eq!(server.recv(&mut buf, true).expect("received"), 4);
        assert_eq!(&buf[..4], b"ping");
        let none = server.recv(&mut buf, false).map_err(|error| error.kind());
        assert_eq!(none, Err(ErrorKind::WouldBlock));
        server.end_input();
        assert_eq!(server.recv(&mut buf, true).expect("the end"), 0);
    }

    #[test]
    fn tcp_carries_both_ways() {
        exchange(&Addr::Tcp {
            host: "127.0.0.1".into(),
            port: 0,
        });
    }

    #[test]
    fn unix_carries_both_ways_and_replaces_only_what_is_abandoned() {
        let dir = tempfile::tempdir().expect("a directory");
        let addr = Addr::Unix(dir.path().join("socket"));
        exchange(&addr);
        assert!(!dir.path().join("socket").exists(), "removed when dropped");
        let abandoned = UnixListener::bind(dir.path().join("socket")).expect("bound");
        assert_eq!(
            Listener::bind(&addr).err().map(|error| error.kind()),
            Some(ErrorKind::AddrInUse)
        );
        drop(abandoned);
        exchange(&addr);
        // The random name of the directory is unused as an abstract one, too.
        exchange(&Addr::Unix(format!("@{}", dir.path().display()).into()));
    }

    /// Polls the mode of the file, as another user does to connect once the mode permits it.
    #[test]
    fn the_file_of_a_socket_is_this_user_s_from_the_beginning_and_a_group_s_if_it_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let mode = |path: &Path| {
            let found = std::fs::symlink_metadata(path).ok()?;
            Some((found.mode() & 0o7777, found.gid()))
        };
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                while !done.load(Ordering::SeqCst) {
                    seen.extend(mode(&path));
                }
                seen
            });
            for _ in 0..100 {
                drop(Listener::bind(&Addr::Unix(path.clone())).expect("bound"));
            }
            done.store(true, Ordering::SeqCst);
            let own = rustix::process::getegid().as_raw();
            let seen = seen.join().expect("no panic");
            assert!(seen.iter().all(|is| *is == (0o600, own)), "{seen:?}");
        });
        let group = match rustix::process::geteuid().is_root() {
            true => 65534,
            false => rustix::process::getegid().as_raw(),
        };
        let _listener = Listener::bind_for(&Addr::Unix(path.clone()), Some(group)).expect("bound");
        assert_eq!(mode(&path), Some((0o660, group)));
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").expect("written");
        let bound = Listener::bind(&Addr::Unix(path.clone()));
        let error = bound.err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::AddrInUse));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "mine");
    }

    #[test]
    fn vsock_carries_both_ways() {
        let cid = Some(VsockAddr::LOCAL);
        match Listener::bind(&Addr::Vsock { cid, port: 0 }) {
            Ok(_) => exchange(&Addr::Vsock { cid, port: 0 }),
            Err(error) => eprintln!("skipped: no vsock with a loopback: {error}"),
        }
    }

    #[test]
    fn a_guest_s_connections_come_to_the_port_s_own_socket_and_from_nowhere_here() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm");
        let listener = Listener::bind(&Addr::VsockUds { path, port: 5640 }).expect("bound");
        let _guest = UnixStream::connect(dir.path().join("vm_5640")).expect("connected");
        let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let link = listener.accept(never.as_fd()).expect("accepted");
        let origin = link.expect("one").origin();
        assert!(matches!(origin, vfs::Origin::Guest(_)), "{origin:?}");
        drop(listener);
        assert!(!dir.path().join("vm_5640").exists(), "removed when dropped");
    }

    #[test]
    fn errors_of_accept_pass_unless_the_socket_is_of_no_use() {
        use rustix::io::Errno;
        let addr = "tcp:127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&addr).expect("bound");
        let _client = dial(listener.addr()).expect("connected");
        let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let Source::Socket(socket) = &listener.source else {
            panic!("no socket");
        };
        let odd = [
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::PERM,
            Errno::NETDOWN,
            Errno::MFILE,
            Errno::CONNABORTED,
        ];
        let mut errors = odd.into_iter();
        let accepted = listener.accept_with(socket, never.as_fd(), || match errors.next() {
            Some(error) => Err(error),
            None => rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC),
        });
        assert!(accepted.expect("no error is final").is_some());
        // Two clients, one of them still connected: final errors are reported while a connection
        // waits.
        let _other = dial(listener.addr()).expect("connected");
        for error in [Errno::BADF, Errno::INVAL, Errno::NOTSOCK] {
            let accepted = listener.accept_with(socket, never.as_fd(), || Err::<(), _>(error));
            assert_eq!(
                accepted.map_err(|error| error.raw_os_error()),
                Err(Some(error.raw_os_error()))
            );
        }
    }

    #[test]
    fn a_pause_after_an_error_of_accept_ends_with_the_listener() {
        let addr = "tcp:127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&addr).expect("bound");
        let _client = dial(listener.addr()).expect("connected");
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let Source::Socket(socket) = &listener.source else {
            panic!("no socket");
        };
        let accepted = listener.accept_with(socket, stop.as_fd(), || {
            rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("written");
            Err::<(), _>(rustix::io::Errno::NOMEM)
        });
        assert!(accepted.expect("no error").is_none());
    }

    #[test]
    fn accept_stops() {
        let listener = Listener::bind(&Addr::Tcp {
            host: "127.0.0.1".into(),
            port: 0,
        })
        .expect("bound");
        let stop = eventfd(1, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(listener.accept(stop.as_fd()).expect("no error").is_none());
    }
}
