//! A Kerberos realm in a temporary directory, for the duration of a test.

use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The programs that a realm takes.
pub(super) const NEEDS: [&str; 4] = ["krb5kdc", "kdb5_util", "kadmin.local", "kinit"];

/// A realm `BARGE.TEST` with the user `alice`, who has a ticket, and the service `nfs/localhost`.
pub(super) struct Realm {
    pub(super) dir: tempfile::TempDir,
    kdc: Option<Child>,
}

impl Drop for Realm {
    fn drop(&mut self) {
        if let Some(kdc) = &mut self.kdc {
            // An error means that it has already ended.
            let _ = kdc.kill();
            let _ = kdc.wait();
        }
    }
}

/// Returns the path of a program: Debian installs a KDC's outside of users' PATH.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

impl Realm {
    pub(super) fn new() -> Realm {
        let dir = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|free| free.local_addr())
            .expect("a free port")
            .port();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let krb5 = format!(
            "[libdefaults]\n default_realm = BARGE.TEST\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
             dns_canonicalize_hostname = false\n udp_preference_limit = 1\n\
             [realms]\n BARGE.TEST = {{\n  kdc = 127.0.0.1:{port}\n }}\n[domain_realm]\n localhost = BARGE.TEST\n"
        );
        let kdc = format!(
            "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n BARGE.TEST = {{\n  database_name = {}\n  key_stash_file = {}\n  acl_file = {}\n }}\n\
             [logging]\n kdc = FILE:{}\n",
            at("principal"),
            at("stash"),
            at("acl"),
            at("kdc.log"),
        );
        for (name, text) in [("krb5.conf", krb5), ("kdc.conf", kdc)] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let mut realm = Realm { dir, kdc: None };
        realm.run("kdb5_util", &["create", "-s", "-P", "a test's"]);
        for query in [
            "addprinc -randkey alice",
            "addprinc -randkey nfs/localhost",
            &format!("ktadd -k {} alice", realm.at("alice.keytab").display()),
            &format!("ktadd -k {} nfs/localhost", realm.at("keytab").display()),
        ] {
            realm.run("kadmin.local", &["-q", query]);
        }
        realm.kdc = Some(realm.command("krb5kdc", &["-n"]).spawn().expect("starts"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the KDC answers");
            std::thread::sleep(Duration::from_millis(5));
        }
        let keytab = realm.at("alice.keytab").display().to_string();
        realm.run("kinit", &["-k", "-t", &keytab, "alice"]);
        realm
    }

    /// Returns the path of a file of the realm.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sets the environment of a program that uses the realm.
    pub(super) fn tell(&self, command: &mut Command) {
        let cache = format!("FILE:{}", self.at("ccache").display());
        command
            .env("KRB5_CONFIG", self.at("krb5.conf"))
            .env("KRB5_KDC_PROFILE", self.at("kdc.conf"))
            .env("KRB5_KTNAME", self.at("keytab"))
            .env("KRB5CCNAME", cache)
            .env("KRB5RCACHEDIR", self.dir.path());
    }

    fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let name = program.as_ref();
        let file = name.to_str().and_then(find);
        let mut command = Command::new(file.as_deref().map_or(name.as_os_str(), OsStr::new));
        command.args(args).stdout(Stdio::null());
        self.tell(&mut command);
        command
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = self.command(program, args).status().expect("runs");
        assert!(status.success(), "{program} {args:?}: {status}");
    }
}
