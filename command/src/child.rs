//! Children that end in a short time, such as `barge mount`, which ends when it has mounted: with a
//! time-out, and an error message of one line without secrets.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Largest length of a message in bytes.
const MAX_MESSAGE: usize = 1024;

/// Largest part of the output that is searched for its last line, in bytes: more than a source,
/// which has 4,096, and a sentence.
const MAX_TAIL: usize = 8192;

/// Time between the end of a child and the end of its output. A process in the background closes
/// the output soon after its parent has ended; if it does not, its lines have no reader any more.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why a child did not succeed.
#[derive(Debug)]
pub enum ChildError {
    /// The last line that it has written to standard error: at most 1,024 bytes, without secrets
    /// and control characters. Otherwise its status.
    Failed(String),
    /// It was killed, with its children, after the time-out.
    TimedOut,
    /// It could not be started, or waited for.
    Broken(io::Error),
}

/// Returns a command for a program that is not one of this workspace: it starts with the default
/// actions of all signals, and blocks none.
pub fn external(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    sys::signals::use_defaults(&mut command);
    command
}

/// Runs a command with standard error alone, in a process group of its own, until it ends with
/// success. `name` stands in front of a status. Values in `secrets`, and lines of them, become
/// `***`.
pub fn run(
    mut command: Command,
    name: &dyn Display,
    timeout: Duration,
    secrets: &[String],
) -> Result<(), ChildError> {
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ChildError::Broken)?;
    let mut tail = Tail::default();
    let ended = wait(&mut child, &mut tail, timeout);
    let status = finish(&mut child, ended)?;
    if status.success() {
        return Ok(());
    }
    let message = tail.last_line(secrets);
    Err(ChildError::Failed(match message.is_empty() {
        true => format!("{name}: {status}"),
        false => message,
    }))
}

/// Returns the status of a child that has `ended`. If it has not, or that is unknown, kills it with
/// its children and returns an error.
fn finish(
    child: &mut Child,
    ended: io::Result<Option<ExitStatus>>,
) -> Result<ExitStatus, ChildError> {
    if let Ok(Some(status)) = ended {
        return Ok(status);
    }
    // It may have just ended.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait().map_err(ChildError::Broken)?;
    ended.map_err(ChildError::Broken)?;
    Err(ChildError::TimedOut)
}

