//! The broker and a process that is compromised before it is ready: the test sends its messages.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use clap::Parser;
use rustix::net::{RecvFlags, recv};
use transports::fd_passing::send_with_file;

use super::message::Wanted;
use super::supervisor::Broker;
use crate::child::message;
use crate::cli::{Cli, Command};
use crate::serve::plan::Plan;

/// Returns the broker of `barge serve ARGS`, whose processes were not started.
fn broker(args: &[&str]) -> Arc<Broker> {
    let args = ["barge", "serve"].iter().chain(args);
    let cli = Cli::try_parse_from(args).expect("valid arguments");
    let Command::Serve(args) = cli.command else {
        panic!("another command");
    };
    let plan = || Plan::from_args(&args);
    Broker::new(plan().expect("a plan"), &plan, None).expect("a broker")
}

/// Sends `request` as the only process would, and returns the reply, which is empty if the broker
/// does not take it for a request.
fn ask(broker: &Broker, request: &str) -> String {
    let (here, there) = message::pair().expect("a pair");
    let (channel, _) = &broker.processes[0].childs_ends;
    let sent = send_with_file(channel.as_fd(), request.as_bytes(), there.as_fd(), true);
    sent.expect("sent");
    drop(there);
    let mut reply = [0; 4096];
    let (len, _) = recv(&here, &mut reply[..], RecvFlags::empty()).expect("an answer");
    String::from_utf8_lossy(&reply[..len]).into_owned()
}

#[test]
fn a_process_chooses_neither_the_environment_of_run_nor_the_status_of_the_service() {
    let dir = tempfile::tempdir().expect("a directory");
    let seen = dir.path().join("environment");
    let line = format!("--run=env > '{}'", seen.display());
    let broker = broker(&["mem:", "--9p=tcp:127.0.0.1:0", &line]);
    // It answers the question for its shares that precedes the command.
    let (_, control) = &broker.processes[0].childs_ends;
    let control = control.try_clone().expect("duplicated");
    let answering = std::thread::spawn(move || {
        let asked = message::receive::<Wanted>(control.as_fd()).expect("a question");
        let mut to = UnixStream::from(asked.1.expect("a socket"));
        let listing = br#"{"Ok":{"shares":[],"endpoints":[]}}"#;
        to.write_all(listing).expect("sent");
    });
    for forged in [
        r#"{"Ready":{"environment":[["LD_PRELOAD","/proc/self/fd/3"]]}}"#,
        r#"{"Ready":[["BASH_ENV","/x"]]}"#,
        r#"{"Reloaded":{"status":"ready\nMAINPID=1"}}"#,
        r#"{"Reloaded":"ready\nMAINPID=1"}"#,
    ] {
        assert_eq!(ask(&broker, forged), "", "{forged}");
    }
    let listening = ask(
        &broker,
        r#"{"Listen":{"addr":"tcp:127.0.0.1:0","place":0}}"#,
    );
    assert!(listening.contains("Listening"), "{listening}");
    assert!(ask(&broker, r#"{"Reloaded":"Reloaded"}"#).contains("Done"));
    assert!(ask(&broker, r#""Ready""#).contains("Done"));
    answering.join().expect("no panic");
    let command = broker.command().expect("it runs");
    command.join().expect("no panic").expect("it ends");
    let environment = std::fs::read_to_string(&seen).expect("written");
    let value = |name: &str| {
        let mut lines = environment.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let port = value("BARGE_9P_PORT").expect("a port");
    assert!(listening.contains(port), "{listening} {port}");
    assert_eq!(value("BARGE_9P_HOST"), Some("127.0.0.1"));
    for name in ["LD_PRELOAD", "BASH_ENV"] {
        assert_eq!(value(name), std::env::var(name).ok().as_deref());
    }
}
