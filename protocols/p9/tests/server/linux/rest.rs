//! Lines 14, 15, 18 to 20: sizes, flushes, extended attributes, ends and errors.

use std::sync::Arc;

use p9::server::{ExportList, NumericUsers, Server};
use vfs::{Export, Op, acl};
use vfs_testkit::script::{Answer, Script};

use super::*;

#[test]
fn linux_14_no_reply_is_longer_than_asked_for_or_agreed_on() {
    let small = Net::new(&server(Options::default()), Dialect::Linux, 4096);
    small.attach(ROOT, 0);
    create(&small, ROOT, Fid(1), "f", O_RDWR);
    for chunk in 0..4 {
        small.write(Fid(1), chunk * 4000, &[chunk as u8; 4000]);
    }
    assert_eq!(small.read(Fid(1), 0, u32::MAX).len(), 4096 - 11);
    assert_eq!(small.read(Fid(1), 0, 4096 - 24).len(), 4096 - 24);
    assert_eq!(small.read(Fid(1), 0, 7).len(), 7);
    small.walk(ROOT, Fid(2), "");
    open(&small, Fid(2), O_RDONLY);
    for n in 0..100 {
        make_file(&small, &format!("{n:0200}"), b"");
    }
    assert!(readdir(&small, Fid(2), 0, u32::MAX).len() <= 20);
    // A link whose target fits in no reply: symlink(2) takes up to 4095 bytes.
    let large = Net::on(&server(Options::default()), Dialect::Linux);
    let target = [b'x'; 4095];
    large.ok(&T::Symlink {
        fid: ROOT,
        name: b"s",
        target: &target,
        gid: 0,
    });
    let mut large = large;
    let version = T::Version {
        msize: 4096,
        version: b"9P2000.L",
    };
    large.send(Tag::NONE, &version);
    large.msize = 4096;
    large.attach(ROOT, 0);
    large.walk(ROOT, Fid(1), "s");
    assert_eq!(large.err(&T::Readlink { fid: Fid(1) }), Errno::EMSGSIZE);
    // A message longer than msize is rejected by its size.
    assert!(large.session.frame(&4097u32.to_le_bytes()).is_err());
    assert_eq!(large.session.frame(&4096u32.to_le_bytes()), Ok(Some(4096)));
}

#[test]
fn linux_15_a_flush_is_told_apart_and_answered() {
    let net = linux();
    let mut bytes = Vec::new();
    T::Flush { oldtag: Tag(5) }.encode(Dialect::Linux, Tag(6), &mut bytes);
    let role = net.session.role(&bytes);
    assert_eq!(role, Ok(Role::Cancel { id: 6, target: 5 }));
    assert_eq!(net.rpc(&T::Flush { oldtag: Tag(5) }), Rmessage::Flush {});
    bytes.clear();
    T::Flush { oldtag: Tag(6) }.encode(Dialect::Linux, Tag(6), &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Request { id: 6 }));
    bytes.clear();
    let version = T::Version {
        msize: 4096,
        version: b"9P2000.L",
    };
    version.encode(Dialect::Linux, Tag::NONE, &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Reset { id: 0xffff }));
    bytes.clear();
    T::Clunk { fid: ROOT }.encode(Dialect::Linux, Tag(7), &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Request { id: 7 }));
}

