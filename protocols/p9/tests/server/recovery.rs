//! Sessions that continue on another connection: every request that must not be carried out twice,
//! executed and not executed when its reply is lost; and the restored state.

use p9::message::write_head;
use p9::numbers::{Getattr, Lopen, lock_kind, lock_status};
use p9::recovery::{Failure, Record, Recovery, RequestAction, Unsent};
use p9::server::{Options, Server};
use p9::{Data, Dialect, Fid, Names, Rmessage, Tag, Tmessage, Uid};
use vfs::Errno;

use crate::net::{Net, ROOT, errno, server};

const LINUX: Dialect = Dialect::Linux;
const MSIZE: u32 = 1 << 16;

/// A client whose server can be lost.
struct Client {
    server: Server,
    net: Net,
    record: Record,
    tag: u16,
}

/// The server side of a recovery.
struct Over<'a>(&'a Net);

impl p9::recovery::Server for Over<'_> {
    fn call(&mut self, requests: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
        let replies = requests.iter().map(|request| {
            let tag = match request {
                Tmessage::Version { .. } => Tag::NONE,
                _ => Tag(1),
            };
            encoded(tag, &self.0.send(tag, request))
        });
        Ok(replies.collect())
    }
}

fn encoded(tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    reply.encode(LINUX, tag, &mut message);
    message
}

fn silent(server: &Server) -> Net {
    let mut net = Net::silent(server);
    (net.dialect, net.msize) = (LINUX, MSIZE);
    net
}

impl Client {
    /// Returns a client after its attach.
    fn new() -> Client {
        let server = server(Options::default());
        let mut client = Client {
            net: silent(&server),
            server,
            record: Record::default(),
            tag: 0,
        };
        let version = b"9P2000.L";
        let msize = MSIZE;
        let hello = Tmessage::Version { msize, version };
        let tag = client.ask(Tag::NONE, &hello);
        let reply = client.net.send(tag, &hello);
        client
            .record
            .on_reply(&encoded(tag, &reply))
            .expect("noted");
        client.ok(&Tmessage::Attach {
            fid: ROOT,
            afid: Fid::NONE,
            uname: b"",
            aname: b"",
            n_uname: Uid(0),
        });
        client
    }

    fn ask(&mut self, tag: Tag, request: &Tmessage<'_>) -> Tag {
        let mut message = Vec::new();
        request.encode(LINUX, tag, &mut message);
        let asked = self.record.on_request(message, true);
        assert_eq!(asked, Ok(RequestAction::Send), "{request:?}");
        tag
    }

    fn tag(&mut self) -> Tag {
        self.tag += 1;
        Tag(self.tag)
    }

    fn rpc(&mut self, request: &Tmessage<'_>) -> Rmessage<'static> {
        let tag = self.tag();
        self.ask(tag, request);
        let reply = self.net.send(tag, request);
        self.record.on_reply(&encoded(tag, &reply)).expect("noted");
        reply
    }

    #[track_caller]
    fn ok(&mut self, request: &Tmessage<'_>) -> Rmessage<'static> {
        let reply = self.rpc(request);
        assert_eq!(errno(&reply), None, "{request:?}");
        reply
    }

    fn walk(&mut self, fid: u32, newfid: u32, path: &str) {
        let names: Vec<_> = path.split('/').map(str::as_bytes).collect();
        let names = Names::new(if path.is_empty() { &[] } else { &names });
        let (fid, newfid) = (Fid(fid), Fid(newfid));
        self.ok(&Tmessage::Walk { fid, newfid, names });
    }

    fn create(&mut self, newfid: u32, name: &str, flags: Lopen) {
        self.walk(0, newfid, "");
        self.ok(&create(newfid, name, flags));
    }

    fn mkdir(&mut self, name: &str) {
        self.ok(&mkdir(name));
    }

    /// Sends a request without receiving a reply; the server executes it only if `done`.
    fn in_flight(&mut self, request: &Tmessage<'_>, done: bool) {
        let tag = self.tag();
        self.ask(tag, request);
        if done {
            self.net.send(tag, request);
        }
    }

    /// Loses the server and recovers on a new one, and returns the replies from that.
    fn again(&mut self) -> Vec<Rmessage<'static>> {
        self.record.on_connection_lost();
        self.net = silent(&self.server);
        let mut recovery = self.record.begin();
        recovery.run(&mut Over(&self.net)).expect("gone on");
        self.end(recovery)
    }

    fn end(&mut self, recovery: Recovery) -> Vec<Rmessage<'static>> {
        let mut answers = self.record.end(recovery);
        let Unsent {
            messages,
            answers: more,
            ..
        } = self.record.unsent();
        answers.extend(more);
        for message in messages {
            let (tag, request) = Tmessage::decode(LINUX, &message).expect("ours");
            let reply = encoded(tag, &self.net.send(tag, &request));
            self.record.on_reply(&reply).expect("noted");
            answers.push(reply);
        }
        let decoded = answers.into_iter().map(|answer| {
            let (_, reply) = Rmessage::decode(LINUX, Vec::leak(answer)).expect("a reply");
            reply
        });
        decoded.collect()
    }

