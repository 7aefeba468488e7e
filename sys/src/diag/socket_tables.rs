//! The tables of Internet sockets in `/proc/net` (proc_net(5)), for kernels without
//! `CONFIG_INET_DIAG` and sandboxes that refuse sock_diag(7).
//!
//! A table names every socket of a network namespace, so that a search costs more than a query, and
//! is limited in bytes and time.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};

use super::{CLOSE, CONNECTED, ESTABLISHED, Transport};

/// The maximum length in bytes of the tables that one search reads: about 50,000 sockets.
const MAX_LEN: u64 = 8 << 20;

/// The maximum duration of one search, which an accepted connection waits for. Linux walks a hash
/// table of up to 2²⁰ rows, 8 ms for 2¹⁸, and others may have the processor meanwhile.
const MAX_DURATION: Duration = Duration::from_secs(1);

/// The tables of one transport, over IPv4 and IPv6. A host without IPv6 has no table of it.
pub(super) struct SocketTables {
    v4: Result<File>,
    v6: Result<File>,
}

impl SocketTables {
    /// Opens the tables of the network namespace of the calling thread. Owners are named as its
    /// user namespace names them.
    pub(super) fn open(transport: Transport) -> SocketTables {
        let name = match transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        let open = |version| {
            let path = format!("/proc/thread-self/net/{name}{version}");
            let opened = File::open(path);
            opened.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        SocketTables {
            v4: open(""),
            v6: open("6"),
        }
    }

    /// Completes `search`, and returns the owner that it finds. Returns `TIMEDOUT` if the tables
    /// are too long, and `NOENT` if they do not have the searching socket itself: they belong to
    /// another network namespace, or the socket has no connection any more.
    pub(super) fn owner(&self, mut search: Search) -> Result<Option<u32>> {
        let mut limit = Limit {
            left: MAX_LEN,
            end: Instant::now() + MAX_DURATION,
        };
        // A socket of IPv6 can have an IPv4-mapped address.
        if search.peer.is_ipv4() {
            read_lines(
                self.v4.as_ref().map_err(|error| *error)?,
                &mut limit,
                |line| {
                    search.take(line);
                },
            )?;
        }
        if let Ok(file) = &self.v6
            && !search.is_complete()
        {
            read_lines(file, &mut limit, |line| search.take(line))?;
        }
        search.result()
    }
}

/// The remaining length and time of a search.
struct Limit {
    left: u64,
    end: Instant,
}

/// Reads a table from its beginning, and gives each of its lines to `take`.
fn read_lines(file: &File, limit: &mut Limit, mut take: impl FnMut(&str)) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let (mut at, mut kept) = (0, 0);
    loop {
        if limit.left == 0 || Instant::now() >= limit.end {
            return Err(Errno::TIMEDOUT);
        }
        let read = match file.read_at(&mut buffer[kept..], at) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
        at += read as u64;
        limit.left = limit.left.saturating_sub(read as u64);
        let filled = kept + read;
        let whole = buffer[..filled].iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |at| at + 1);
        // A line of these tables has less than 200 bytes.
        if whole == 0 && filled == buffer.len() {
            return Err(Errno::BADMSG);
        }
        let text = std::str::from_utf8(&buffer[..whole]).map_err(|_| Errno::BADMSG)?;
        text.lines().for_each(&mut take);
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
}

/// A search for the owner of the socket at `peer`, by the socket at `local` that is its peer.
pub(super) struct Search {
    transport: Transport,
    peer: SocketAddr,
    local: SocketAddr,
    /// The inode number of the searching socket.
    inode: u64,
    /// Whether the tables have the searching socket.
    has_own: bool,
    /// The owners of sockets at `peer`.
    owners: Vec<u32>,
}

impl Search {
    /// Returns `None` if the addresses do not suffice: those of a link name its interface as well,
    /// which the tables leave out.
    pub(super) fn new(
        transport: Transport,
        peer: SocketAddr,
        local: SocketAddr,
        inode: u64,
    ) -> Option<Search> {
        let of_link = |addr: SocketAddr| match addr.ip() {
            IpAddr::V4(_) => false,
            IpAddr::V6(addr) => addr.is_unicast_link_local(),
        };
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        (!of_link(peer)).then(|| Search {
            transport,
            peer: canonical(peer),
            local: canonical(local),
            inode,
            has_own: false,
            owners: Vec::new(),
        })
    }

    /// Considers one line of a table.
    fn take(&mut self, line: &str) {
        let Some(row) = Row::parse(line) else {
            return;
        };
        if row.inode == self.inode && row.local.port() == self.local.port() {
            self.has_own = true;
        }
        let (is_it, states) = match self.transport {
            Transport::Tcp => (
                row.local == self.peer && row.remote == self.local,
                &CONNECTED[..],
            ),
            Transport::Udp => {
                let at = row.local.ip();
                let there = at == self.peer.ip() || at.is_unspecified();
                let to_us = row.remote.port() == 0 || row.remote.port() == self.local.port();
                let port = row.local.port() == self.peer.port();
                (there && to_us && port, &[ESTABLISHED, CLOSE][..])
            }
        };
        // A socket that is closed already has no inode, and user 0 for an owner.
        if is_it && states.contains(&row.state) && row.inode != 0 {
            self.owners.push(row.uid);
        }
    }

    /// Returns whether no other line changes the result: one TCP socket at most has both addresses.
    fn is_complete(&self) -> bool {
        matches!(self.transport, Transport::Tcp) && self.has_own && !self.owners.is_empty()
    }

