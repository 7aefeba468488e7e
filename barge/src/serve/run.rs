//! `--run`: runs a command, after which the server ends.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use rustix::process::Pid;

use super::broker::upgrade::MANIFEST;
use crate::Failure;

/// Runs `command` in a shell with `environment` added to its environment and the umask that this
/// program was started with. Returns the command's exit status, or 128 plus the signal's number if
/// a signal ended it, as a shell does. Calls `started` with its process id.
pub(super) fn run(
    command: &str,
    environment: Vec<(String, String)>,
    umask: Option<u32>,
    started: impl FnOnce(Pid),
) -> Result<ExitCode, Failure> {
    let mut shell = command::child::external("sh");
    // Needed only if threads could not have their own umask (`hostdir`).
    let command = match umask.filter(|_| sys::umask::current() != umask) {
        Some(umask) => format!("umask {umask:04o}\n{command}"),
        None => command.to_owned(),
    };
    shell.args(["-c", &command]).envs(environment);
    for name in [
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "NOTIFY_SOCKET",
        MANIFEST,
    ] {
        shell.env_remove(name);
    }
    let run = || {
        let mut child = shell.spawn()?;
        started(Pid::from_child(&child));
        child.wait()
    };
    let status = run().map_err(|error| Failure::new(format!("cannot run a shell: {error}")))?;
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or(0),
    };
    Ok(ExitCode::from(code as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_sees_its_environment_and_its_status_is_ours() {
        let environment = vec![("BARGE_9P_PORT".to_owned(), "99".to_owned())];
        let status = |command: &str| {
            let status = run(command, environment.clone(), Some(0o27), |_| ());
            format!("{:?}", status.expect("a shell"))
        };
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(status("test $BARGE_9P_PORT = 99 && exit 7"), code(7));
        assert_eq!(status("kill -TERM $$"), code(128 + 15));
        assert_eq!(status("exit $(($(umask)))"), code(0o27));
    }
}