    /// Returns whether a path exists.
    fn is_there(&mut self, path: &str) -> bool {
        let names: Vec<_> = path.split('/').map(str::as_bytes).collect();
        let (fid, newfid, names) = (ROOT, Fid(99), Names::new(&names));
        match self.rpc(&Tmessage::Walk { fid, newfid, names }) {
            Rmessage::Walk { qids } if qids.len() == names.len() => {
                self.ok(&Tmessage::Clunk { fid: newfid });
                true
            }
            _ => false,
        }
    }
}

fn create(fid: u32, name: &str, flags: Lopen) -> Tmessage<'_> {
    Tmessage::Lcreate {
        fid: Fid(fid),
        name: name.as_bytes(),
        flags: (flags | Lopen::CREATE).bits(),
        mode: 0o644,
        gid: 0,
    }
}

fn mkdir(name: &str) -> Tmessage<'_> {
    Tmessage::Mkdir {
        dfid: ROOT,
        name: name.as_bytes(),
        mode: 0o755,
        gid: 0,
    }
}

fn write(fid: u32, offset: u64, data: &[u8]) -> Tmessage<'_> {
    let (fid, data) = (Fid(fid), Data(data));
    Tmessage::Write { fid, offset, data }
}

/// Returns requests, each with the paths that exist and those that do not afterwards.
fn doubtful() -> Vec<(
    Tmessage<'static>,
    &'static [&'static str],
    &'static [&'static str],
)> {
    let dfid = ROOT;
    vec![
        (mkdir("new"), &["new"], &[]),
        (
            Tmessage::Symlink {
                fid: ROOT,
                name: b"new",
                target: b"f",
                gid: 0,
            },
            &["new"],
            &[],
        ),
        (
            Tmessage::Mknod {
                dfid,
                name: b"new",
                mode: 0o010644,
                major: 0,
                minor: 0,
                gid: 0,
            },
            &["new"],
            &[],
        ),
        (
            Tmessage::Link {
                dfid,
                fid: Fid(1),
                name: b"new",
            },
            &["new", "f"],
            &[],
        ),
        (create(2, "new", Lopen::EXCL | Lopen::RDWR), &["new"], &[]),
        (create(2, "new", Lopen::RDWR), &["new"], &[]),
        (
            Tmessage::Unlinkat {
                dirfid: ROOT,
                name: b"f",
                flags: 0,
            },
            &[],
            &["f"],
        ),
        (Tmessage::Remove { fid: Fid(1) }, &[], &["f"]),
        (
            Tmessage::Renameat {
                olddirfid: ROOT,
                oldname: b"d",
                newdirfid: ROOT,
                newname: b"e",
            },
            &["e/in"],
            &["d"],
        ),
        (
            Tmessage::Rename {
                fid: Fid(3),
                dfid,
                name: b"e",
            },
            &["e/in"],
            &["d"],
        ),
    ]
}

#[test]
fn what_must_not_be_done_twice_is_done_once() {
    for (request, there, gone) in doubtful() {
        for done in [false, true] {
            let mut client = Client::new();
            client.create(9, "f", Lopen::RDWR);
            client.mkdir("d");
            client.walk(0, 1, "f");
            client.walk(0, 2, "");
            client.walk(0, 3, "d");
            client.walk(3, 4, "");
            client.ok(&create(4, "in", Lopen::RDWR));
            client.in_flight(&request, done);
            // The reply after the recovery is as good as the first one.
            let answers = client.again();
            assert_eq!(answers.len(), 1, "{request:?}");
            assert_eq!(
                answers[0].kind(),
                request.kind(),
                "{request:?}, done: {done}"
            );
            for path in there {
                assert!(client.is_there(path), "{request:?}: {path}");
            }
            for path in gone {
                assert!(!client.is_there(path), "{request:?}: {path}");
            }
            // Files below it moved along.
            client.ok(&write(4, 0, b"x"));
            client.again();
            client.ok(&write(4, 0, b"x"));
            if let Tmessage::Lcreate { fid, .. } = request {
                client.ok(&write(fid.0, 0, b"x"));
            }
        }
    }
}

