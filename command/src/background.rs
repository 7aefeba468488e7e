//! Starting a mount in the background: the process runs itself again, and exits when the new
//! process is ready.

use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags, open};

use crate::signals::{IN_BACKGROUND, is_background};
use crate::{CommandResult, Failure, announce, print, stderr};

/// The text of a mount that is ready, unless its command prints another one.
pub const READY: &str = "ready\n";

/// Runs this program again with `arguments`, which begin with its name, and `variables` besides
/// those of this process. Their paths are absolute, as the new process and those that it starts
/// leave the current directory. Waits until the new process is ready, or has failed and reported
/// the error. With `json`, the new process reports with a line of JSON, which is printed.
pub fn start(
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    json: bool,
) -> CommandResult {
    let mut arguments = arguments.into_iter();
    let mut command = Command::new(env::current_exe().map_err(Failure::new)?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(arguments)
        .envs(variables)
        .env(IN_BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::new)?;
    let mut output = String::new();
    if let Some(out) = &mut child.stdout {
        out.read_to_string(&mut output).map_err(Failure::new)?;
    }
    if json && output.ends_with("}\n") {
        print(output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if output == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().map_err(Failure::new)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|&code| code != 0).unwrap_or(1)))
}

/// Reports with `text` that the mount is ready. In the background, also detaches from the terminal
/// and from the working directory.
pub fn report_ready(text: &str) -> Result<(), Failure> {
    if is_background() {
        // Without its parent, nobody learns of the mount.
        print(text)?;
        return detach().map_err(Failure::new);
    }
    announce(text)
}

/// Detaches a child of a process in the background, whose standard output is /dev/null.
pub fn detach_child() -> rustix::io::Result<()> {
    rustix::process::chdir("/")?;
    stderr::redirect(rustix::stdio::stdout())
}

fn detach() -> rustix::io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    stderr::redirect(&null)?;
    // The parent sees the end of the output.
    rustix::stdio::dup2_stdout(&null)
}
