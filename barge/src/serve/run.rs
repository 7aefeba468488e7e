//! `--run`: a command for which the server lives.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use transports::Addr;

use crate::Failure;

/// Runs `command` in a shell with the addresses in its environment, and answers its exit status; that
/// of a shell, 128 and the signal's number, if one ended it.
pub(super) fn run(command: &str, addrs: &[Addr]) -> Result<ExitCode, Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).envs(environment(addrs));
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

/// BARGE_9P is the first address as a URL; the others say its parts.
fn environment(addrs: &[Addr]) -> Vec<(&'static str, String)> {
    for addr in addrs {
        match addr {
            Addr::Tcp { host, port } => {
                let shown = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.clone()
                };
                return vec![
                    ("BARGE_9P", format!("9p://{shown}:{port}/")),
                    ("BARGE_9P_HOST", host.clone()),
                    ("BARGE_9P_PORT", port.to_string()),
                ];
            }
            Addr::Unix(path) => {
                let path = path.display().to_string();
                return vec![
                    ("BARGE_9P", format!("9p+unix:{path}")),
                    ("BARGE_9P_SOCKET", path),
                ];
            }
            Addr::Fd(_) => {}
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_sees_the_first_address_and_its_status_is_ours() {
        let addrs =
            ["fd:7", "tcp:[::1]:99", "unix:/s"].map(|addr| addr.parse().expect("an address"));
        assert_eq!(
            environment(&addrs)[0],
            ("BARGE_9P", "9p://[::1]:99/".to_owned())
        );
        assert_eq!(
            environment(&addrs[2..])[0],
            ("BARGE_9P", "9p+unix:/s".to_owned())
        );
        let status = |command: &str| format!("{:?}", run(command, &addrs).expect("a shell"));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(status("test $BARGE_9P_PORT = 99 && exit 7"), code(7));
        assert_eq!(status("kill -TERM $$"), code(128 + 15));
    }
}
