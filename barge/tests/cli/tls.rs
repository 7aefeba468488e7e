//! `barge serve --nfs-tls-cert`: accepted and refused clients.

use std::path::Path;
use std::process::{Command, Output};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};
use crate::status::{get, http};

/// Makes an authority's certificate in `dir`, one for this host and one for alice.
pub(crate) fn certify(dir: &Path) {
    let write = |name: &str, text: String| {
        std::fs::write(dir.join(name), text).expect("written");
    };
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let cert = params.self_signed(&key).expect("signed");
    write("ca.pem", cert.pem());
    let issuer = Issuer::new(params, key);
    let here = SanType::IpAddress([127, 0, 0, 1].into());
    let alice = SanType::Rfc822Name("alice@example.org".try_into().expect("a name"));
    for (name, subject) in [("server", here), ("alice", alice)] {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names = vec![subject];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &issuer).expect("signed");
        write(&format!("{name}.pem"), cert.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

/// Starts a server with the files in `dir`.
fn serve(dir: &Path, more: &[&str]) -> (ServerProcess, u16) {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "mem:", "--nfs", "tcp:127.0.0.1:0"])
        .args(["--nfs-tls-cert", &at("server.pem")])
        .args(["--nfs-tls-key", &at("server.key")])
        .args(["--nfs-state-dir", &at("state")])
        .args(more);
    let served = ServerProcess::run(command);
    let port = served.port();
    (served, port)
}

fn ls(port: u16, query: &str) -> Output {
    let url = format!("nfs://127.0.0.1:{port}/?{query}");
    let mut command = Command::new(BARGE);
    command.args(["ls", &url]).output().expect("runs")
}

#[test]
fn who_comes_without_tls_is_refused_and_certificates_are_read_again() {
    let (old, new) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    for dir in [&old, &new] {
        certify(dir.path());
    }
    let (served, port) = serve(old.path(), &["--nfs-xprtsec", "tls", "--http", "0"]);
    assert!(
        served.output[0].contains(",xprtsec=tls "),
        "{:?}",
        served.output
    );
    let trusting = |dir: &Path| format!("xprtsec=tls&tlsca={}/ca.pem", dir.display());
    for version in ["3", "4.0", "4.2"] {
        stdout_of(&ls(
            port,
            &format!("vers={version}&{}", trusting(old.path())),
        ));
        stderr_of(&ls(port, &format!("vers={version}")));
    }
    let why = stderr_of(&ls(port, &trusting(new.path())));
    assert!(why.contains("certificate"), "{why}");
    let counted = |line: &str| get(&http(&served), "/metrics").lines().any(|it| it == line);
    wait_until("the failed handshake is counted", || {
        counted("barge_connections_refused_total{reason=\"tls\"} 1")
    });
    // A connection for each version.
    assert!(!counted(
        "barge_clients_denied_total{reason=\"weak_auth\"} 0"
    ));
    assert!(counted("barge_clients_denied_total{reason=\"kerberos\"} 0"));
    for name in ["server.pem", "server.key"] {
        std::fs::copy(new.path().join(name), old.path().join(name)).expect("copied");
    }
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("asked");
    // The reload is asynchronous.
    wait_until("the new certificate is served", || {
        ls(port, &trusting(new.path())).status.success()
    });
    assert!(served.stop().success());
}

#[test]
fn certificates_of_clients_are_asked_for_and_say_who_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    certify(dir.path());
    let ca = dir.path().join("ca.pem").display().to_string();
    let user = "email:alice@example.org=1000:100";
    let (served, port) = serve(
        dir.path(),
        &[
            "--nfs-tls-ca",
            &ca,
            "--nfs-xprtsec",
            "mtls",
            "--nfs-tls-user",
            user,
        ],
    );
    stderr_of(&ls(port, ""));
    stderr_of(&ls(port, &format!("xprtsec=tls&tlsca={ca}")));
    let at = dir.path().display();
    let alice = format!("xprtsec=mtls&tlsca={ca}&tlscert={at}/alice.pem&tlskey={at}/alice.key");
    stdout_of(&ls(port, &alice));
    // The tree belongs to the super-user, and alice is another user.
    let file = dir.path().join("file");
    std::fs::write(&file, "hers").expect("written");
    let url = format!("nfs://127.0.0.1:{port}/file?{alice}");
    let mut copy = Command::new(BARGE);
    copy.arg("cp").arg(&file).arg(&url);
    let why = stderr_of(&copy.output().expect("runs"));
    assert!(why.contains("ermission"), "{why}");
    assert!(served.stop().success());
}

#[test]
fn what_cannot_be_served_says_so() {
    let run = |args: &[&str]| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "mem:", "--nfs", "tcp:127.0.0.1:0"]);
        stderr_of(&command.args(args).output().expect("runs"))
    };
    let why = run(&["--nfs-tls-cert", "/none", "--nfs-tls-key", "/none"]);
    assert!(why.contains("/none: expected certificates"), "{why}");
    assert!(run(&["--nfs-tls-cert", "/none"]).contains("--nfs-tls-key"));
    let tls = ["--nfs-tls-cert", "/none", "--nfs-tls-key", "/none"];
    let mtls = [&tls[..], &["--nfs-xprtsec", "mtls"]].concat();
    assert!(run(&mtls).contains("--nfs-tls-ca"));
}
