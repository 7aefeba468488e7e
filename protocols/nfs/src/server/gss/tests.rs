//! RPCSEC_GSS with a mechanism that protects nothing; each test is named after its section of RFC
//! 2203.

mod net;
mod v4;

use std::sync::Arc;

use hostdir::HostDir;
use memory::Memory;
use vfs::peer::{Refusal, Refusals};
use vfs::{FileSystem, Patience, Peer};
use vfs_testkit::clock;
use wire::{Session as _, Xdr, XdrReader};

use self::net::{Client, GARBAGE, World, plain, put, reply_of};
use super::Flavor;
use super::table::Table;
use super::window::Window;
use crate::rpc::{GssProcedure, Service, program};
use crate::v3::{
    CreateArgs, CreateHow, CreateOk, Handle, NameArgs, Outcome, Procedure, ReadArgs, ReadOk,
    SetAttrArgs, SetAttributes, Stable, Wcc, WriteArgs, WriteOk,
};

const BAD_CRED: u32 = 1;
const BAD_VERF: u32 = 3;
const TOO_WEAK: u32 = 5;
const CRED_PROBLEM: u32 = 13;
const CTX_PROBLEM: u32 = 14;

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

/// All flavors.
const ALL: [Flavor; 4] = [Flavor::Krb5p, Flavor::Krb5i, Flavor::Krb5, Flavor::Sys];

fn world() -> World {
    World::new(Memory::new(clock()), &ALL)
}

/// Decodes a value that takes up all of `bytes`.
#[track_caller]
fn whole<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> T {
    let mut from = XdrReader::new(bytes);
    let value = T::get(&mut from).expect("a result");
    from.end().expect("nothing behind it");
    value
}

/// Returns the root's handle and flavors from MOUNT.
fn root_of(world: &World) -> (Handle, Vec<u32>) {
    let session = world.server.session();
    let mounted = plain(&session, (program::MOUNT, 3, 1), &put(&&b"/"[..]));
    let mounted = mounted.expect("mounted");
    let mut from = XdrReader::new(&mounted);
    assert_eq!(from.u32(), Ok(0));
    let root = Handle::get(&mut from).expect("a handle");
    (root, Vec::get(&mut from).expect("flavors"))
}

/// Returns the root, made writable for everybody.
fn open_root(world: &World) -> Handle {
    let session = world.server.session();
    let root = root_of(world).0;
    let args = SetAttrArgs {
        object: root,
        attributes: SetAttributes {
            mode: Some(0o777),
            ..SetAttributes::default()
        },
        guard: None,
    };
    let set = plain(
        &session,
        (program::NFS, 3, Procedure::SetAttr as u32),
        &put(&args),
    );
    assert!(matches!(
        whole::<Outcome<Wcc, Wcc>>(&set.expect("set")),
        Outcome::Done(_)
    ));
    root
}

fn v3<'a>(client: &Client, procedure: Procedure, args: &impl Xdr<'a>) -> Vec<u8> {
    let results = client.call((program::NFS, 3, procedure as u32), &put(args));
    results.expect("results")
}

fn create(root: Handle, name: &[u8]) -> CreateArgs<'_> {
    CreateArgs {
        place: NameArgs { dir: root, name },
        how: CreateHow::Guarded(SetAttributes {
            mode: Some(0o644),
            ..SetAttributes::default()
        }),
    }
}

fn made(bytes: &[u8]) -> (Handle, u32) {
    match whole::<Outcome<CreateOk, Wcc>>(bytes) {
        Outcome::Done(done) => (
            done.object.expect("a handle"),
            done.attributes.expect("attributes").uid,
        ),
        Outcome::Failed(status, _) => panic!("{status:?}"),
    }
}

/// Creates a file, writes to it and reads it back.
fn use_files(client: &Client, root: Handle, name: &[u8], owner: u32) {
    let (file, uid) = made(&v3(client, Procedure::Create, &create(root, name)));
    assert_eq!(uid, owner);
    let data = b"some data that is no multiple of four";
    let write = WriteArgs {
        file,
        offset: 3,
        count: data.len() as u32,
        stable: Stable::Unstable,
        data,
    };
    let written = v3(client, Procedure::Write, &write);
    let Outcome::Done(written) = whole::<Outcome<WriteOk, Wcc>>(&written) else {
        panic!("not written");
    };
    assert_eq!(written.count, write.count);
    let read = ReadArgs {
        file,
        offset: 0,
        count: 100,
    };
    let read = v3(client, Procedure::Read, &read);
    let Outcome::Done(read) = whole::<Outcome<ReadOk<'_>, Option<crate::v3::Attributes>>>(&read)
    else {
        panic!("not read");
    };
    assert_eq!(read.data, [&[0; 3], &data[..]].concat());
}

