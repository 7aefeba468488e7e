//! The bytes of every message in each of its dialects, written by hand from the manuals.

use super::super::*;
use crate::QidType;
use crate::stat::UnixStat;

const OLD: &[Dialect] = &[Dialect::Plan9, Dialect::Unix];
const UNIX: &[Dialect] = &[Dialect::Unix];
const PLAN9: &[Dialect] = &[Dialect::Plan9];
const LINUX: &[Dialect] = &[Dialect::Linux];
const NUMERIC: &[Dialect] = &[Dialect::Unix, Dialect::Linux];
const ALL: &[Dialect] = &Dialect::ALL;

pub(super) const TAG: Tag = Tag(0x1234);
pub(super) const FID: Fid = Fid(0x0a0b_0c0d);
const FID2: Fid = Fid(0x1a1b_1c1d);
const QID: Qid = Qid {
    kind: QidType::DIR,
    version: 0x0102_0304,
    path: 0x1112_1314_1516_1718,
};

/// The fields of [`FID`], [`FID2`] and [`QID`] on the wire.
const F: &str = "0d0c0b0a";
const F2: &str = "1d1c1b1a";
const Q: &str = "80 04030201 1817161514131211";

fn stat(unix: UnixStat<'_>) -> Stat<'_> {
    Stat {
        kind: 1,
        dev: 2,
        qid: QID,
        mode: 0x8000_01ed,
        atime: 3,
        mtime: 4,
        length: 5,
        name: b"n",
        uid: b"uu",
        gid: b"g",
        muid: b"m",
        unix,
    }
}

const UNIX_STAT: UnixStat<'_> = UnixStat {
    extension: b"x",
    n_uid: 6,
    n_gid: 7,
    n_muid: 8,
};

const STAT: &str = "0100 02000000 80 04030201 1817161514131211 ed010080 03000000 04000000 \
     0500000000000000 0100 6e 0200 7575 0100 67 0100 6d";
const STAT_MORE: &str = "0100 78 06000000 07000000 08000000";

