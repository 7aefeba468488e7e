//! `barge serve --nfs-sec` with a client that has a ticket of a temporary realm.

mod client;
mod realm;

use std::process::Command;

use nfs::v3::{
    Attributes, CreateArgs, CreateHow, CreateOk, Handle, NameArgs, Outcome, Procedure, ReadArgs,
    ReadOk, SetAttributes, Stable, Wcc, WriteArgs, WriteOk,
};
use wire::{Xdr, XdrReader};

use self::client::{Client, Service};
use self::realm::{NEEDS, Realm};
use crate::served::{BARGE, ServerProcess};

/// The environment variable with the server's port.
const PORT: &str = "BARGE_TEST_NFS_PORT";

#[test]
fn rfc2203_a_client_with_a_ticket_calls_by_each_service() {
    match std::env::var(PORT) {
        Ok(port) => call(port.parse().expect("a port")),
        Err(_) => serve(),
    }
}

/// Starts the realm and the server. GSS-API reads the realm from the environment, so the client is
/// this test in another process.
fn serve() {
    if let Some(missing) = NEEDS.iter().find(|program| realm::find(program).is_none()) {
        eprintln!(
            "skipped: {missing} is not installed (packages krb5-kdc, krb5-admin-server, krb5-user)"
        );
        return;
    }
    let realm = Realm::new();
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let alice = format!("alice@BARGE.TEST={}:{}", uid.as_raw(), gid.as_raw());
    let mut command = Command::new(BARGE);
    realm.tell(&mut command);
    command
        .args(["serve", "mem:", "--nfs", "tcp:127.0.0.1:0"])
        .args(["--nfs-sec", "krb5p:krb5i:krb5"])
        .args(["--nfs-gss-user", &alice])
        .arg("--nfs-state-dir")
        .arg(realm.at("state"));
    let served = ServerProcess::run(command);
    let mount = &served.output[0];
    assert!(mount.contains(",sec=krb5p "), "{mount}");
    let mut client = Command::new(std::env::current_exe().expect("this test"));
    realm.tell(&mut client);
    let ended = client
        .args([
            "--exact",
            "gss::rfc2203_a_client_with_a_ticket_calls_by_each_service",
            "--nocapture",
        ])
        .env(PORT, served.port().to_string())
        .status()
        .expect("runs");
    assert!(ended.success(), "the client: {ended}");
}

/// Runs the client.
fn call(port: u16) {
    const MOUNT: (u32, u32, u32) = (100_005, 3, 1);
    let nfs = |procedure: Procedure| (100_003, 3, procedure as u32);
    for service in [Service::None, Service::Integrity, Service::Privacy] {
        let mut client = Client::connect(port, service);
        let mounted = client.call(MOUNT, &&b"/"[..]);
        let mut from = XdrReader::new(&mounted);
        assert_eq!(from.u32(), Ok(0), "mounted");
        let dir = Handle::get(&mut from).expect("a handle");
        assert_eq!(Vec::get(&mut from), Ok(vec![390_005, 390_004, 390_003]));
        let name = format!("{service:?}");
        let args = CreateArgs {
            place: NameArgs {
                dir,
                name: name.as_bytes(),
            },
            how: CreateHow::Guarded(SetAttributes::default()),
        };
        let made = client.call(nfs(Procedure::Create), &args);
        // The tree belongs to the user of the server, whom alice maps to.
        let made: CreateOk = done::<_, Wcc>(&made);
        let file = made.object.expect("a handle");
        let owner = made.attributes.expect("attributes").uid;
        assert_eq!(owner, rustix::process::getuid().as_raw());
        let data: Vec<u8> = (0..100_001u32).map(|at| (at / 3) as u8).collect();
        let args = WriteArgs {
            file,
            offset: 0,
            count: data.len() as u32,
            stable: Stable::Unstable,
            data: &data,
        };
        let written = client.call(nfs(Procedure::Write), &args);
        let written: WriteOk = done::<_, Wcc>(&written);
        assert_eq!(written.count, args.count);
        let args = ReadArgs {
            file,
            offset: 0,
            count: 200_000,
        };
        let read = client.call(nfs(Procedure::Read), &args);
        let read: ReadOk<'_> = done::<_, Option<Attributes>>(&read);
        assert!(read.data == data && read.eof);
    }
}

/// Decodes the results of a successful procedure.
#[track_caller]
fn done<'a, T: Xdr<'a>, F: Xdr<'a>>(results: &'a [u8]) -> T {
    match Outcome::<T, F>::get(&mut XdrReader::new(results)).expect("a result") {
        Outcome::Done(done) => done,
        Outcome::Failed(status, _) => panic!("{status:?}"),
    }
}
