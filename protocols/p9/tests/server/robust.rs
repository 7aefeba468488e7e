//! Every message from a client gets a reply of its dialect or ends the connection.

use p9::client::reply;
use p9::server::Options;
use p9::{Data, Datasync, Dialect, Extension, Fid, Kind, Names, Stat, Tag, Tmessage as T, Uid};
use proptest::prelude::*;
use vfs::Call;
use wire::{ServeOutcome, Session};

use crate::net::{Net, ROOT, server};

/// Yields a name that probably exists.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..4u8).prop_map(|n| vec![b'a' + n]),
        1 => Just(b"..".to_vec()),
        1 => Just(b".".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]
}

/// Yields a number that is probably a boundary value.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20u64,
        2 => (0..64u32).prop_map(|bit| (1u64 << bit).wrapping_sub(1)),
        1 => any::<u64>(),
        1 => Just(0x7fff_ffe0_0d07_0001),
    ]
}

/// The parts of a random request.
#[derive(Clone, Debug)]
struct Parts {
    kind: Kind,
    fids: [u32; 2],
    names: Vec<Vec<u8>>,
    data: Vec<u8>,
    numbers: [u64; 4],
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        prop::sample::select(Kind::ALL),
        [0..5u32, 0..5u32],
        prop::collection::vec(name(), 2..5),
        prop::collection::vec(any::<u8>(), 0..100),
        [number(), number(), number(), number()],
    )
        .prop_map(|(kind, fids, names, data, numbers)| Parts {
            kind,
            fids,
            names,
            data,
            numbers,
        })
}

/// Makes a request of parts, which may be invalid; returns `None` for Rerror, Rlerror and Tversion.
fn request<'a>(parts: &'a Parts, names: &'a [&'a [u8]]) -> Option<T<'a>> {
    let [fid, fid2] = parts.fids.map(Fid);
    let [name, name2] = [names[0], names[1]];
    let [n, n2, n3, n4] = parts.numbers;
    Some(match parts.kind {
        Kind::Lerror | Kind::Error | Kind::Version => return None,
        Kind::Statfs => T::Statfs { fid },
        Kind::Hand => T::Hand { fid },
        Kind::Lopen => T::Lopen {
            fid,
            flags: n as u32,
        },
        Kind::Lcreate => T::Lcreate {
            fid,
            name,
            flags: n as u32,
            mode: n2 as u32,
            gid: n3 as u32,
        },
        Kind::Symlink => T::Symlink {
            fid,
            name,
            target: name2,
            gid: n as u32,
        },
        Kind::Mknod => T::Mknod {
            dfid: fid,
            name,
            mode: (n as u32 % 16) << 12 | 0o644,
            major: n2 as u32,
            minor: n3 as u32,
            gid: n4 as u32,
        },
        Kind::Rename => T::Rename {
            fid,
            dfid: fid2,
            name,
        },
        Kind::Readlink => T::Readlink { fid },
        Kind::Getattr => T::Getattr { fid, mask: n },
        Kind::Setattr => T::Setattr {
            fid,
            valid: n as u32,
            mode: n2 as u32,
            uid: n3 as u32,
            gid: n4 as u32,
            size: n2,
            atime_sec: n3,
            atime_nsec: n4,
            mtime_sec: n2,
            mtime_nsec: n3,
        },
        Kind::Xattrwalk => T::Xattrwalk {
            fid,
            newfid: fid2,
            name,
        },
        Kind::Xattrcreate => T::Xattrcreate {
            fid,
            name,
            size: n,
            flags: n2 as u32,
        },
        Kind::Readdir => T::Readdir {
            fid,
            offset: n,
            count: n2 as u32,
        },
        Kind::Fsync => T::Fsync {
            fid,
            datasync: Datasync(n as u32),
        },
        Kind::Lock => T::Lock {
            fid,
            kind: n as u8 % 4,
            flags: n2 as u32,
            start: n3,
            length: n4,
            proc_id: n as u32 % 3,
            client_id: name,
        },
        Kind::Getlock => T::Getlock {
            fid,
            kind: n as u8 % 4,
            start: n2,
            length: n3,
            proc_id: n as u32 % 3,
            client_id: name,
        },
        Kind::Link => T::Link {
            dfid: fid,
            fid: fid2,
            name,
        },
        Kind::Mkdir => T::Mkdir {
            dfid: fid,
            name,
            mode: n as u32,
            gid: n2 as u32,
        },
        Kind::Renameat => T::Renameat {
            olddirfid: fid,
            oldname: name,
            newdirfid: fid2,
            newname: name2,
        },
        Kind::Unlinkat => T::Unlinkat {
            dirfid: fid,
            name,
            flags: if n % 2 == 0 { 0 } else { 0x200 },
        },
        Kind::Auth => T::Auth {
            afid: fid,
            uname: name,
            aname: name2,
            n_uname: Uid(n as u32),
        },
        Kind::Attach => T::Attach {
            fid,
            afid: Fid::NONE,
            uname: name,
            aname: if n % 2 == 0 { b"" } else { name2 },
            n_uname: Uid(0),
        },
        Kind::Flush => T::Flush {
            oldtag: Tag(n as u16),
        },
        Kind::Walk => T::Walk {
            fid,
            newfid: fid2,
            names: Names::new(&names[..n as usize % names.len()]),
        },
        Kind::Open => T::Open { fid, mode: n as u8 },
        Kind::Create => T::Create {
            fid,
            name,
            perm: n as u32,
            mode: n2 as u8,
            extension: Extension(name2),
        },
        Kind::Read => T::Read {
            fid,
            offset: n,
            count: n2 as u32,
        },
        Kind::Write => T::Write {
            fid,
            offset: n % (1 << 20),
            data: Data(&parts.data),
        },
        Kind::Clunk => T::Clunk { fid },
        Kind::Remove => T::Remove { fid },
        Kind::Stat => T::Stat { fid },
        Kind::Wstat => T::Wstat {
            fid,
            stat: Stat {
                mode: n as u32,
                mtime: n2 as u32,
                length: n3,
                name: if n4 % 2 == 0 { b"" } else { name },
                ..Stat::UNTOUCHED
            },
        },
    })
}

