//! Requests constructed from the input: mostly with small numbers and names that may exist.

use arbitrary::{Result, Unstructured};
use p9::{Data, Datasync, Dialect, Extension, Fid, Kind, Names, Stat, Tag, Tmessage as T, Uid};

/// Constructs an encoded request; occasionally of a kind that the dialect lacks.
pub(super) fn any(dialect: Dialect, input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let kind = match *input.choose(Kind::ALL)? {
        kind if !kind.is_in(dialect) => twin(kind),
        kind => kind,
    };
    // Few tags, so that some are in flight and flushed.
    let tag = Tag(input.int_in_range(0..=5)?);
    let mut names = Vec::new();
    let request = make(kind, input, &mut names)?;
    let mut bytes = Vec::new();
    request.encode(dialect, tag, &mut bytes);
    Ok(bytes)
}

/// Returns the other dialect's equivalent, so that no choice is wasted.
fn twin(kind: Kind) -> Kind {
    match kind {
        Kind::Lopen | Kind::Readlink => Kind::Open,
        Kind::Lcreate | Kind::Mkdir | Kind::Mknod | Kind::Symlink | Kind::Link => Kind::Create,
        Kind::Getattr | Kind::Statfs | Kind::Xattrwalk => Kind::Stat,
        Kind::Setattr | Kind::Rename | Kind::Renameat => Kind::Wstat,
        Kind::Readdir => Kind::Read,
        Kind::Unlinkat => Kind::Remove,
        Kind::Open => Kind::Lopen,
        Kind::Create => Kind::Lcreate,
        Kind::Stat => Kind::Getattr,
        Kind::Wstat => Kind::Setattr,
        Kind::Lerror | Kind::Error => Kind::Walk,
        other => other,
    }
}

fn make<'a: 'n, 'n>(
    kind: Kind,
    input: &mut Unstructured<'a>,
    names: &'n mut Vec<&'a [u8]>,
) -> Result<T<'n>> {
    let fid = fid(input)?;
    Ok(match kind {
        Kind::Lerror | Kind::Error => T::Clunk { fid },
        Kind::Version => T::Version {
            msize: *input.choose(&[8192, 4096, 1 << 30, 256, 255, 0])?,
            version: input.choose(&[
                &b"9P2000.L"[..],
                b"9P2000.u",
                b"9P2000",
                b"9P2000.L.x",
                b"9P",
            ])?,
        },
        Kind::Auth => T::Auth {
            afid: fid,
            uname: b"root",
            aname: b"",
            n_uname: Uid(0),
        },
        Kind::Attach => T::Attach {
            fid,
            afid: *input.choose(&[Fid::NONE, Fid::NONE, Fid::NONE, Fid(1)])?,
            uname: input.choose(&[&b"root"[..], b"1000", b"nobody", b""])?,
            aname: input.choose(&[&b""[..], b"/", b"other", b"a", b"other/a/b", b"../a", b"\0"])?,
            n_uname: *input.choose(&[Uid(0), Uid(1000), Uid::NONE])?,
        },
        Kind::Flush => T::Flush {
            oldtag: Tag(input.int_in_range(0..=6)?),
        },
        Kind::Walk => {
            let newfid = self::fid(input)?;
            for _ in 0..input.int_in_range(0..=4)? {
                names.push(name(input)?);
            }
            T::Walk {
                fid,
                newfid,
                names: Names::new(names),
            }
        }
        Kind::Statfs => T::Statfs { fid },
        Kind::Lopen => T::Lopen {
            fid,
            flags: open_flags(input)?,
        },
        Kind::Lcreate => T::Lcreate {
            fid,
            name: name(input)?,
            flags: open_flags(input)?,
            mode: mode(input)?,
            gid: id(input)?,
        },
        Kind::Symlink => T::Symlink {
            fid,
            name: name(input)?,
            target: name(input)?,
            gid: id(input)?,
        },
        Kind::Mknod => T::Mknod {
            dfid: fid,
            name: name(input)?,
            mode: u32::from(input.int_in_range(0..=15u8)?) << 12 | mode(input)?,
            major: number(input)? as u32,
            minor: number(input)? as u32,
            gid: id(input)?,
        },
        Kind::Rename => T::Rename {
            fid,
            dfid: self::fid(input)?,
            name: name(input)?,
        },
        Kind::Readlink => T::Readlink { fid },
        Kind::Getattr => T::Getattr {
            fid,
            mask: number(input)?,
        },
        Kind::Setattr => T::Setattr {
            fid,
            valid: u32::from(input.arbitrary::<u16>()?),
            mode: mode(input)?,
            uid: id(input)?,
            gid: id(input)?,
            size: number(input)?,
            atime_sec: number(input)?,
            atime_nsec: number(input)?,
            mtime_sec: number(input)?,
            mtime_nsec: number(input)?,
        },
        Kind::Xattrwalk => T::Xattrwalk {
            fid,
            newfid: self::fid(input)?,
            name: attribute(input)?,
        },
        Kind::Xattrcreate => T::Xattrcreate {
            fid,
            name: attribute(input)?,
            size: number(input)?,
            flags: input.int_in_range(0..=3)?,
        },
        Kind::Readdir => T::Readdir {
            fid,
            offset: number(input)?,
            count: number(input)? as u32,
        },
        Kind::Fsync => T::Fsync {
            fid,
            datasync: Datasync(input.int_in_range(0..=1)?),
        },
        Kind::Lock => T::Lock {
            fid,
            kind: input.int_in_range(0..=3)?,
            flags: input.int_in_range(0..=3)?,
            start: number(input)?,
            length: number(input)?,
            proc_id: input.int_in_range(0..=2)?,
            client_id: b"host",
        },
        Kind::Getlock => T::Getlock {
            fid,
            kind: input.int_in_range(0..=3)?,
            start: number(input)?,
            length: number(input)?,
            proc_id: input.int_in_range(0..=2)?,
            client_id: b"host",
        },
        Kind::Link => T::Link {
            dfid: fid,
            fid: self::fid(input)?,
            name: name(input)?,
        },
        Kind::Mkdir => T::Mkdir {
            dfid: fid,
            name: name(input)?,
            mode: mode(input)?,
            gid: id(input)?,
        },
        Kind::Renameat => T::Renameat {
            olddirfid: fid,
            oldname: name(input)?,
            newdirfid: self::fid(input)?,
            newname: name(input)?,
        },
        Kind::Unlinkat => T::Unlinkat {
            dirfid: fid,
            name: name(input)?,
            flags: *input.choose(&[0, 0x200, 1])?,
        },
        Kind::Open => T::Open {
            fid,
            mode: input.arbitrary()?,
        },
        Kind::Create => T::Create {
            fid,
            name: name(input)?,
            // The upper bits are the type of the new file.
            perm: u32::from(input.arbitrary::<u16>()?) << 16 | mode(input)?,
            mode: input.arbitrary()?,
            extension: Extension(input.choose(&[&b""[..], b"a", b"1", b"b 8 1", b"c 1 x"])?),
        },
        Kind::Read => T::Read {
            fid,
            offset: number(input)?,
            count: number(input)? as u32,
        },
        Kind::Write => {
            let offset = number(input)?;
            let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
            T::Write {
                fid,
                offset,
                data: Data(input.bytes(len)?),
            }
        }
        Kind::Clunk => T::Clunk { fid },
        Kind::Remove => T::Remove { fid },
        Kind::Hand => T::Hand { fid },
        Kind::Stat => T::Stat { fid },
        Kind::Wstat => T::Wstat {
            fid,
            stat: Stat {
                mode: *input.choose(&[u32::MAX, 0o644, 0x8000_01ed])?,
                mtime: number(input)? as u32,
                length: *input.choose(&[u64::MAX, 0, 5, 1 << 40, 1 << 63])?,
                name: name(input)?,
                uid: input.choose(&[&b""[..], b"root", b"?"])?,
                ..Stat::UNTOUCHED
            },
        },
    })
}

