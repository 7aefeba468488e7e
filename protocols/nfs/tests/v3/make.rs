//! CREATE, MKDIR, MKNOD, and retransmissions.

use nfs::v3::*;

use crate::net::{NFS, Net, nothing, whole};

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..nothing()
    }
}

#[test]
fn create_makes_and_what_is_there_is_as_good_unless_it_is_guarded() {
    let net = Net::new();
    let root = net.root();
    let made = net.create(root, b"f", CreateHow::Unchecked(mode(0o640)));
    let made = made.expect("made");
    let file = made.object.expect("a handle");
    assert_eq!(made.attributes.expect("attributes").mode, 0o640);
    assert!(made.dir.before.is_some() && made.dir.after == Some(net.getattr(root)));
    net.write(file, 0, b"text", Stable::Unstable)
        .expect("written");
    let again = net.create(root, b"f", CreateHow::Unchecked(mode(0o600)));
    let again = again.expect("taken");
    assert_eq!(again.object, Some(file));
    let attributes = again.attributes.expect("attributes");
    assert_eq!((attributes.mode, attributes.size), (0o640, 4));
    let cut = SetAttributes {
        size: Some(0),
        ..nothing()
    };
    let cut = net
        .create(root, b"f", CreateHow::Unchecked(cut))
        .expect("cut");
    assert_eq!(cut.attributes.expect("attributes").size, 0);
    let guarded = net.create(root, b"f", CreateHow::Guarded(mode(0o600)));
    assert_eq!(guarded.expect_err("it is there").0, Status::Exist);
    let dot = net.create(root, b".", CreateHow::Guarded(mode(0o600)));
    assert_eq!(dot.expect_err("it is there").0, Status::Exist);
}

#[test]
fn an_exclusive_create_is_known_again_by_its_verifier() {
    let net = Net::new();
    let root = net.root();
    // The sign bits, which the times cannot store, are set as well.
    let verifier = [0xff, 2, 3, 4, 0x85, 6, 7, 8];
    let made = net.create(root, b"f", CreateHow::Exclusive(verifier));
    let file = made.expect("made").object;
    let again = net.create(root, b"f", CreateHow::Exclusive(verifier));
    assert_eq!(again.expect("the same").object, file);
    let other = net.create(root, b"f", CreateHow::Exclusive([9; 8]));
    assert_eq!(other.expect_err("another's").0, Status::Exist);
}

#[test]
fn who_made_a_file_may_write_it_whatever_its_mode() {
    let root = Net::new();
    let everybody = root.setattr(root.root(), mode(0o777), None);
    everybody.expect("set");
    let net = root.of_user(1000);
    let file = net.file(b"f", 0o444);
    net.write(file, 0, b"once", Stable::Unstable)
        .expect("its own");
    net.host.later(60);
    net.write(file, 4, b"more", Stable::Unstable)
        .expect("its own");
    let size = SetAttributes {
        size: Some(6),
        ..nothing()
    };
    net.setattr(file, size, None).expect("its own");
    let other = root.of_user(1001);
    let failed = other.write(file, 0, b"x", Stable::Unstable);
    assert_eq!(failed.expect_err("another's").0, Status::Acces);
    assert_eq!(other.read(file, 0, 100).expect("readable").data, b"oncemo");
}

#[test]
fn what_may_be_executed_may_be_read_for_that() {
    let net = Net::new();
    let file = net.file(b"program", 0o711);
    net.write(file, 0, b"code", Stable::FileSync)
        .expect("written");
    let other = net.of_user(1000);
    assert_eq!(other.read(file, 0, 9).expect("executable").data, b"code");
}

#[test]
fn nodes_of_every_kind_are_made() {
    let net = Net::new();
    let device = DeviceData {
        attributes: mode(0o600),
        device: SpecData { major: 1, minor: 3 },
    };
    for (name, what, kind) in [
        (&b"c"[..], MkNodData::CharDevice(device), Kind::CharDevice),
        (b"b", MkNodData::BlockDevice(device), Kind::BlockDevice),
        (b"p", MkNodData::Fifo(mode(0o640)), Kind::Fifo),
        (b"s", MkNodData::Socket(mode(0o640)), Kind::Socket),
    ] {
        let place = NameArgs {
            dir: net.root(),
            name,
        };
        let made: Result<CreateOk, (Status, Wcc)> =
            net.v3(Procedure::MkNod, &MkNodArgs { place, what });
        let made = made.expect("made").attributes.expect("attributes");
        assert_eq!(made.kind, kind);
    }
    let place = NameArgs {
        dir: net.root(),
        name: b"f",
    };
    let what = MkNodData::File;
    let made: Result<CreateOk, (Status, Wcc)> =
        net.v3(Procedure::MkNod, &MkNodArgs { place, what });
    assert_eq!(made.expect_err("CREATE's").0, Status::Badtype);
}

#[test]
fn a_call_that_comes_again_is_answered_as_before() {
    let net = Net::new();
    let place = NameArgs {
        dir: net.root(),
        name: b"d",
    };
    let args = MkDirArgs {
        place,
        attributes: mode(0o755),
    };
    let call = net.bytes((NFS, 3, Procedure::MkDir as u32), &args);
    let first = net.exchange(&call).expect("results");
    let other = Net::on(&net.host);
    assert_eq!(other.exchange(&call), Ok(first), "by another connection");
    let made: Outcome<CreateOk, Wcc> = whole(
        other
            .call((NFS, 3, Procedure::MkDir as u32), &args)
            .expect("results"),
    );
    let Outcome::Failed(status, _) = made else {
        panic!("{made:?}")
    };
    assert_eq!(status, Status::Exist, "another call");
}