#[test]
fn rfc2203_5_2_a_context_is_made_in_one_step_or_several() {
    let world = world();
    let one = Client::new(&world, "alice", Service::None);
    assert_eq!(one.call((program::NFS, 3, 0), &[]), Ok(vec![]));
    let session = world.server.session();
    let first = net::init(&session, GssProcedure::Init, &[], b"more").expect("taken");
    assert_eq!((first.major, first.token.as_slice()), (1, &b"again"[..]));
    let unknown = net::init(&session, GssProcedure::ContinueInit, &[0; 8], b"more");
    assert_eq!(unknown, Err(CRED_PROBLEM));
    let then = net::init(&session, GssProcedure::ContinueInit, &first.handle, b"bob");
    let then = then.expect("taken");
    assert_eq!((then.major, &then.handle), (0, &first.handle));
    let late = net::init(&session, GssProcedure::ContinueInit, &first.handle, b"bob");
    assert_eq!(late, Err(CRED_PROBLEM), "it is complete");
}

#[test]
fn rfc2203_5_2_3_1_what_is_no_token_makes_no_context() {
    let world = world();
    let session = world.server.session();
    let failed = net::init(&session, GssProcedure::Init, &[], b"").expect("answered");
    assert_eq!((failed.major, failed.minor), (13 << 16, 7));
    assert!(failed.handle.is_empty());
    let call = net::init_message(GssProcedure::Init, &[], b"alice", 0);
    // The token is opaque: its length, and eight bytes.
    for len in call.len() - 12..call.len() {
        let cut = net::with_mark(&call[4..len]);
        assert_eq!(reply_of(&session, &cut, None), Err(GARBAGE), "{len}");
    }
    let not_null = net::init_message(GssProcedure::Init, &[], b"alice", 1);
    assert_eq!(reply_of(&session, &not_null, None), Err(BAD_CRED));
}

#[test]
fn rfc2203_5_3_files_are_made_written_and_read_with_each_service() {
    let world = world();
    let root = open_root(&world);
    for service in SERVICES {
        for (name, uid) in [("alice", 1000), ("root", 0), ("mallory", 65534)] {
            let client = Client::new(&world, name, service);
            use_files(&client, root, format!("{name} {service:?}").as_bytes(), uid);
        }
    }
}

#[test]
fn a_call_that_is_served_again_with_more_patience_has_not_come_twice() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = HostDir::open(directory.path(), hostdir::Options::default()).expect("exported");
    let world = World::new(source as std::sync::Arc<dyn FileSystem>, &ALL);
    let root = open_root(&world);
    for service in SERVICES {
        // The first attempt to read a file of the host returns `WOULD_BLOCK`, so the driver serves
        // the call again.
        let client = Client::new(&world, "root", service);
        use_files(&client, root, format!("{service:?}").as_bytes(), 0);
    }
}

#[test]
fn rfc2203_5_3_3_1_what_came_before_or_is_too_old_is_dropped() {
    let world = world();
    for service in SERVICES {
        let client = Client::new(&world, "alice", service);
        let call = client.message((program::NFS, 3, 0), &[]);
        assert_eq!(client.send(&call), Some(Ok(vec![])));
        assert_eq!(client.send(&call), None);
        assert_eq!(client.send_elsewhere(&world, &call), None);
        let old = client.message((program::NFS, 3, 0), &[]);
        client.skip(Window::SIZE);
        assert_eq!(client.call((program::NFS, 3, 0), &[]), Ok(vec![]));
        assert_eq!(client.send(&old), None);
    }
}

