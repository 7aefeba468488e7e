//! Going to the background once the mount is there: the process starts itself again, and ends when that one is ready.

use std::env;
use std::io::{Read, Write, stdout};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags, open};

use crate::{Done, Failure};

/// Set for the process in the background.
const MARK: &str = "BARGE_IN_BACKGROUND";

const READY: &str = "ready\n";

/// Whether this process is the one in the background.
pub(crate) fn is_background() -> bool {
    env::var_os(MARK).is_some()
}

/// Starts this program again, and waits until that one is ready, or has failed and said why.
pub(crate) fn start() -> Done {
    let mut arguments = env::args_os();
    let mut command = Command::new(env::current_exe().map_err(Failure::new)?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::new)?;
    let mut said = String::new();
    if let Some(out) = &mut child.stdout {
        out.read_to_string(&mut said).map_err(Failure::new)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().map_err(Failure::new)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|&code| code != 0).unwrap_or(1)))
}

/// Says that the mount is there; in the background, and lets go of the terminal and of the directory that it was started in.
pub(crate) fn ready() -> Result<(), Failure> {
    let mut out = stdout();
    out.write_all(READY.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("standard output: {error}")))?;
    if is_background() {
        detach().map_err(Failure::new)?;
    }
    Ok(())
}

fn detach() -> rustix::io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stderr(&null)?;
    // Whoever waits for it sees the end.
    rustix::stdio::dup2_stdout(&null)
}