/// A server with several threads may answer a request before the walk that it builds on; `lost`
/// means that the walk's reply never arrives.
#[test]
fn answers_come_in_any_order() {
    for lost in [false, true] {
        let mut client = Client::new();
        let walk = Tmessage::Walk {
            fid: ROOT,
            newfid: Fid(2),
            names: Names::new(&[]),
        };
        let create = create(2, "new", Lopen::RDWR);
        let [cloned, made] = [&walk, &create].map(|request| {
            let tag = client.tag();
            client.ask(tag, request);
            encoded(tag, &client.net.send(tag, request))
        });
        client.record.on_reply(&made).expect("noted");
        if !lost {
            client.record.on_reply(&cloned).expect("noted");
        }
        let answers = client.again();
        let kinds: Vec<_> = answers.iter().map(|answer| answer.kind()).collect();
        assert_eq!(kinds, if lost { vec![walk.kind()] } else { vec![] });
        client.ok(&write(2, 0, b"x"));
        assert!(client.is_there("new"));
    }
}

#[test]
fn what_was_there_before_is_not_ours() {
    for request in [mkdir("old"), create(2, "old", Lopen::EXCL | Lopen::RDWR)] {
        let mut client = Client::new();
        match request {
            Tmessage::Mkdir { .. } => client.mkdir("old"),
            _ => client.create(8, "old", Lopen::RDWR),
        }
        client.create(9, "later", Lopen::RDWR);
        let (fid, mask) = (Fid(9), Getattr::BASIC.bits());
        client.ok(&Tmessage::Getattr { fid, mask });
        client.walk(0, 2, "");
        client.in_flight(&request, true);
        let answers = client.again();
        assert_eq!(errno(&answers[0]), Some(Errno::EEXIST), "{request:?}");
    }
}

#[test]
fn what_is_appended_is_appended_once_and_whole() {
    for done in [0, 3, 5] {
        let mut client = Client::new();
        client.create(1, "log", Lopen::RDWR | Lopen::APPEND);
        client.ok(&write(1, 0, b"12"));
        client.in_flight(&write(1, 2, b"34567"), false);
        // The part of it that the server had written.
        let other = client.net.send(Tag(7), &write(1, 2, &b"34567"[..done]));
        assert_eq!(errno(&other), None);
        let answers = client.again();
        let Rmessage::Write { count } = answers[0] else {
            panic!("{answers:?}");
        };
        let rest = &b"34567"[count as usize..];
        if !rest.is_empty() {
            client.ok(&write(1, 2 + u64::from(count), rest));
        }
        let (fid, offset, count) = (Fid(1), 0, 100);
        let all = client.ok(&Tmessage::Read { fid, offset, count });
        assert_eq!(
            all,
            Rmessage::Read {
                data: Data(b"1234567")
            },
            "{done}"
        );
    }
}

/// Sends a write of `data` whose head only is recorded.
fn lend(client: &mut Client, fid: u32, data: &[u8]) -> Tag {
    let tag = client.tag();
    let head = write_head(tag, Fid(fid), 0, data.len() as u32);
    assert_eq!(
        client.record.on_lent_write(head.to_vec(), true),
        Ok(RequestAction::Send)
    );
    tag
}