fn fid(input: &mut Unstructured<'_>) -> Result<Fid> {
    Ok(match input.int_in_range(0..=31u32)? {
        31 => Fid::NONE,
        number => Fid(number % 6),
    })
}

/// Chooses a name that is likely to exist.
fn name<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    Ok(match input.int_in_range(0..=23u8)? {
        0..=3 => b"a",
        4..=7 => b"b",
        8..=11 => b"c",
        12..=15 => b"d",
        16 => b"..",
        17 => b".",
        18 => b"",
        19 => &[b'x'; 256],
        20 => b"a/b",
        21 => b"a\0",
        22 => &[b'y'; 255],
        _ => {
            let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
            input.bytes(len)?
        }
    })
}

fn attribute(input: &mut Unstructured<'_>) -> Result<&'static [u8]> {
    input
        .choose(&[
            &b"user.a"[..],
            b"user.b",
            b"",
            b"security.capability",
            b"trusted.a",
            b"system.posix_acl_access",
            b"a\0",
        ])
        .copied()
}

/// Chooses a number that is likely to be a boundary value.
fn number(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.int_in_range(0..=15u8)? {
        0..=6 => input.int_in_range(0..=40)?,
        7..=9 => 1 << input.int_in_range(0..=63)?,
        10..=12 => (1 << input.int_in_range(0..=63)?) - 1,
        13 => u64::MAX,
        // The offsets of `.` and `..` in directories of 9P2000.L.
        14 => 0x7fff_ffe0_0d07_0000 + input.int_in_range(0..=3)?,
        _ => input.arbitrary()?,
    })
}

fn id(input: &mut Unstructured<'_>) -> Result<u32> {
    input.choose(&[0, 1000, 65534, u32::MAX]).copied()
}

fn mode(input: &mut Unstructured<'_>) -> Result<u32> {
    input.choose(&[0o755, 0o644, 0, 0o7777, u32::MAX]).copied()
}

fn open_flags(input: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match input.int_in_range(0..=5u8)? {
        // Read-write; with O_CREAT; with O_EXCL; with O_TRUNC; with O_APPEND.
        0 => 2,
        1 => 0o102,
        2 => 0o302,
        3 => 0o1002,
        4 => 0o2001,
        _ => input.arbitrary()?,
    })
}