#[test]
fn linux_18_extended_attributes_are_fids_and_set_at_clunk() {
    let net = linux();
    make_file(&net, "f", b"");
    net.walk(ROOT, Fid(1), "f");
    let create = |fid, name, size, flags| {
        net.walk(Fid(1), fid, "");
        T::Xattrcreate {
            fid,
            name,
            size,
            flags,
        }
    };
    let set = |name: &'static [u8], value: &[u8], flags| {
        net.ok(&create(Fid(2), name, value.len() as u64, flags));
        if !value.is_empty() {
            net.write(Fid(2), 0, value);
        }
        errno(&net.rpc(&T::Clunk { fid: Fid(2) }))
    };
    let get = |name: &[u8]| -> Result<&[u8], Errno> {
        let (fid, newfid) = (Fid(1), Fid(3));
        match net.rpc(&T::Xattrwalk { fid, newfid, name }) {
            Rmessage::Xattrwalk { size } => {
                let value = net.read(newfid, 0, 65536);
                assert_eq!(value.len() as u64, size);
                net.clunk(newfid);
                Ok(value)
            }
            other => Err(errno(&other).expect("an error")),
        }
    };
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    assert_eq!(set(b"user.a", b"value", 0), None);
    assert_eq!(set(b"user.b", b"", 0), None);
    assert_eq!(get(b"user.a"), Ok(&b"value"[..]));
    assert_eq!(get(b"user.b"), Ok(&b""[..]));
    assert_eq!(get(b"user.c"), Err(Errno::ENODATA));
    let mut names: Vec<&[u8]> = get(b"").expect("a list").split(|&b| b == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"user.a", b"user.b"]);
    // Errors of setting are returned by the clunk, and the fid is released nevertheless.
    assert_eq!(set(b"user.a", b"x", CREATE), Some(Errno::EEXIST));
    assert_eq!(set(b"user.c", b"x", REPLACE), Some(Errno::ENODATA));
    assert_eq!(net.err(&T::Clunk { fid: Fid(2) }), Errno::EBADF);
    assert_eq!(get(b"user.a"), Ok(&b"value"[..]));
    // Removal.
    assert_eq!(set(b"user.a", b"", REPLACE), None);
    assert_eq!(get(b"user.a"), Err(Errno::ENODATA));
    assert_eq!(set(b"user.a", b"", REPLACE), Some(Errno::ENODATA));
    // In pieces; too much, too little; out of bounds.
    net.ok(&create(Fid(4), b"user.d", 6, 0));
    net.write(Fid(4), 0, b"abc");
    net.write(Fid(4), 3, b"def");
    let beyond = T::Write {
        fid: Fid(4),
        offset: 6,
        data: p9::Data(b"g"),
    };
    assert_eq!(net.err(&beyond), Errno::ENOSPC);
    net.clunk(Fid(4));
    assert_eq!(get(b"user.d"), Ok(&b"abcdef"[..]));
    net.ok(&create(Fid(4), b"user.d", 6, 0));
    net.write(Fid(4), 0, b"abc");
    assert_eq!(net.err(&T::Clunk { fid: Fid(4) }), Errno::EINVAL);
    assert_eq!(net.err(&create(Fid(5), b"user.e", 65537, 0)), Errno::E2BIG);
    assert_eq!(net.err(&create(Fid(6), b"user.e", 1, 8)), Errno::EINVAL);
    assert_eq!(net.err(&create(Fid(7), b"", 1, 0)), Errno::EINVAL);
    // Such fids cannot be used as files otherwise.
    net.ok(&T::Xattrwalk {
        fid: Fid(1),
        newfid: Fid(8),
        name: b"user.d",
    });
    let clone = T::Walk {
        fid: Fid(8),
        newfid: FREE,
        names: Names::new(&[]),
    };
    assert_eq!(net.err(&clone), Errno::EINVAL);
    let open = T::Lopen {
        fid: Fid(8),
        flags: 0,
    };
    assert_eq!(net.err(&open), Errno::EINVAL);
    assert_eq!(net.read(Fid(8), 4, 100), b"ef");
    assert_eq!(net.read(Fid(8), u64::MAX, 100), b"");
}