#[test]
fn what_was_lent_is_its_clients_to_ask_again() {
    let mut client = Client::new();
    client.create(1, "there", Lopen::RDWR);
    client.create(2, "gone", Lopen::RDWR);
    let answered = lend(&mut client, 1, b"answered");
    let reply = client.net.send(answered, &write(1, 0, b"answered"));
    let reply = encoded(answered, &reply);
    client.record.on_reply(&reply).expect("noted");
    let (lent, of_stale, cancelled) = (
        lend(&mut client, 1, b"lent"),
        lend(&mut client, 2, b"stale"),
        lend(&mut client, 1, b"cancelled"),
    );
    let (dirfid, name, flags) = (ROOT, &b"gone"[..], 0);
    let unlink = Tmessage::Unlinkat {
        dirfid,
        name,
        flags,
    };
    assert_eq!(errno(&client.net.send(Tag(900), &unlink)), None);
    client.record.on_connection_lost();
    let mut flush = Vec::new();
    Tmessage::Flush { oldtag: cancelled }.encode(LINUX, Tag(901), &mut flush);
    let flushed = client.record.on_request(flush, false);
    assert!(matches!(flushed, Ok(RequestAction::Answer(_))));
    let tag = client.tag();
    let head = write_head(tag, Fid(1), 4, 4).to_vec();
    assert_eq!(
        client.record.on_lent_write(head, false),
        Ok(RequestAction::Wait)
    );

    client.net = silent(&client.server);
    let mut recovery = client.record.begin();
    recovery.run(&mut Over(&client.net)).expect("gone on");
    assert_eq!(client.record.end(recovery), Vec::<Vec<u8>>::new());
    let unsent = client.record.unsent();
    assert!(unsent.messages.is_empty());
    assert_eq!(unsent.lent, [lent, tag]);
    let errno = Errno::ESTALE.raw().into();
    assert_eq!(
        unsent.answers,
        [encoded(of_stale, &Rmessage::Lerror { errno })]
    );
    assert_eq!(client.record.unsent(), Unsent::default());
    // As if it had not been requested before.
    let head = write_head(of_stale, Fid(2), 0, 5).to_vec();
    let refused = encoded(of_stale, &Rmessage::Lerror { errno });
    assert_eq!(
        client.record.on_lent_write(head, true),
        Ok(RequestAction::Answer(refused))
    );
}

#[test]
fn only_the_head_of_a_write_is_taken_for_one() {
    let mut record = Record::default();
    let head = write_head(Tag(1), Fid(1), 0, 5);
    let mut read = head;
    read[4] = 116;
    for (what, head) in [
        ("less", &head[..22]),
        ("nothing", &[]),
        ("more", &[head, head].concat()),
        ("another", &read),
    ] {
        assert!(record.on_lent_write(head.to_vec(), true).is_err(), "{what}");
    }
}

#[test]
fn requests_that_build_on_a_walk_in_flight_find_it_done() {
    let mut client = Client::new();
    let (fid, newfid, names) = (ROOT, Fid(5), Names::new(&[]));
    client.in_flight(&Tmessage::Walk { fid, newfid, names }, true);
    client.in_flight(&create(5, "new", Lopen::EXCL | Lopen::RDWR), true);
    let answers = client.again();
    assert!(
        matches!(
            answers[..],
            [Rmessage::Walk { .. }, Rmessage::Lcreate { .. }]
        ),
        "{answers:?}"
    );
    client.ok(&write(5, 0, b"x"));
}

#[test]
fn a_fid_that_cannot_have_all_back_is_stale_until_it_is_clunked() {
    let mut client = Client::new();
    client.create(1, "f", Lopen::RDWR);
    client.create(2, "g", Lopen::RDWR);
    let other = Net::on(&client.server, LINUX);
    let (dirfid, name, flags) = (ROOT, &b"f"[..], 0);
    other.ok(&Tmessage::Unlinkat {
        dirfid,
        name,
        flags,
    });
    client.in_flight(&write(1, 0, b"x"), true);
    assert_eq!(errno(&client.again()[0]), Some(Errno::ESTALE));
    assert_eq!(client.record.stale(), 1);
    let mut asked = |request: &Tmessage<'_>| {
        let mut message = Vec::new();
        request.encode(LINUX, Tag(9), &mut message);
        match client.record.on_request(message, true).expect("noted") {
            RequestAction::Answer(answer) => {
                let (_, reply) = Rmessage::decode(LINUX, Vec::leak(answer)).expect("a reply");
                Some(reply)
            }
            _ => None,
        }
    };
    let fid = Fid(1);
    let stale = asked(&Tmessage::Readlink { fid }).expect("answered");
    assert_eq!(errno(&stale), Some(Errno::ESTALE));
    assert_eq!(asked(&write(2, 0, b"x")), None);
    assert_eq!(asked(&Tmessage::Clunk { fid }), Some(Rmessage::Clunk {}));
    assert_eq!(client.record.stale(), 0);
}