#[test]
fn rfc2203_5_3_3_3_who_does_not_sign_has_no_context() {
    let world = world();
    let client = Client::new(&world, "alice", Service::None);
    let good = client.message((program::NFS, 3, 0), &[]);
    // The verifier is at the end.
    let changed = |at: usize, to: u8| {
        let mut call = good.clone();
        call[at] = to;
        client.send(&call).expect("an answer")
    };
    assert_eq!(
        changed(good.len() - 1, !good[good.len() - 1]),
        Err(CRED_PROBLEM)
    );
    assert_eq!(changed(4, 77), Err(CRED_PROBLEM), "the id is signed, too");
    assert_eq!(changed(good.len() - 13, 1), Err(BAD_VERF), "AUTH_SYS");
    assert_eq!(
        client.send(&good),
        Some(Ok(vec![])),
        "its number still counts"
    );
    let unknown = client.with_handle(&[9; 8]).call((program::NFS, 3, 0), &[]);
    assert_eq!(unknown, Err(CRED_PROBLEM));
    let short = client.with_handle(&[9; 3]).call((program::NFS, 3, 0), &[]);
    assert_eq!(short, Err(CRED_PROBLEM));
    client.skip(0x8000_0000);
    assert_eq!(client.call((program::NFS, 3, 0), &[]), Err(CTX_PROBLEM));
}

#[test]
fn clients_whose_tickets_or_signatures_are_not_valid_are_counted_as_refused() {
    let world = world();
    let refusals = Arc::<Refusals>::default();
    let mut port = 600;
    let mut serve = |message: &[u8]| {
        port += 1;
        let peer = Peer::remote([10, 0, 0, 1].into(), port).with_refusals(refusals.clone());
        net::serve_peer(&world.server.session(), message, peer);
        [Refusal::Kerberos, Refusal::WeakAuth].map(|why| refusals.of(why))
    };
    let client = Client::new(&world, "alice", Service::None);
    let mut good = client.message((program::NFS, 3, 0), &[]);
    assert_eq!(serve(&good), [0, 0]);
    // The signature is at the end.
    let last = good.len() - 1;
    good[last] ^= 1;
    assert_eq!(serve(&good), [1, 0]);
    let no_token = net::init_message(GssProcedure::Init, &[], b"", 0);
    assert_eq!(serve(&no_token), [2, 0]);
    // As after a restart of the server.
    let unknown = client.with_handle(&[9; 8]);
    assert_eq!(serve(&unknown.message((program::NFS, 3, 0), &[])), [2, 0]);
}

#[test]
fn rfc2203_5_3_3_4_bodies_that_do_not_fit_are_garbage() {
    let world = world();
    for service in [Service::Integrity, Service::Privacy] {
        let client = Client::new(&world, "alice", service);
        let mut other = client.message((program::NFS, 3, 0), &[]);
        let last = other.len() - 1;
        other[last] ^= 1;
        assert_eq!(client.send(&other), Some(Err(GARBAGE)), "signed by nobody");
        let shifted = client.message_with((program::NFS, 3, 0), |sequence| {
            (sequence + 1).to_be_bytes().to_vec()
        });
        assert_eq!(
            client.send(&shifted),
            Some(Err(GARBAGE)),
            "another's number"
        );
        let bare = client.message_with((program::NFS, 3, 0), |_| vec![1, 2]);
        assert_eq!(client.send(&bare), Some(Err(GARBAGE)), "no number");
        // Truncated at any length.
        for len in 0..200 {
            let call = client.message((program::NFS, 3, 1), &[0; 60]);
            if len + 4 < call.len() {
                client.send_raw(&net::with_mark(&call[4..4 + len]));
            }
        }
        assert_eq!(client.call((program::NFS, 3, 0), &[]), Ok(vec![]));
        let unknown = client.call((program::NFS, 3, 99), &[]);
        const PROCEDURE_UNAVAILABLE: u32 = 3;
        assert_eq!(
            unknown,
            Err(PROCEDURE_UNAVAILABLE),
            "signed as all replies are"
        );
    }
}

#[test]
fn rfc2203_5_4_a_context_that_is_destroyed_is_gone() {
    let world = world();
    let client = Client::new(&world, "alice", Service::Integrity);
    assert_eq!(client.destroy(1), Err(BAD_CRED), "only by NULL");
    assert_eq!(client.destroy(0), Ok(vec![]));
    assert_eq!(client.call((program::NFS, 3, 0), &[]), Err(CRED_PROBLEM));
}

