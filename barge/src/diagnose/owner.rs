//! The process that uses a port or socket of this host, if this process may know: /proc shows
//! descriptors of other users to root only. Sources: proc_net(5), proc_pid_fd(5).

use std::fs;
use std::path::Path;

/// Returns the process that listens at a TCP port: `NAME (process N)`.
pub(super) fn port_owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).ok());
    let inode = tables
        .iter()
        .flatten()
        .find_map(|table| listening_inode(table, port));
    owner(&inode?)
}

/// Returns the process that listens at a Unix socket.
pub(super) fn socket_owner(path: &Path) -> Option<String> {
    // Abstract names are arbitrary bytes.
    let table = fs::read("/proc/net/unix").ok()?;
    owner(&socket_inode(
        &String::from_utf8_lossy(&table),
        path.to_str()?,
    )?)
}

/// Returns the inode number of the socket that listens at `port`, from a table of TCP sockets.
fn listening_inode(table: &str, port: u16) -> Option<String> {
    const TCP_LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, at) = fields.get(1)?.rsplit_once(':')?;
        let found = u16::from_str_radix(at, 16) == Ok(port) && *fields.get(3)? == TCP_LISTEN;
        found.then(|| fields.get(9).map(|inode| inode.to_string()))?
    })
}

/// Returns the inode number of the socket that listens at `path`, from the table of Unix sockets.
/// Sockets of accepted connections have the same path.
fn socket_inode(table: &str, path: &str) -> Option<String> {
    table.lines().skip(1).find_map(|line| {
        const SO_ACCEPTCON: &str = "00010000";
        // The path after the inode number may contain spaces.
        let (fields, at) = line.split_at_checked(line.find(path)?)?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [_, _, _, flags, _, _, inode] = fields[..] else {
            return None;
        };
        (at == path && flags == SO_ACCEPTCON).then(|| inode.to_owned())
    })
}

/// Returns a process that has this socket open.
fn owner(inode: &str) -> Option<String> {
    let link = format!("socket:[{inode}]");
    let has = |process: &Path| {
        let fds = fs::read_dir(process.join("fd")).ok()?;
        let mut links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|to| to == Path::new(&link)).then_some(())
    };
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        has(&process.path())?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some(format!("{} (process {number})", name.trim_end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                   0: 0100007F:1608 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 7 1 0 20 4 24 10 -1\n\
                   1: 0100007F:1608 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9134 1 0 100 0 0 10 0\n";
        assert_eq!(listening_inode(tcp, 0x1608).as_deref(), Some("9134"));
        assert_eq!(listening_inode(tcp, 1), None);
        assert_eq!(listening_inode("\nnonsense", 1), None);
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00000000 0001 02     0 /run/a b\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 11538 /run/a b\n";
        assert_eq!(socket_inode(unix, "/run/a b").as_deref(), Some("11538"));
        assert_eq!(socket_inode(unix, "b"), None);
    }

    #[test]
    fn the_owner_of_what_is_here_is_this_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let owner = port_owner(port).expect("found");
        assert!(owner.ends_with(&format!("(process {})", std::process::id())));
    }
}
