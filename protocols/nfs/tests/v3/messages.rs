//! Message round trips: golden bytes, and the rejection of every truncation.

use std::fmt::Debug;

use nfs::v3::*;
use wire::{Xdr, XdrReader};

/// Returns the encoding of a value, after checking that it decodes to the same value.
#[track_caller]
fn round<T: Xdr<'static> + Debug + PartialEq>(value: T) -> &'static [u8] {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    let bytes: &'static [u8] = bytes.leak();
    let mut reader = XdrReader::new(bytes);
    assert_eq!(T::get(&mut reader), Ok(value));
    assert_eq!(reader.end(), Ok(()));
    for len in 0..bytes.len() {
        let cut = T::get(&mut XdrReader::new(&bytes[..len]));
        assert!(cut.is_err(), "{len} of {} bytes: {cut:?}", bytes.len());
    }
    bytes
}

const ATTRIBUTES: Attributes = Attributes {
    kind: Kind::File,
    mode: 0o644,
    nlink: 1,
    uid: 1000,
    gid: 100,
    size: 5,
    used: 4096,
    rdev: SpecData { major: 0, minor: 0 },
    fsid: 0x0102,
    fileid: 0x0a0b_0c0d_0e0f,
    atime: Time { sec: 1, nsec: 2 },
    mtime: Time { sec: 3, nsec: 4 },
    ctime: Time { sec: 5, nsec: 6 },
};

const WCC: Wcc = Wcc {
    before: Some(PreAttributes {
        size: 1,
        mtime: ATTRIBUTES.mtime,
        ctime: ATTRIBUTES.ctime,
    }),
    after: Some(ATTRIBUTES),
};

fn handle() -> Handle {
    Handle::new(b"\x01abcde").expect("short")
}

fn set() -> SetAttributes {
    SetAttributes {
        mode: Some(0o600),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: SetTime::Now,
        mtime: SetTime::At(ATTRIBUTES.mtime),
    }
}

fn place() -> NameArgs<'static> {
    NameArgs {
        dir: handle(),
        name: b"name!",
    }
}

#[test]
fn a_getattr_is_these_bytes() {
    assert_eq!(round(handle()), b"\0\0\0\x06\x01abcde\0\0");
    let reply = round(Outcome::<Attributes>::Done(ATTRIBUTES));
    let mut want = Vec::new();
    for word in [
        0,
        1,
        0o644,
        1,
        1000,
        100,
        0,
        5,
        0,
        4096,
        0,
        0,
        0,
        0x0102,
        0x0a0b,
        0x0c0d_0e0f,
        1,
        2,
        3,
        4,
        5,
        6u32,
    ] {
        want.extend(word.to_be_bytes());
    }
    assert_eq!(reply, want);
    let failed = Outcome::<Attributes>::Failed(Status::Stale, ());
    assert_eq!(round(failed), [0, 0, 0, 70]);
}

#[test]
fn a_write_is_these_bytes() {
    let bytes = round(WriteArgs {
        file: handle(),
        offset: 0x0102_0304_0506,
        count: 5,
        stable: Stable::FileSync,
        data: b"hello",
    });
    let want = b"\0\0\0\x06\x01abcde\0\0\0\0\x01\x02\x03\x04\x05\x06\0\0\0\x05\0\0\0\x02\0\0\0\x05hello\0\0\0";
    assert_eq!(bytes, want);
}

#[test]
fn what_is_asked_goes_there_and_back() {
    round(SetAttrArgs {
        object: handle(),
        attributes: set(),
        guard: Some(ATTRIBUTES.ctime),
    });
    round(place());
    round(AccessArgs {
        object: handle(),
        access: 0x3f,
    });
    round(ReadArgs {
        file: handle(),
        offset: 1,
        count: 2,
    });
    for how in [
        CreateHow::Unchecked(set()),
        CreateHow::Guarded(set()),
        CreateHow::Exclusive([7; 8]),
    ] {
        round(CreateArgs {
            place: place(),
            how,
        });
    }
    round(MkDirArgs {
        place: place(),
        attributes: set(),
    });
    round(SymlinkArgs {
        place: place(),
        attributes: set(),
        target: b"there",
    });
    let device = DeviceData {
        attributes: set(),
        device: SpecData { major: 8, minor: 1 },
    };
    for what in [
        MkNodData::File,
        MkNodData::BlockDevice(device),
        MkNodData::CharDevice(device),
        MkNodData::Fifo(set()),
        MkNodData::Socket(set()),
    ] {
        round(MkNodArgs {
            place: place(),
            what,
        });
    }
    round(RenameArgs {
        from: place(),
        to: place(),
    });
    round(LinkArgs {
        object: handle(),
        place: place(),
    });
    round(ReadDirArgs {
        dir: handle(),
        cookie: 1,
        verifier: [2; 8],
        count: 3,
    });
    round(ReadDirPlusArgs {
        dir: handle(),
        cookie: 1,
        verifier: [2; 8],
        dir_count: 3,
        max_count: 4,
    });
    round(CommitArgs {
        file: handle(),
        offset: 1,
        count: 2,
    });
}

