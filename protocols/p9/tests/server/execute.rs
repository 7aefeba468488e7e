//! Programs with execute but no read permission: kernels open them for reading.

use std::sync::Arc;

use p9::{Dialect, Fid, Tag, Tmessage as T};
use vfs::peer::Owner;
use vfs::{Call, Caller, Errno, Groups, LocalUsers, Origin, Patience, Peer};

use crate::linux::{O_RDWR, make_file, setattr};
use crate::net::{Net, ROOT, checked, errno};

const PROGRAM: Fid = Fid(1);
const USER: Fid = Fid(2);
const OPENED: Fid = Fid(3);
/// `P9_SETATTR_MODE`.
const MODE: u32 = 1;

fn open(flags: u32) -> T<'static> {
    T::Lopen { fid: OPENED, flags }
}

/// Returns a connection with a program of root's as one fid, and an ordinary user's root as
/// another.
fn scene() -> Net {
    let net = Net::attached(Dialect::Linux);
    make_file(&net, "program", b"#!/bin/true");
    net.walk(ROOT, PROGRAM, "program");
    net.attach(USER, 1000);
    net
}

#[test]
fn a_program_that_may_be_executed_and_not_read_is_opened_to_read() {
    let net = scene();
    for (mode, may_execute) in [(0o711, true), (0o744, true), (0o700, false), (0o710, false)] {
        net.ok(&setattr(PROGRAM, MODE, mode, 0));
        net.walk(USER, OPENED, "program");
        assert_eq!(net.err(&open(O_RDWR)), Errno::EACCES, "{mode:o}");
        match may_execute {
            true => {
                net.ok(&open(0));
                assert_eq!(net.read(OPENED, 0, 100), b"#!/bin/true", "{mode:o}");
            }
            false => assert_eq!(net.err(&open(0)), Errno::EACCES, "{mode:o}"),
        }
        net.clunk(OPENED);
    }
}

/// The user could not read the program without the server either.
#[test]
fn a_program_of_a_local_user_reads_no_file_that_it_may_only_execute() {
    let net = scene();
    net.ok(&setattr(PROGRAM, MODE, 0o711, 0));
    net.walk(USER, OPENED, "program");
    let owner = Owner {
        uid: 1000,
        gid: None,
        groups: None,
    };
    let origin = Origin::Local { addr: None, owner };
    let [local, trusted] = [LocalUsers::default(), LocalUsers::All].map(|trust| {
        let peer = Peer::new(origin.clone(), &trust, 0);
        peer.set_owner(Caller {
            uid: 1000,
            gid: 1000,
            groups: Groups::Known([].into()),
        });
        let mut message = Vec::new();
        open(0).encode(net.dialect, Tag(1), &mut message);
        let call = Call::detached().with_peer(Arc::new(peer));
        let (_, reply) = net.serve(&call, Patience::Full, &message);
        errno(&checked(net.dialect, &message, reply))
    });
    assert_eq!((local, trusted), (Some(Errno::EACCES), None));
}
