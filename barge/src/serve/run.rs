//! `--run`: runs a command, after which the server ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use transports::Addr;

use super::Addrs;
use crate::Failure;

/// Runs `command` in a shell with the addresses in its environment and the umask that this program
/// was started with. Returns the command's exit status, or 128 plus the signal's number if a signal
/// ended it, as a shell does.
pub(super) fn run(command: &str, addrs: &Addrs, umask: Option<u32>) -> Result<ExitCode, Failure> {
    let mut shell = Command::new("sh");
    // Needed only if threads could not have their own umask (`hostdir`).
    let command = match umask.filter(|_| sys::umask::current() != umask) {
        Some(umask) => format!("umask {umask:04o}\n{command}"),
        None => command.to_owned(),
    };
    shell.args(["-c", &command]).envs(environment(addrs));
    for name in [
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "NOTIFY_SOCKET",
    ] {
        shell.env_remove(name);
    }
    let status = shell
        .status()
        .map_err(|error| Failure::new(format!("cannot run a shell: {error}")))?;
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or(0),
    };
    Ok(ExitCode::from(code as u8))
}

/// Returns the environment of the command. BARGE_9P, BARGE_NFS and BARGE_NBD are the first
/// addresses as URLs, BARGE_NBD in the syntax of NBD URIs; the variables of the same prefixes are
/// parts of these addresses. BARGE_HTTP is an address in the syntax of `barge top`.
fn environment(addrs: &Addrs) -> Vec<(String, String)> {
    let socket = |scheme: &str, path: &str| format!("{scheme}+unix:{path}");
    let p9 = variables("9P", "9p", &addrs.p9, socket);
    let nfs = variables("NFS", "nfs", &addrs.nfs, socket);
    let nbd = variables("NBD", "nbd", &addrs.nbd, |scheme, path| {
        format!("{scheme}+unix:///?socket={path}")
    });
    let http = addrs.http.as_ref();
    let http = http.map(|addr| ("BARGE_HTTP".into(), addr.to_string()));
    p9.into_iter().chain(nfs).chain(nbd).chain(http).collect()
}

fn variables(
    name: &str,
    scheme: &str,
    addrs: &[Addr],
    socket: impl Fn(&str, &str) -> String,
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
                return vec![
                    variable("", socket(scheme, &path)),
                    variable("_SOCKET", path),
                ];
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
    fn the_command_sees_the_first_address_and_its_status_is_ours() {
        let addrs = |texts: &[&str]| -> Vec<Addr> {
            let parse = |addr: &&str| addr.parse().expect("an address");
            texts.iter().map(parse).collect()
        };
        let addrs = Addrs {
            p9: addrs(&["fd:7", "tcp:[::1]:99", "unix:/s"]),
            nfs: addrs(&["unix:/s"]),
            nbd: addrs(&["unix:/b"]),
            http: "tcp:[::1]:80".parse().ok(),
        };
        let environment = environment(&addrs);
        let is_set = |name: &str, value: &str| {
            assert!(
                environment.contains(&(name.into(), value.into())),
                "{environment:?}"
            );
        };
        is_set("BARGE_9P", "9p://[::1]:99/");
        is_set("BARGE_NFS", "nfs+unix:/s");
        is_set("BARGE_HTTP", "tcp:[::1]:80");
        is_set("BARGE_NBD", "nbd+unix:///?socket=/b");
        let status =
            |command: &str| format!("{:?}", run(command, &addrs, Some(0o27)).expect("a shell"));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(status("test $BARGE_9P_PORT = 99 && exit 7"), code(7));
        assert_eq!(status("kill -TERM $$"), code(128 + 15));
        assert_eq!(status("exit $(($(umask)))"), code(0o27));
    }
}