proptest! {
    #[test]
    fn any_sequence_of_requests_is_answered(
        dialect in prop::sample::select(&Dialect::ALL[..]),
        sequence in prop::collection::vec(parts(), 0..60),
    ) {
        let net = Net::on(&server(Options::default()), dialect);
        for parts in &sequence {
            let names: Vec<&[u8]> = parts.names.iter().map(|name| &name[..]).collect();
            let Some(request) = request(parts, &names) else { continue };
            if request.kind().is_in(dialect) {
                let mut message = Vec::new();
                request.encode(dialect, Tag(1), &mut message);
                // Waiting for a lock would never end here.
                let (answer, reply) = net
                    .try_exchange(&Call::detached(), &message)
                    .expect("nothing ends the connection");
                prop_assert_eq!(answer, ServeOutcome::Done);
                prop_assert!(reply::check(dialect, &message, &reply).is_ok());
            }
        }
    }

    #[test]
    fn random_bytes_are_refused_or_answered(
        dialect in prop::sample::select(&Dialect::ALL[..]),
        frames in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..60)),
            0..60,
        ),
        raw in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let net = Net::on(&server(Options::default()), dialect);
        for (number, fields) in frames {
            // A Tversion would change the dialect against which replies are checked.
            if number == Kind::Version.request() {
                continue;
            }
            let mut message = (fields.len() as u32 + 7).to_le_bytes().to_vec();
            message.extend([number, 1, 0]);
            message.extend(fields);
            net.session.role(&message).expect("a header is there");
            let (answer, reply) = net
                .try_exchange(&Call::detached(), &message)
                .expect("it is framed");
            prop_assert_eq!(answer, ServeOutcome::Done);
            prop_assert!(reply::check(dialect, &message, &reply).is_ok());
        }
        let _ = net.session.frame(&raw);
        let _ = net.session.role(&raw);
        let _ = net.try_exchange(&Call::detached(), &raw);
    }

    #[test]
    fn a_message_bent_in_one_place_is_refused_or_answered(
        dialect in prop::sample::select(&Dialect::ALL[..]),
        parts in parts(),
        at: prop::sample::Index,
        to: u8,
    ) {
        let net = Net::on(&server(Options::default()), dialect);
        let names: Vec<&[u8]> = parts.names.iter().map(|name| &name[..]).collect();
        if let Some(request) = request(&parts, &names) {
            let mut message = Vec::new();
            request.encode(dialect, Tag(1), &mut message);
            let at = at.index(message.len());
            message[at] = to;
            let _ = net.session.frame(&message);
            let _ = net.session.role(&message);
            let _ = net.try_exchange(&Call::detached(), &message);
        }
        // The tree is still available to others.
        let mut clunk = Vec::new();
        T::Clunk { fid: ROOT }.encode(dialect, Tag(2), &mut clunk);
        prop_assert!(net.try_exchange(&Call::detached(), &clunk).is_ok());
    }
}