#[test]
fn linux_18_an_acl_of_no_bytes_is_taken_away() {
    let script = Script::new();
    let export = Arc::new(Export::new("", script.clone()));
    let server = Server::new(
        Arc::new(ExportList(vec![export])),
        Arc::new(NumericUsers),
        Options::default(),
    );
    let net = Net::on(&server, Dialect::Linux);
    for name in [acl::ACCESS, acl::DEFAULT] {
        // With an ACL to remove, and without.
        for answer in [None, Some(Errno::ENODATA)] {
            script.forget(Op::RemoveXattr).take_calls();
            if let Some(errno) = answer {
                script.next(Op::RemoveXattr, Answer::Fail(errno));
            }
            net.walk(ROOT, Fid(1), "");
            net.ok(&T::Xattrcreate {
                fid: Fid(1),
                name,
                size: 0,
                flags: 0,
            });
            net.clunk(Fid(1));
            assert_eq!(script.ops(), [Op::RemoveXattr]);
        }
    }
}

#[test]
fn linux_18_values_that_fids_hold_are_bounded_together() {
    let options = Options {
        max_xattr_bytes: 100,
        ..Options::default()
    };
    let net = Net::on(&server(options), Dialect::Linux);
    net.walk(ROOT, Fid(1), "");
    net.walk(ROOT, Fid(2), "");
    let create = |fid, size| T::Xattrcreate {
        fid,
        name: b"user.a",
        size,
        flags: 0,
    };
    net.ok(&create(Fid(1), 60));
    assert_eq!(net.err(&create(Fid(2), 60)), Errno::ENOBUFS);
    net.rpc(&T::Clunk { fid: Fid(1) });
    net.ok(&create(Fid(2), 60));
}

#[test]
fn linux_19_a_fid_is_gone_after_a_failed_clunk_or_remove() {
    let net = linux();
    mkdir(&net, ROOT, "d");
    net.walk(ROOT, Fid(1), "d");
    mkdir(&net, Fid(1), "e");
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::ENOTEMPTY);
    assert_eq!(net.err(&T::Clunk { fid: Fid(1) }), Errno::EBADF);
    net.walk(ROOT, Fid(1), "");
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::EBUSY);
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::EBADF);
}

#[test]
fn linux_20_errors_are_errnos_reads_end_with_nothing_and_fsync_has_a_word() {
    let net = linux();
    create(&net, ROOT, Fid(1), "f", O_RDWR | O_APPEND);
    // Linux sends the offset where it believes the end to be.
    net.write(Fid(1), 0, b"one");
    net.write(Fid(1), 3, b"two");
    assert_eq!(net.read(Fid(1), 0, 100), b"onetwo");
    assert_eq!(net.read(Fid(1), 6, 100), b"");
    assert_eq!(net.read(Fid(1), 0, 0), b"");
    assert_eq!(net.write(Fid(1), 0, b""), 0);
    for datasync in [0, 1] {
        net.ok(&T::Fsync {
            fid: Fid(1),
            datasync: Datasync(datasync),
        });
    }
    let old = net.exchange(&[11, 0, 0, 0, 50, 9, 0, 1, 0, 0, 0]);
    assert_eq!(old, Rmessage::Fsync {});
    let far = T::Read {
        fid: Fid(1),
        offset: 1 << 63,
        count: 1,
    };
    assert_eq!(net.err(&far), Errno::EINVAL);
    // A fid that is not open for it.
    net.walk(ROOT, Fid(2), "f");
    let read = T::Read {
        fid: Fid(2),
        offset: 0,
        count: 1,
    };
    assert_eq!(net.err(&read), Errno::EBADF);
    open(&net, Fid(2), O_WRONLY);
    assert_eq!(net.err(&read), Errno::EBADF);
    net.walk(ROOT, Fid(3), "f");
    open(&net, Fid(3), O_RDONLY);
    let write = T::Write {
        fid: Fid(3),
        offset: 0,
        data: p9::Data(b"x"),
    };
    assert_eq!(net.err(&write), Errno::EBADF);
    assert_eq!(
        net.err(&T::Lopen {
            fid: Fid(3),
            flags: 0
        }),
        Errno::EINVAL
    );
}