#[test]
fn extended_attributes_are_read_and_written_on() {
    let mut client = Client::new();
    client.create(1, "f", Lopen::RDWR);
    let draft = |fid| Tmessage::Xattrcreate {
        fid,
        name: b"user.x",
        size: 4,
        flags: 1,
    };
    client.walk(0, 2, "f");
    client.ok(&draft(Fid(2)));
    client.ok(&write(2, 0, b"ab"));
    client.again();
    client.ok(&write(2, 2, b"cd"));
    // Executed: a repeated request would fail because the attribute exists.
    client.in_flight(&Tmessage::Clunk { fid: Fid(2) }, true);
    assert_eq!(client.again(), [Rmessage::Clunk {}]);
    let (fid, newfid, name) = (Fid(1), Fid(3), &b"user.x"[..]);
    client.ok(&Tmessage::Xattrwalk { fid, newfid, name });
    client.again();
    let (offset, count) = (1, 100);
    let fid = newfid;
    let value = client.ok(&Tmessage::Read { fid, offset, count });
    assert_eq!(value, Rmessage::Read { data: Data(b"bcd") });
}

#[test]
fn a_lock_that_is_anothers_by_now_makes_its_fid_stale() {
    let lock = |fid, client_id| Tmessage::Lock {
        fid,
        kind: lock_kind::WRLCK,
        flags: 0,
        start: 0,
        length: 10,
        proc_id: 1,
        client_id,
    };
    let mut client = Client::new();
    client.create(1, "f", Lopen::RDWR);
    client.ok(&lock(Fid(1), b"we"));
    client.record.on_connection_lost();
    client.net = silent(&client.server);
    let other = Net::on(&client.server, LINUX);
    other.walk(ROOT, Fid(1), "f");
    let (fid, flags) = (Fid(1), Lopen::RDWR.bits());
    other.ok(&Tmessage::Lopen { fid, flags });
    let status = lock_status::SUCCESS;
    assert_eq!(other.ok(&lock(fid, b"they")), Rmessage::Lock { status });
    let mut recovery = client.record.begin();
    let mut tries = 1;
    while let Err(failure) = recovery.run(&mut Over(&client.net)) {
        assert!(matches!(failure, Failure::Temporary(_)), "{failure:?}");
        client.net = silent(&client.server);
        tries += 1;
    }
    assert!(tries > 2, "it might be our own yet");
    client.end(recovery);
    assert_eq!(client.record.stale(), 1);
}

#[test]
fn a_server_of_other_sizes_is_none_to_go_on_with() {
    let mut client = Client::new();
    client.record.on_connection_lost();
    struct Small;
    impl p9::recovery::Server for Small {
        fn call(&mut self, _: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
            let (msize, version) = (8192, &b"9P2000.L"[..]);
            Ok(vec![encoded(
                Tag::NONE,
                &Rmessage::Version { msize, version },
            )])
        }
    }
    let mut recovery = client.record.begin();
    assert!(matches!(
        recovery.run(&mut Small),
        Err(Failure::Permanent(_))
    ));
}

/// A server with random answers.
struct Liar<'a> {
    net: &'a Net,
    random: u64,
}

impl Liar<'_> {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1);
        (self.random >> 33) % below
    }

    fn lie(&mut self, tag: Tag, request: &Tmessage<'_>) -> Vec<u8> {
        let qid = p9::Qid {
            kind: p9::QidType::empty(),
            version: 0,
            path: self.random(4),
        };
        let qids = [qid; 16];
        let count = self.random(1 << 32) as u32;
        let mut reply = match self.random(8) {
            0 => encoded(tag, &Rmessage::Lerror { errno: count }),
            1 => encoded(
                tag,
                &Rmessage::Walk {
                    qids: p9::Qids::new(&qids[..self.random(17) as usize]),
                },
            ),
            2 => encoded(tag, &Rmessage::Lopen { qid, iounit: count }),
            3 => encoded(tag, &Rmessage::Attach { qid }),
            4 => encoded(tag, &Rmessage::Write { count }),
            5 => encoded(
                tag,
                &Rmessage::Read {
                    data: Data(&[7; 300][..self.random(300) as usize]),
                },
            ),
            6 => encoded(
                tag,
                &Rmessage::Lock {
                    status: count as u8,
                },
            ),
            _ => encoded(tag, &self.net.send(tag, request)),
        };
        if self.random(20) == 0 {
            reply.truncate(7.max(reply.len() / 2));
        }
        reply
    }
}