    fn result(mut self) -> Result<Option<u32>> {
        if !self.has_own {
            return Err(Errno::NOENT);
        }
        self.owners.sort_unstable();
        self.owners.dedup();
        match self.owners[..] {
            [owner] => Ok(Some(owner)),
            // There is no such socket, or several users have one.
            _ => Ok(None),
        }
    }
}

/// A line of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    uid: u32,
    inode: u64,
}

impl Row {
    /// Parses a line (`tcp4_seq_show()`, `tcp6_seq_show()`, `udp4_format_sock()` and
    /// `__ip6_dgram_sock_seq_show()` of Linux). Returns `None` for the heading.
    fn parse(line: &str) -> Option<Row> {
        let mut fields = line.split_ascii_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        // Queues, timers and retransmissions precede the user, and a time-out the inode.
        let uid = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Row {
            local,
            remote,
            state,
            uid,
            inode,
        })
    }
}

/// Parses an address: words of 32 bits as this processor reads them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(words.get(8 * at..8 * at + 8)?, 16).ok();
    let addr = match words.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(addr, port))
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1608 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 41223 1 \
000000002912ede0 100 0 0 10 0
   1: 0100007F:1608 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1001        0 41230 1 \
0000000081cbc7a4 20 4 30 10 -1
   2: 0100007F:C350 0100007F:1608 01 00000025:00000000 01:00000014 00000000 65534        0 41229 2 \
000000005b2cd1f6 20 4 0 10 -1
   3: 0100007F:C352 0100007F:1608 06 00000000:00000000 03:00001681 00000000     0        0 0 3 \
0000000055a9f9c7
";

    const TCP6: &str = "\
  sl  local_address                         remote_address                        st tx_queue \
rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:1608 00000000000000000000000000000000:0000 0A \
00000000:00000000 00:00000000 00000000  1001        0 41400 1 00000000c9ff8d2a 100 0 0 10 0
   1: B80D0120000000000000000001000000:C354 B80D0120000000000000000001000000:1608 01 \
00000000:00000000 00:00000000 00000000  1002        0 41402 1 000000000d4dd6a0 20 4 1 10 -1
   2: 0000000000000000FFFF00000100007F:C356 0000000000000000FFFF00000100007F:1608 08 \
00000000:00000000 00:00000000 00000000  1003        0 41404 1 00000000f8f05a41 20 4 1 10 -1
";

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Searches both texts for the owner of a TCP socket.
    fn owner(peer: &str, local: &str, inode: u64) -> Result<Option<u32>> {
        let search = Search::new(Transport::Tcp, addr(peer), addr(local), inode);
        let mut search = search.expect("the addresses suffice");
        for line in TCP.lines().chain(TCP6.lines()) {
            search.take(line);
        }
        search.result()
    }

    #[test]
    fn lines_of_both_tables_are_parsed() {
        let rows = |text: &str| text.lines().filter_map(Row::parse).collect::<Vec<_>>();
        let tcp = rows(TCP);
        assert_eq!(tcp.len(), 4);
        let row = Row {
            local: addr("127.0.0.1:50000"),
            remote: addr("127.0.0.1:5640"),
            state: ESTABLISHED,
            uid: 65534,
            inode: 41229,
        };
        assert_eq!(tcp[2], row);
        let row = Row {
            local: addr("[2001:db8::1]:50004"),
            remote: addr("[2001:db8::1]:5640"),
            state: ESTABLISHED,
            uid: 1002,
            inode: 41402,
        };
        assert_eq!(rows(TCP6)[1], row);
        for broken in [
            "",
            "0: ",
            "0: 0100007F 0100007F:1 01",
            "0: 01:1 01:1 01 0 0 0 0 0 0",
        ] {
            assert_eq!(Row::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_owner_is_that_of_the_peer_s_line() {
        let here = "127.0.0.1:5640";
        assert_eq!(owner("127.0.0.1:50000", here, 41230), Ok(Some(65534)));
        let (there, here) = ("[2001:db8::1]:50004", "[2001:db8::1]:5640");
        assert_eq!(owner(there, here, 41400), Ok(Some(1002)));
        // An IPv4-mapped address.
        let (there, here) = ("[::ffff:127.0.0.1]:50006", "127.0.0.1:5640");
        assert_eq!(owner(there, here, 41230), Ok(Some(1003)));
    }

    #[test]
    fn closed_sockets_other_ports_and_other_namespaces_have_no_owner() {
        let here = "127.0.0.1:5640";
        assert_eq!(owner("127.0.0.1:50002", here, 41230), Ok(None));
        assert_eq!(owner("127.0.0.1:50008", here, 41230), Ok(None));
        // The searching socket is in no line.
        assert_eq!(owner("127.0.0.1:50000", here, 7), Err(Errno::NOENT));
        let of_link = addr("[fe80::1]:50000");
        assert!(Search::new(Transport::Tcp, of_link, addr(here), 41230).is_none());
    }

    #[test]
    fn a_table_that_is_too_long_is_an_error() {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, TCP.as_bytes()).expect("written");
        let read = |left, duration| {
            let end = Instant::now() + duration;
            let mut lines = 0;
            read_lines(&file, &mut Limit { left, end }, |_| lines += 1).map(|()| lines)
        };
        assert_eq!(read(MAX_LEN, MAX_DURATION), Ok(5));
        assert_eq!(read(100, MAX_DURATION), Err(Errno::TIMEDOUT));
        assert_eq!(read(MAX_LEN, Duration::ZERO), Err(Errno::TIMEDOUT));
    }
}
