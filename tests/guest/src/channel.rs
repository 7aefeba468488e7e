//! The protocol between guest and harness on the control port.
//!
//! The guest sends lines: `ready`, `begin CASE`, `end CASE STATUS`, `fault TEXT`, `done`, and `host
//! LENGTH` followed by that many bytes of a shell command. The reply to `host` is `STATUS LENGTH`,
//! a newline, and that many bytes of output; `meet` gets the same reply once every guest of the run
//! has sent it. If the port cannot carry much at once, the reply is `STATUS LENGTH NAME`, and the
//! bytes are in the file NAME of the guest's directory of the run.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::barrier::GuestBarrier;
use crate::process_group::ProcessGroup;

/// The host side of a run's guests.
pub(crate) struct Host {
    /// The served directory.
    pub(crate) share: PathBuf,
    /// The run directory: `$RUN` in commands.
    pub(crate) run: PathBuf,
    /// The processes of the run, including those of guests' commands.
    pub(crate) process_group: ProcessGroup,
    pub(crate) barrier: GuestBarrier,
}

/// An event reported by a guest.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// The share is mounted.
    Ready,
    /// A case has started.
    Begin(String),
    /// A case has ended with this status.
    End(String, i32),
    /// The guest cannot continue.
    Fault(String),
    /// All cases have ended and the share is unmounted.
    Done,
}

#[derive(Debug, PartialEq)]
enum Line {
    Event(Event),
    /// A command with this many bytes follows.
    Host(usize),
    /// The guest waits for the others.
    Meet,
}

/// Maximum length in bytes of a guest's command: far longer than any script's.
const MAX_COMMAND: usize = 1 << 20;

/// Serves the control port of a guest until it closes. Output of commands goes to files in
/// `replies`, if the guest's port cannot carry it.
pub(crate) fn serve(
    stream: UnixStream,
    host: &Host,
    replies: Option<&Path>,
    events: &Sender<(Instant, Event)>,
) -> Result<()> {
    let served = serve_lines(stream, host, replies, events);
    host.barrier.abort();
    served
}

/// Serves the guest's lines. Commands run in the share, or in the case's subdirectory there.
fn serve_lines(
    stream: UnixStream,
    host: &Host,
    replies: Option<&Path>,
    events: &Sender<(Instant, Event)>,
) -> Result<()> {
    let share = &host.share;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let mut dir = share.to_owned();
    let mut text = Vec::new();
    // Each file has a name of its own, since a guest may cache their contents.
    let mut names = (1_u32..).map(|number| format!("reply-{number}"));
    while reader.read_until(b'\n', &mut text)? > 0 {
        match parse(&String::from_utf8_lossy(&text))? {
            Line::Event(event) => {
                if let Event::Begin(name) = &event {
                    let own = share.join(name);
                    dir = if own.is_dir() { own } else { share.to_owned() };
                }
                if events.send((Instant::now(), event)).is_err() {
                    break;
                }
            }
            Line::Host(length) => {
                let mut command = vec![0; length];
                reader.read_exact(&mut command)?;
                let command = String::from_utf8_lossy(&command);
                let (status, output) = execute(&command, &dir, host)?;
                match replies.zip(names.next()) {
                    Some((dir, name)) if !output.is_empty() => {
                        fs::write(dir.join(&name), &output)?;
                        writeln!(writer, "{status} {} {name}", output.len())?;
                    }
                    _ => {
                        writeln!(writer, "{status} {}", output.len())?;
                        writer.write_all(&output)?;
                    }
                }
            }
            Line::Meet => {
                let status = i32::from(!host.barrier.wait());
                writer.write_all(format!("{status} 0\n").as_bytes())?;
            }
        }
        text.clear();
    }
    Ok(())
}

fn parse(line: &str) -> Result<Line> {
    let line = line.trim_end_matches('\n');
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    Ok(match verb {
        "ready" => Line::Event(Event::Ready),
        "done" => Line::Event(Event::Done),
        "meet" => Line::Meet,
        "begin" => Line::Event(Event::Begin(rest.into())),
        "fault" => Line::Event(Event::Fault(rest.into())),
        "end" => {
            let (name, status) = rest
                .rsplit_once(' ')
                .with_context(|| format!("expected `end CASE STATUS`, got {line:?}"))?;
            Line::Event(Event::End(
                name.into(),
                status
                    .parse()
                    .with_context(|| format!("a status in {line:?}"))?,
            ))
        }
        "host" => match rest.parse() {
            Ok(length) if length <= MAX_COMMAND => Line::Host(length),
            _ => bail!("expected `host LENGTH`, got {line:?}"),
        },
        _ => bail!("the guest said {line:?}"),
    })
}

/// Runs a guest's command. Its background processes live as long as the run, but must not hold its
/// output open.
fn execute(command: &str, dir: &Path, host: &Host) -> Result<(i32, Vec<u8>)> {
    let (mut output, input) = std::io::pipe()?;
    let mut child = host.process_group.spawn(
        Command::new("sh")
            .args(["-c", command])
            .current_dir(dir)
            .env("RUN", &host.run)
            .stdin(Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input),
    )?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes)?;
    let status = child.wait()?;
    Ok((
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        bytes,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_guest() {
        assert_eq!(
            parse("end fio 3\n").unwrap(),
            Line::Event(Event::End("fio".into(), 3))
        );
        assert_eq!(
            parse("fault mount: Protocol error\n").unwrap(),
            Line::Event(Event::Fault("mount: Protocol error".into()))
        );
        assert_eq!(parse("host 12\n").unwrap(), Line::Host(12));
        for bad in [
            "host 99999999999",
            "host x",
            "end fio",
            "end fio x",
            "hello",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_guest_gets_output_and_status_of_a_host_command() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let host = Host {
            share: "/".into(),
            run: "/run".into(),
            process_group: ProcessGroup::new().unwrap(),
            barrier: GuestBarrier::new(1),
        };
        let (events, _keep) = std::sync::mpsc::channel();
        let served = std::thread::spawn(move || serve(theirs, &host, None, &events));
        let command = "pwd; echo $RUN >&2; exit 7";
        write!(&ours, "host {}\n{command}", command.len()).unwrap();
        let mut answer = [0; 11];
        (&ours).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"7 7\n/\n/run\n");
        (&ours).write_all(b"meet\n").unwrap();
        (&ours).read_exact(&mut answer[..4]).unwrap();
        assert_eq!(&answer[..4], b"0 0\n");
        drop(ours);
        served.join().unwrap().unwrap();
    }
}