pub(super) fn requests() -> Vec<(Tmessage<'static>, &'static [Dialect], String)> {
    use Tmessage::*;
    let n = &b"na"[..];
    vec![
        (Statfs { fid: FID }, LINUX, format!("08 3412 {F}")),
        (
            Lopen {
                fid: FID,
                flags: 0o100002,
            },
            LINUX,
            format!("0c 3412 {F} 02800000"),
        ),
        (
            Lcreate {
                fid: FID,
                name: n,
                flags: 0o302,
                mode: 0o644,
                gid: 7,
            },
            LINUX,
            format!("0e 3412 {F} 0200 6e61 c2000000 a4010000 07000000"),
        ),
        (
            Symlink {
                fid: FID,
                name: n,
                target: b"t",
                gid: 7,
            },
            LINUX,
            format!("10 3412 {F} 0200 6e61 0100 74 07000000"),
        ),
        (
            Mknod {
                dfid: FID,
                name: n,
                mode: 0o20600,
                major: 1,
                minor: 3,
                gid: 7,
            },
            LINUX,
            format!("12 3412 {F} 0200 6e61 80210000 01000000 03000000 07000000"),
        ),
        (
            Rename {
                fid: FID,
                dfid: FID2,
                name: n,
            },
            LINUX,
            format!("14 3412 {F} {F2} 0200 6e61"),
        ),
        (Readlink { fid: FID }, LINUX, format!("16 3412 {F}")),
        (
            Getattr {
                fid: FID,
                mask: 0x7ff,
            },
            LINUX,
            format!("18 3412 {F} ff07000000000000"),
        ),
        (
            Setattr {
                fid: FID,
                valid: 9,
                mode: 0o644,
                uid: 1,
                gid: 2,
                size: 3,
                atime_sec: 4,
                atime_nsec: 5,
                mtime_sec: 6,
                mtime_nsec: 7,
            },
            LINUX,
            format!(
                "1a 3412 {F} 09000000 a4010000 01000000 02000000 0300000000000000 \
                 0400000000000000 0500000000000000 0600000000000000 0700000000000000"
            ),
        ),
        (
            Xattrwalk {
                fid: FID,
                newfid: FID2,
                name: n,
            },
            LINUX,
            format!("1e 3412 {F} {F2} 0200 6e61"),
        ),
        (
            Xattrcreate {
                fid: FID,
                name: n,
                size: 9,
                flags: 2,
            },
            LINUX,
            format!("20 3412 {F} 0200 6e61 0900000000000000 02000000"),
        ),
        (
            Readdir {
                fid: FID,
                offset: 5,
                count: 4096,
            },
            LINUX,
            format!("28 3412 {F} 0500000000000000 00100000"),
        ),
        (
            Fsync {
                fid: FID,
                datasync: Datasync(1),
            },
            LINUX,
            format!("32 3412 {F} 01000000"),
        ),
        (
            Lock {
                fid: FID,
                kind: 1,
                flags: 1,
                start: 2,
                length: 3,
                proc_id: 4,
                client_id: n,
            },
            LINUX,
            format!("34 3412 {F} 01 01000000 0200000000000000 0300000000000000 04000000 0200 6e61"),
        ),
        (
            Getlock {
                fid: FID,
                kind: 1,
                start: 2,
                length: 3,
                proc_id: 4,
                client_id: n,
            },
            LINUX,
            format!("36 3412 {F} 01 0200000000000000 0300000000000000 04000000 0200 6e61"),
        ),
        (
            Link {
                dfid: FID,
                fid: FID2,
                name: n,
            },
            LINUX,
            format!("46 3412 {F} {F2} 0200 6e61"),
        ),
        (
            Mkdir {
                dfid: FID,
                name: n,
                mode: 0o755,
                gid: 7,
            },
            LINUX,
            format!("48 3412 {F} 0200 6e61 ed010000 07000000"),
        ),
        (
            Renameat {
                olddirfid: FID,
                oldname: n,
                newdirfid: FID2,
                newname: b"b",
            },
            LINUX,
            format!("4a 3412 {F} 0200 6e61 {F2} 0100 62"),
        ),
        (
            Unlinkat {
                dirfid: FID,
                name: n,
                flags: 0x200,
            },
            LINUX,
            format!("4c 3412 {F} 0200 6e61 00020000"),
        ),
        (
            Version {
                msize: 8192,
                version: b"9P2000",
            },
            ALL,
            "64 3412 00200000 0600 395032303030".into(),
        ),
        (
            Auth {
                afid: FID,
                uname: n,
                aname: b"",
                n_uname: Uid(5),
            },
            NUMERIC,
            format!("66 3412 {F} 0200 6e61 0000 05000000"),
        ),
        (
            Auth {
                afid: FID,
                uname: n,
                aname: b"",
                n_uname: Uid::NONE,
            },
            PLAN9,
            format!("66 3412 {F} 0200 6e61 0000"),
        ),
        (
            Attach {
                fid: FID,
                afid: Fid::NONE,
                uname: n,
                aname: b"/a",
                n_uname: Uid(5),
            },
            NUMERIC,
            format!("68 3412 {F} ffffffff 0200 6e61 0200 2f61 05000000"),
        ),
        (
            Attach {
                fid: FID,
                afid: Fid::NONE,
                uname: n,
                aname: b"/a",
                n_uname: Uid::NONE,
            },
            PLAN9,
            format!("68 3412 {F} ffffffff 0200 6e61 0200 2f61"),
        ),
        (Flush { oldtag: Tag(9) }, ALL, "6c 3412 0900".into()),
        (
            Walk {
                fid: FID,
                newfid: FID2,
                names: Names::new(&[b"a", b"bc"]),
            },
            ALL,
            format!("6e 3412 {F} {F2} 0200 0100 61 0200 6263"),
        ),
        (
            Open {
                fid: FID,
                mode: 0x12,
            },
            OLD,
            format!("70 3412 {F} 12"),
        ),
        (
            Create {
                fid: FID,
                name: n,
                perm: 0o644,
                mode: 1,
                extension: Extension(b""),
            },
            PLAN9,
            format!("72 3412 {F} 0200 6e61 a4010000 01"),
        ),
        (
            Create {
                fid: FID,
                name: n,
                perm: 0o644,
                mode: 1,
                extension: Extension(b"e"),
            },
            UNIX,
            format!("72 3412 {F} 0200 6e61 a4010000 01 0100 65"),
        ),
        (
            Read {
                fid: FID,
                offset: 5,
                count: 4096,
            },
            ALL,
            format!("74 3412 {F} 0500000000000000 00100000"),
        ),
        (
            Write {
                fid: FID,
                offset: 5,
                data: Data(b"xyz"),
            },
            ALL,
            format!("76 3412 {F} 0500000000000000 03000000 78797a"),
        ),
        (Clunk { fid: FID }, ALL, format!("78 3412 {F}")),
        (Remove { fid: FID }, ALL, format!("7a 3412 {F}")),
        (Stat { fid: FID }, OLD, format!("7c 3412 {F}")),
        (
            Wstat {
                fid: FID,
                stat: stat(UnixStat::NONE),
            },
            PLAN9,
            format!("7e 3412 {F} 3600 3400 {STAT}"),
        ),
        (
            Wstat {
                fid: FID,
                stat: stat(UNIX_STAT),
            },
            UNIX,
            format!("7e 3412 {F} 4500 4300 {STAT} {STAT_MORE}"),
        ),
        (Hand { fid: FID }, LINUX, format!("c8 3412 {F}")),
    ]
}