/// Waits until a child ends, or `timeout` has passed, and reads its standard error meanwhile.
fn wait(child: &mut Child, tail: &mut Tail, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut output = child.stderr.take();
    if let Some(output) = &output {
        fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
    }
    let mut deadline = Instant::now() + timeout;
    let mut status = None;
    loop {
        if status.is_none() {
            status = child.try_wait()?;
            if status.is_some() {
                deadline = Instant::now() + OUTPUT_TIMEOUT;
            }
        }
        if let Some(pipe) = &mut output
            && tail.read(pipe)?
        {
            output = None;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || (status.is_some() && output.is_none()) {
            return Ok(status);
        }
        let mut ready = Vec::with_capacity(2);
        if status.is_none() {
            ready.push(PollFd::new(&handle, PollFlags::IN));
        }
        if let Some(output) = &output {
            ready.push(PollFd::new(output, PollFlags::IN));
        }
        match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The end of an output, [`MAX_TAIL`] bytes at most.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    /// Whether bytes before it are missing.
    is_cut: bool,
}

impl Tail {
    /// Reads all that a non-blocking pipe has now. Returns whether it has ended.
    fn read(&mut self, pipe: &mut ChildStderr) -> io::Result<bool> {
        let mut buf = [0; 4096];
        // A child that writes without an end must not keep this thread from its time-out.
        for _ in 0..64 {
            match pipe.read(&mut buf) {
                Ok(0) => return Ok(true),
                Ok(len) => self.push(&buf[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = self.bytes.len().saturating_sub(MAX_TAIL);
        self.bytes.drain(..excess);
        self.is_cut |= excess > 0;
    }

    /// Returns the last line that is not empty: at most its last [`MAX_MESSAGE`] bytes, without
    /// secrets and control characters. If there are secrets, returns an empty text for a line of
    /// more than [`MAX_TAIL`] bytes, whose end may begin within one.
    fn last_line(&self, secrets: &[String]) -> String {
        let mut bytes = &self.bytes[..];
        if self.is_cut && !secrets.is_empty() {
            // The first line may be incomplete.
            let end = bytes.iter().position(|&byte| byte == b'\n');
            bytes = &bytes[end.unwrap_or(bytes.len())..];
        }
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        let line = redact(line.unwrap_or_default(), secrets);
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        let cut = line.len().saturating_sub(MAX_MESSAGE);
        let end = (cut..=line.len()).find_map(|at| line.get(at..));
        end.unwrap_or_default().trim().to_owned()
    }
}

/// Replaces secrets in a line with `***`: the longest first, as one may contain another, and each
/// line of a secret of several lines.
fn redact(line: &str, secrets: &[String]) -> String {
    let mut hidden: Vec<&str> = Vec::new();
    for secret in secrets {
        let lines = secret.split(['\n', '\r']).map(str::trim);
        // Others, such as a bracket of JSON, tell nothing.
        hidden.extend(lines.filter(|line| line.contains(char::is_alphanumeric)));
        hidden.extend([secret.trim(), secret.as_str()]);
    }
    hidden.retain(|secret| !secret.is_empty());
    hidden.sort_by_key(|secret| (std::cmp::Reverse(secret.len()), *secret));
    hidden.dedup();
    let mut line = line.to_owned();
    for secret in hidden {
        line = line.replace(secret, "***");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn run_child(program: &str, timeout: Duration) -> Result<(), ChildError> {
        run(Command::new(program), &program, timeout, &[])
    }

    /// Runs a script of the shell and returns its message.
    fn failed(script: &str) -> String {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        match run(command, &"name", LONG, &["hush".into()]) {
            Err(ChildError::Failed(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failure_has_a_message_or_a_status() {
        run_child("true", LONG).expect("success");
        let status = failed("exit 3");
        assert_eq!(status, "name: exit status: 3");
        assert_eq!(failed("echo a >&2; echo 'key hush' >&2; exit 1"), "key ***");
        let much = "head -c 300000 /dev/zero | tr '\\0' x >&2; printf '\nlast\n' >&2; exit 1";
        assert_eq!(failed(much), "last");
        let missing = run_child("/no/such/program", LONG);
        assert!(matches!(missing, Err(ChildError::Broken(_))));
    }

    #[test]
    fn an_output_that_stays_open_delays_the_end_for_a_time() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display();
        let message = failed(&format!(
            "echo bad >&2; sleep 1000 & echo $! >{path}; exit 1"
        ));
        assert_eq!(message, "bad");
        let pid = fs::read_to_string(file.path()).expect("read");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
        rustix::process::kill_process(pid, Signal::KILL).expect("it runs");
    }

    /// Returns the message of a child that writes `text` and fails.
    fn message(text: &str, secrets: &[&str]) -> String {
        let mut tail = Tail::default();
        text.as_bytes()
            .chunks(4096)
            .for_each(|part| tail.push(part));
        let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
        tail.last_line(&secrets)
    }

    #[test]
    fn a_secret_is_redacted_before_a_message_is_cut() {
        let secret = "hush".repeat(20);
        for after in MAX_MESSAGE - 100..=MAX_MESSAGE {
            let text = format!("failed: {secret}{}\n", "x".repeat(after));
            let message = message(&text, &[&secret]);
            assert!(!message.contains("hush"), "{message}");
            assert!(message.len() <= MAX_MESSAGE && message.ends_with('x'));
        }
        // A line whose beginning is missing could begin within the secret.
        for after in MAX_TAIL - 100..=MAX_TAIL {
            let text = format!("failed: {secret}{}", "x".repeat(after));
            let message = message(&text, &[&secret]);
            assert!(!message.contains("hush"), "{message}");
        }
        let text = format!("{}\nfailed\n\n", "x".repeat(20_000));
        assert_eq!(message(&text, &[&secret]), "failed");
        assert_eq!(message(&"x".repeat(20_000), &[]), "x".repeat(MAX_MESSAGE));
        assert_eq!(message(&"é".repeat(2000), &[]), "é".repeat(MAX_MESSAGE / 2));
        assert_eq!(message("key hush \n", &["hush "]), "key ***");
        assert_eq!(message("key hu\tsh!\n", &["hu\tsh"]), "key ***!");
    }

    #[test]
    fn secrets_of_several_lines_and_parts_of_others_are_redacted() {
        let secrets = [
            "hush",
            "hush-long",
            "-- KEY --\n  line one\r\nline two\n{\n",
        ];
        for (text, expected) in [
            ("a hush-long b", "a *** b"),
            ("a hush b", "a *** b"),
            ("-- KEY --\n  line one\r\nline two", "***"),
            ("bad line one, -- KEY --", "bad ***, ***"),
            ("line two {", "*** {"),
        ] {
            assert_eq!(message(text, &secrets), expected, "{text:?}");
        }
    }

    /// Waits until a process has ended.
    fn has_ended(pid: &str) {
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return,
            handle => handle.expect("opened"),
        };
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut ready = [PollFd::new(&handle, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "it runs");
    }

    /// Returns the command of a script that starts another program and writes the number of that to
    /// `file`. The shell reads the script: to execute a file that was just written fails while
    /// another test starts a process, which has it open for writing for a moment.
    fn script_with_child(dir: &Path, file: &Path) -> Command {
        let script = dir.join("script");
        let text = format!(
            "sleep 1000 &\necho $! >{0}.new\nmv {0}.new {0}\nwait\n",
            file.display()
        );
        fs::write(&script, text).expect("written");
        let mut command = Command::new("/bin/sh");
        command.arg(script);
        command
    }

    #[test]
    fn a_child_that_takes_too_long_is_ended_with_its_children() {
        let state = tempfile::tempdir().expect("a directory");
        let file = state.path().join("child");
        let script = script_with_child(state.path(), &file);
        let late = run(script, &"script", Duration::from_secs(2), &[]);
        assert!(matches!(late, Err(ChildError::TimedOut)));
        has_ended(&fs::read_to_string(&file).expect("it was started"));
    }

    #[test]
    fn a_child_that_cannot_be_waited_for_is_ended() {
        let mut child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .expect("starts");
        let failed = finish(&mut child, Err(Errno::MFILE.into()));
        assert!(matches!(failed, Err(ChildError::Broken(_))));
        assert!(
            !child
                .try_wait()
                .expect("a child")
                .expect("it has ended")
                .success()
        );
    }
}