impl p9::recovery::Server for Liar<'_> {
    fn call(&mut self, requests: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut replies = Vec::new();
        for request in requests {
            replies.push(match (request, self.random(4)) {
                (Tmessage::Version { .. }, _) => {
                    encoded(Tag::NONE, &self.net.send(Tag::NONE, request))
                }
                (_, 0) => self.lie(Tag(1), request),
                _ => encoded(Tag(1), &self.net.send(Tag(1), request)),
            });
        }
        Ok(replies)
    }
}

#[test]
fn whatever_a_server_answers_a_recovery_comes_to_an_end() {
    for seed in 0..300 {
        let mut client = Client::new();
        client.create(1, "f", Lopen::RDWR | Lopen::APPEND);
        client.walk(0, 2, "");
        client.mkdir("d");
        client.walk(0, 3, "d");
        for (request, ..) in doubtful() {
            client.in_flight(&request, seed % 2 == 0);
        }
        client.in_flight(&write(1, 0, b"x"), seed % 3 == 0);
        client.record.on_connection_lost();
        let mut recovery = client.record.begin();
        let net = &silent(&client.server);
        let lied = recovery.run(&mut Liar { net, random: seed });
        client.net = silent(&client.server);
        // The lies may have had any effect, but the recovery ended.
        if lied.is_ok() || recovery.run(&mut Over(&client.net)).is_ok() {
            client.record.end(recovery);
            client.record.unsent();
        }
    }
}

#[test]
fn nobody_waits_for_a_server_to_hear_that_nobody_waits() {
    let mut client = Client::new();
    client.in_flight(&mkdir("d"), true);
    client.record.on_connection_lost();
    let mut message = Vec::new();
    let oldtag = Tag(client.tag);
    Tmessage::Flush { oldtag }.encode(LINUX, Tag(500), &mut message);
    let answer = encoded(Tag(500), &Rmessage::Flush {});
    assert_eq!(
        client.record.on_request(message, false),
        Ok(RequestAction::Answer(answer))
    );
    client.net = silent(&client.server);
    let mut recovery = client.record.begin();
    recovery.run(&mut Over(&client.net)).expect("gone on");
    assert_eq!(client.end(recovery), []);
}

/// A new server may not support passing of files; then they are not requested from it.
#[test]
fn a_server_that_has_come_need_not_hand_files_over() {
    struct Says(Vec<&'static str>, Vec<String>);
    impl p9::recovery::Server for Says {
        fn call(&mut self, requests: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
            let [Tmessage::Version { msize, version }] = *requests else {
                assert!(
                    requests.is_empty(),
                    "nothing else is to be said: {requests:?}"
                );
                return Ok(Vec::new());
            };
            self.1.push(version.escape_ascii().to_string());
            let version = self.0.remove(0).as_bytes();
            if version == b"an error" {
                let errno = 5;
                return Ok(vec![encoded(Tag::NONE, &Rmessage::Lerror { errno })]);
            }
            Ok(vec![encoded(
                Tag::NONE,
                &Rmessage::Version { msize, version },
            )])
        }
    }
    let began = |version: &str| {
        let mut record = Record::default();
        let (msize, version) = (8192, version.as_bytes());
        let mut hello = Vec::new();
        Tmessage::Version { msize, version }.encode(LINUX, Tag::NONE, &mut hello);
        record.on_request(hello, true).expect("sound");
        let answer = encoded(Tag::NONE, &Rmessage::Version { msize, version });
        record.on_reply(&answer).expect("sound");
        assert!(record.is_recoverable());
        record.on_connection_lost();
        record.begin()
    };
    let (hand, plain) = (Dialect::FD_PASSING, "9P2000.L");
    for (was, says, asked) in [
        (hand, vec![hand], Ok(vec![hand])),
        (hand, vec![plain], Ok(vec![hand])),
        (hand, vec!["unknown", plain], Ok(vec![hand, plain])),
        (hand, vec!["an error", plain], Ok(vec![hand, plain])),
        (hand, vec!["unknown", "unknown"], Err(())),
        (hand, vec!["9P2000"], Err(())),
        (plain, vec![plain], Ok(vec![plain])),
        (plain, vec![hand], Err(())),
        (plain, vec!["unknown"], Err(())),
    ] {
        let mut server = Says(says.clone(), Vec::new());
        let done = began(was).run(&mut server).map_err(drop);
        let heard: Vec<&str> = server.1.iter().map(String::as_str).collect();
        assert_eq!(
            done.map(|()| heard.clone()),
            asked,
            "{was} {says:?} {heard:?}"
        );
    }
}
