//! The environment of the command of `--run`.

use transports::Addr;

/// Returns the variables of the protocol `name` with bound addresses `addrs`. `BARGE_` and the name
/// is the URL of the first address that the command can connect to; the variables of the same
/// prefix are parts of that address. `socket` returns the URL of a Unix socket.
pub(super) fn variables(
    name: &str,
    scheme: &str,
    addrs: &[Addr],
    socket: impl Fn(&str) -> String,
) -> Vec<(String, String)> {
    let variable = |part: &str, value| (format!("BARGE_{name}{part}"), value);
    for addr in addrs {
        match addr {
            Addr::Tcp { host, port } => {
                let shown = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.clone()
                };
                return vec![
                    variable("", format!("{scheme}://{shown}:{port}/")),
                    variable("_HOST", host.clone()),
                    variable("_PORT", port.to_string()),
                ];
            }
            Addr::Unix(path) => {
                let path = path.display().to_string();
                return vec![variable("", socket(&path)), variable("_SOCKET", path)];
            }
            // The command cannot connect to these.
            Addr::Vsock { .. } | Addr::VsockUds { .. } | Addr::Fd(_) => {}
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_that_takes_connections_is_in_the_environment() {
        let socket = |path: &str| format!("9p+unix:{path}");
        let variables = |texts: &[&str]| {
            let addrs = texts.iter().map(|addr| addr.parse().expect("an address"));
            variables("9P", "9p", &addrs.collect::<Vec<_>>(), socket)
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            variables(&["fd:7", "tcp:[::1]:99", "unix:/s"]),
            [
                pair("BARGE_9P", "9p://[::1]:99/"),
                pair("BARGE_9P_HOST", "::1"),
                pair("BARGE_9P_PORT", "99"),
            ]
        );
        assert_eq!(
            variables(&["unix:/s"]),
            [
                pair("BARGE_9P", "9p+unix:/s"),
                pair("BARGE_9P_SOCKET", "/s")
            ]
        );
        assert!(variables(&["vsock:1:2"]).is_empty());
    }
}