#[test]
fn contexts_end_with_their_tickets_and_with_the_server() {
    let world = world();
    let client = Client::new(&world, "alice", Service::None);
    world.pass(net::LIFETIME - 1);
    assert_eq!(client.call((program::NFS, 3, 0), &[]), Ok(vec![]));
    world.pass(1);
    assert_eq!(client.call((program::NFS, 3, 0), &[]), Err(CRED_PROBLEM));
    let client = Client::new(&world, "alice", Service::None);
    let mut handle = client.handle.clone();
    handle[0] ^= 1;
    let before = client.with_handle(&handle).call((program::NFS, 3, 0), &[]);
    assert_eq!(before, Err(CRED_PROBLEM), "of another run");
}

#[test]
fn a_full_table_lets_go_of_what_idles_and_of_the_greedy_first() {
    let world = world();
    let alive = |client: &Client| client.call((program::NFS, 3, 0), &[]).is_ok();
    let victim = Client::new(&world, "victim", Service::None);
    let greedy = Client::new(&world, "greedy", Service::None);
    for _ in 0..Table::MAX_OF_A_PRINCIPAL {
        Client::new(&world, "greedy", Service::None);
    }
    assert!(!alive(&greedy) && alive(&victim), "its own first goes");
    let idle = Client::new(&world, "idle", Service::None);
    for number in 0..Table::MAX_CONTEXTS {
        Client::new(&world, &format!("user{number}"), Service::None);
        assert!(alive(&victim), "one that is made use of stays");
    }
    assert!(!alive(&idle));
    // The bound for contexts that wait for another token is separate.
    let session = world.server.session();
    let more = || net::init(&session, GssProcedure::Init, &[], b"more").expect("taken");
    let first = more();
    world.pass(1);
    for _ in 0..Table::MAX_PENDING {
        more();
    }
    let late = net::init(&session, GssProcedure::ContinueInit, &first.handle, b"bob");
    assert_eq!(late, Err(CRED_PROBLEM));
}

#[test]
fn a_call_that_is_sent_again_under_another_number_is_carried_out_once() {
    let world = world();
    let root = open_root(&world);
    for service in SERVICES {
        let client = Client::new(&world, "alice", service);
        let what = (program::NFS, 3, Procedure::Create as u32);
        let name = format!("{service:?}");
        let args = put(&create(root, name.as_bytes()));
        let first = client.call(what, &args).expect("results");
        client.same_id();
        assert_eq!(client.call(what, &args), Ok(first.clone()));
        let another = Client::new(&world, "bob", service);
        another.set_id(client.last_id());
        let exists = another.call(what, &args).expect("results");
        assert_ne!(exists, first, "somebody else's");
    }
}

#[test]
fn rfc2203_5_3_3_a_body_that_is_sealed_is_opened_once_with_full_patience() {
    let world = world();
    let client = Client::new(&world, "alice", Service::Privacy);
    let call = client.message((program::NFS, 3, 0), &[]);
    assert!(client.would_block(&call, Patience::None));
    assert!(client.would_block(&call, Patience::Brief));
    assert_eq!(client.send(&call), Some(Ok(vec![])));
}

#[test]
fn memory_is_claimed_for_what_a_call_asks_for_and_not_where_a_worker_answers() {
    let world = world();
    let root = root_of(&world).0;
    let session = world.server.session();
    let large = 64 << 10;
    let bounds = |service| {
        let client = Client::new(&world, "alice", service);
        let bound = |procedure, args: &[u8]| {
            let message = client.message((program::NFS, 3, procedure as u32), args);
            session.reply_bound(&message, large)
        };
        let (file, offset, count) = (root, 0, 1 << 19);
        let read = ReadArgs {
            file,
            offset,
            count,
        };
        [
            bound(Procedure::GetAttr, &put(&root)),
            bound(Procedure::Read, &put(&read)),
        ]
    };
    let [attributes, read] = bounds(Service::None);
    assert!(attributes < 4 << 10, "{attributes}");
    assert!((1 << 19..(1 << 19) + (4 << 10)).contains(&read), "{read}");
    // Such calls are not served by the lane, which reserves memory.
    for service in [Service::Integrity, Service::Privacy] {
        assert_eq!(bounds(service), [0, 0], "{service:?}");
    }
    let init = net::init_message(GssProcedure::Init, &[], b"alice", 0);
    assert_eq!(session.reply_bound(&init, large), 0);
}