pub(super) fn replies() -> Vec<(Rmessage<'static>, &'static [Dialect], String)> {
    use Rmessage::*;
    vec![
        (Lerror { errno: 2 }, LINUX, "07 3412 02000000".into()),
        (
            Statfs {
                kind: 1,
                bsize: 2,
                blocks: 3,
                bfree: 4,
                bavail: 5,
                files: 6,
                ffree: 7,
                fsid: 8,
                namelen: 255,
            },
            LINUX,
            "09 3412 01000000 02000000 0300000000000000 0400000000000000 0500000000000000 \
             0600000000000000 0700000000000000 0800000000000000 ff000000"
                .into(),
        ),
        (
            Lopen {
                qid: QID,
                iounit: 9,
            },
            LINUX,
            format!("0d 3412 {Q} 09000000"),
        ),
        (
            Lcreate {
                qid: QID,
                iounit: 9,
            },
            LINUX,
            format!("0f 3412 {Q} 09000000"),
        ),
        (Symlink { qid: QID }, LINUX, format!("11 3412 {Q}")),
        (Mknod { qid: QID }, LINUX, format!("13 3412 {Q}")),
        (Rename {}, LINUX, "15 3412".into()),
        (
            Readlink { target: b"to" },
            LINUX,
            "17 3412 0200 746f".into(),
        ),
        (
            Getattr {
                valid: 0x17ff,
                qid: QID,
                mode: 0o100644,
                uid: 1,
                gid: 2,
                nlink: 3,
                rdev: 4,
                size: 5,
                blksize: 6,
                blocks: 7,
                atime_sec: 8,
                atime_nsec: 9,
                mtime_sec: 10,
                mtime_nsec: 11,
                ctime_sec: 12,
                ctime_nsec: 13,
                btime_sec: 14,
                btime_nsec: 15,
                generation: 16,
                data_version: 17,
            },
            LINUX,
            format!(
                "19 3412 ff17000000000000 {Q} a4810000 01000000 02000000 0300000000000000 \
                 0400000000000000 0500000000000000 0600000000000000 0700000000000000 \
                 0800000000000000 0900000000000000 0a00000000000000 0b00000000000000 \
                 0c00000000000000 0d00000000000000 0e00000000000000 0f00000000000000 \
                 1000000000000000 1100000000000000"
            ),
        ),
        (Setattr {}, LINUX, "1b 3412".into()),
        (
            Xattrwalk { size: 9 },
            LINUX,
            "1f 3412 0900000000000000".into(),
        ),
        (Xattrcreate {}, LINUX, "21 3412".into()),
        (
            Readdir { data: Data(b"xyz") },
            LINUX,
            "29 3412 03000000 78797a".into(),
        ),
        (Fsync {}, LINUX, "33 3412".into()),
        (Lock { status: 1 }, LINUX, "35 3412 01".into()),
        (
            Getlock {
                kind: 1,
                start: 2,
                length: 3,
                proc_id: 4,
                client_id: b"na",
            },
            LINUX,
            "37 3412 01 0200000000000000 0300000000000000 04000000 0200 6e61".into(),
        ),
        (Link {}, LINUX, "47 3412".into()),
        (Mkdir { qid: QID }, LINUX, format!("49 3412 {Q}")),
        (Renameat {}, LINUX, "4b 3412".into()),
        (Unlinkat {}, LINUX, "4d 3412".into()),
        (
            Version {
                msize: 8192,
                version: b"9P2000",
            },
            ALL,
            "65 3412 00200000 0600 395032303030".into(),
        ),
        (Auth { aqid: QID }, ALL, format!("67 3412 {Q}")),
        (Attach { qid: QID }, ALL, format!("69 3412 {Q}")),
        (
            Error {
                text: b"no",
                errno: DotuErrno(0),
            },
            PLAN9,
            "6b 3412 0200 6e6f".into(),
        ),
        (
            Error {
                text: b"no",
                errno: DotuErrno(2),
            },
            UNIX,
            "6b 3412 0200 6e6f 02000000".into(),
        ),
        (Flush {}, ALL, "6d 3412".into()),
        (
            Walk {
                qids: Qids::new(&[QID, QID]),
            },
            ALL,
            format!("6f 3412 0200 {Q} {Q}"),
        ),
        (
            Open {
                qid: QID,
                iounit: 9,
            },
            OLD,
            format!("71 3412 {Q} 09000000"),
        ),
        (
            Create {
                qid: QID,
                iounit: 9,
            },
            OLD,
            format!("73 3412 {Q} 09000000"),
        ),
        (
            Read { data: Data(b"xyz") },
            ALL,
            "75 3412 03000000 78797a".into(),
        ),
        (Write { count: 3 }, ALL, "77 3412 03000000".into()),
        (Clunk {}, ALL, "79 3412".into()),
        (Remove {}, ALL, "7b 3412".into()),
        (
            Stat {
                stat: stat(UnixStat::NONE),
            },
            PLAN9,
            format!("7d 3412 3600 3400 {STAT}"),
        ),
        (
            Stat {
                stat: stat(UNIX_STAT),
            },
            UNIX,
            format!("7d 3412 4500 4300 {STAT} {STAT_MORE}"),
        ),
        (Wstat {}, OLD, "7f 3412".into()),
        (Hand {}, LINUX, "c9 3412".into()),
    ]
}
