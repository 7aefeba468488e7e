//! The broker and a process that is compromised before it is ready: the test sends its messages.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::{RecvFlags, recv};
use transports::fd_passing::send_with_file;

use super::message::Wanted;
use super::process::Process;
use super::supervisor::Broker;
use crate::child::message;
use crate::cli::Cli;
use crate::config::Config;
use crate::serve::plan::Plan;

/// Returns the broker of `barge serve ARGS`, whose processes were not started.
fn broker(args: &[&str]) -> Arc<Broker> {
    let config = Cli::serve_config(args).expect("valid arguments");
    let plan = Plan::from_config(&config).expect("a plan");
    Broker::new(plan, Vec::new(), None).expect("a broker")
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
        let mut request = String::new();
        to.read_to_string(&mut request).expect("read");
        assert_eq!(request, r#""List""#);
        let listing = br#"{"Ok":{"shares":[],"endpoints":[]}}"#;
        to.write_all(listing).expect("sent");
    });
    for forged in [
        r#"{"Ready":{"environment":[["LD_PRELOAD","/proc/self/fd/3"]]}}"#,
        r#"{"Ready":[["BASH_ENV","/x"]]}"#,
        r#"{"Ready":"ready\nMAINPID=1"}"#,
        r#"{"Reloaded":{"status":"ready\nMAINPID=1"}}"#,
    ] {
        assert_eq!(ask(&broker, forged), "", "{forged}");
    }
    let listening = ask(
        &broker,
        r#"{"Listen":{"addr":"tcp:127.0.0.1:0","place":0}}"#,
    );
    assert!(listening.contains("Listening"), "{listening}");
    assert!(ask(&broker, r#"{"Ready":{"has_source":true}}"#).contains("Done"));
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

#[test]
fn a_process_gets_the_configuration_of_its_own_share_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = |name: &str| format!("--virtiofs={name}={}/{name}", dir.path().display());
    let broker = broker(&[
        "a=https://one:SECRET-A@host.example/x.erofs",
        "b=https://two:SECRET-B@host.example/x.erofs",
        &device("a"),
        &device("b"),
        "--export=a 10.0.0.0/8(ro)",
        "--export=b 10.0.0.0/8(ro)",
        "--http=tcp:127.0.0.1:0",
    ]);
    let of = |process: &Process| {
        let passed = broker.configuration(process).expect("a configuration");
        let mut file = std::fs::File::from(passed);
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert!(file.write_all(b"x").is_err() && file.set_len(1).is_err());
        text
    };
    let texts: Vec<_> = broker.processes.iter().map(|it| of(it)).collect();
    // The parts are the two shares and the status page.
    for (share, own) in [("A", [true, false, false]), ("B", [false, true, false])] {
        let lower = share.to_lowercase();
        let values = [
            format!("SECRET-{share}"),
            format!("{lower}=/"),
            format!("{lower} 10."),
        ];
        for value in values {
            let has: Vec<_> = texts.iter().map(|text| text.contains(&value)).collect();
            assert_eq!(has, own, "{value}");
        }
    }
}

#[test]
fn a_process_gets_the_objects_of_its_own_share_alone_and_its_own_root_has_each_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = |name: &str| format!("--virtiofs={name}={}/{name}.sock", dir.path().display());
    let source = |name: &str| {
        std::fs::create_dir(dir.path().join(name)).expect("made");
        format!("{name}={}/{name}", dir.path().display())
    };
    let broker = broker(&[&source("a"), &source("b"), &device("a"), &device("b")]);
    let objects: Vec<_> = broker.objects.list();
    assert_eq!(objects.len(), 2);
    let own: Vec<u32> = {
        let passed = broker.configuration(&broker.processes[0]);
        let file = std::fs::File::from(passed.expect("a configuration"));
        let config: Config = serde_json::from_reader(file).expect("a configuration");
        config.objects().collect()
    };
    assert_eq!(own.len(), 1);
    let asked = |number: u32| ask(&broker, &format!(r#"{{"Object":{{"number":{number}}}}}"#));
    let others = (0..10).filter(|number| *number != own[0]);
    for number in others.chain([u32::MAX]) {
        assert!(!asked(number).contains("Descriptor"), "{number}");
    }
    for _ in 0..2 {
        assert!(asked(own[0]).contains("Descriptor"));
    }
    if sandbox::root::can_copy() {
        broker.processes[0].rooted.store(true, Ordering::SeqCst);
        assert!(asked(own[0]).contains("Descriptor"));
        assert!(!asked(own[0]).contains("Descriptor"));
    }
}