#[test]
fn what_is_answered_goes_there_and_back() {
    round(WCC);
    round(LookupOk {
        object: handle(),
        attributes: Some(ATTRIBUTES),
        dir: None,
    });
    round(AccessOk {
        attributes: Some(ATTRIBUTES),
        access: 1,
    });
    round(ReadLinkOk {
        attributes: None,
        target: b"there",
    });
    round(ReadOk {
        attributes: Some(ATTRIBUTES),
        count: 5,
        eof: true,
        data: b"hello",
    });
    round(WriteOk {
        file: WCC,
        count: 5,
        committed: Stable::DataSync,
        verifier: [9; 8],
    });
    round(CreateOk {
        object: Some(handle()),
        attributes: Some(ATTRIBUTES),
        dir: WCC,
    });
    round(RenameWcc { from: WCC, to: WCC });
    round(LinkWcc {
        object: Some(ATTRIBUTES),
        dir: WCC,
    });
    let entry = Entry {
        fileid: 1,
        name: b"name!",
        cookie: 2,
    };
    round(ReadDirOk {
        attributes: Some(ATTRIBUTES),
        verifier: [0; 8],
        entries: List(vec![entry, entry]),
        eof: true,
    });
    let plus = EntryPlus {
        entry,
        attributes: Some(ATTRIBUTES),
        object: Some(handle()),
    };
    round(ReadDirPlusOk {
        attributes: None,
        verifier: [0; 8],
        entries: List(vec![plus]),
        eof: false,
    });
    round(FsStatOk {
        attributes: Some(ATTRIBUTES),
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_sec: 7,
    });
    round(FsInfoOk {
        attributes: Some(ATTRIBUTES),
        read_max: 1,
        read_preferred: 2,
        read_multiple: 3,
        write_max: 4,
        write_preferred: 5,
        write_multiple: 6,
        dir_preferred: 7,
        max_file_size: 8,
        time_delta: ATTRIBUTES.atime,
        properties: 9,
    });
    round(PathConfOk {
        attributes: Some(ATTRIBUTES),
        link_max: 1,
        name_max: 2,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: true,
        case_preserving: false,
    });
    round(CommitOk {
        file: WCC,
        verifier: [9; 8],
    });
}

#[test]
fn what_belongs_to_v3_goes_there_and_back() {
    use nfs::{mount, nlm, nsm, portmap, rquota};
    let list = AclList {
        count: 1,
        entries: vec![AclItem {
            tag: 1,
            id: 1000,
            permissions: 6,
        }],
    };
    round(GetAclArgs {
        object: handle(),
        mask: acl_mask::ALL,
    });
    round(SetAclArgs {
        object: handle(),
        mask: acl_mask::ACCESS,
        access: list.clone(),
        default: AclList::default(),
    });
    let told = round(Outcome::<_, Option<Attributes>>::Done(GetAclOk {
        attributes: None,
        mask: acl_mask::ACCESS,
        access: list,
        default: AclList::default(),
    }));
    let want = b"\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x01\
        \0\0\0\x01\0\0\x03\xe8\0\0\0\x06\0\0\0\0\0\0\0\0";
    assert_eq!(told, want);
    round(mount::Mounted::Done(mount::MountOk {
        root: handle(),
        flavors: vec![1, 0],
    }));
    round(mount::Mounted::Failed(mount::Status::Acces));
    round(rquota::UserArgs {
        path: b"/",
        user: 1000,
    });
    round(rquota::IdArgs {
        path: b"/",
        kind: 1,
        id: 1000,
    });
    let reply = round(rquota::Found::Quota(rquota::Quota {
        block_size: 1024,
        active: true,
        block_limit: 100,
        block_soft_limit: 0,
        blocks: 4,
        file_limit: 50,
        file_soft_limit: 0,
        files: 3,
        block_time_left: 0,
        file_time_left: 0,
    }));
    let want = b"\0\0\0\x01\0\0\x04\0\0\0\0\x01\0\0\0\x64\0\0\0\0\0\0\0\x04\
        \0\0\0\x32\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0";
    assert_eq!(reply, want);
    round(rquota::Found::None(rquota::Status::NoQuota));
    round(List(vec![mount::Export {
        path: b"/",
        groups: List(vec![&b"all"[..]]),
    }]));
    round(List(vec![mount::Mount {
        host: b"guest",
        path: b"/",
    }]));
    let lock = nlm::Lock {
        caller: b"guest",
        file: b"handle",
        owner: b"owner",
        process: -2,
        offset: 1,
        len: 2,
    };
    round(nlm::LockArgs {
        cookie: b"c",
        block: true,
        exclusive: false,
        lock,
        reclaim: true,
        state: 3,
    });
    round(nlm::CancelArgs {
        cookie: b"c",
        block: true,
        exclusive: false,
        lock,
    });
    round(nlm::UnlockArgs { cookie: b"c", lock });
    round(nlm::TestArgs {
        cookie: b"c",
        exclusive: true,
        lock,
    });
    let holder = nlm::Holder {
        exclusive: true,
        process: 1,
        owner: b"o",
        offset: 2,
        len: 3,
    };
    for tested in [
        nlm::Tested::Denied(holder),
        nlm::Tested::Other(nlm::Status::Granted),
    ] {
        round(nlm::TestResult {
            cookie: b"c",
            tested,
        });
    }
    round(nlm::ShareArgs {
        cookie: b"c",
        caller: b"guest",
        file: b"handle",
        owner: b"o",
        deny: 1,
        access: 2,
        reclaim: false,
    });
    round(nsm::StatChange {
        name: b"guest",
        state: 5,
    });
    round(portmap::Mapping {
        program: 1,
        version: 2,
        protocol: 6,
        port: 4,
    });
    round(portmap::Binding {
        program: 1,
        version: 2,
        netid: b"tcp",
        address: b"127.0.0.1.0.111",
        owner: b"me",
    });
}
