//! Requests in flight to a lost server that must not be carried out twice: they may have been
//! executed.
//!
//! A request counts as executed, and is answered here, if
//!
//! - Tmkdir, Tsymlink, Tmknod, Tlcreate with `EXCL`: the new file exists, has the requested
//!   properties, and is no older than the latest time that the server had reported before. If
//!   another file exists, the answer is `EEXIST`;
//! - Tlink: the name is the file's;
//! - Tunlinkat: the name was known, and is gone or another file's;
//! - Tremove: the fid's path no longer leads to the file;
//! - Trenameat, Trename: the old name is gone, and the new one is the file's;
//! - Twrite to a file open to append: the file has at least the first of the bytes where the client
//!   believed its end. The answer counts the bytes that it has;
//! - Tclunk of an extended attribute's new value: repeating it fails because the attribute exists
//!   (or does not).
//!
//! Otherwise it is sent again. A Twalk is always repeated, before requests that may build on it.
//!
//! Another client that makes or removes the same name while there is no server can falsify this;
//! without other clients it is exact.

use std::collections::HashSet;

use vfs::Errno;

use super::names::is_same_file;
use super::restore::{Recovery, Roots, Server, Settled, Walk, ask, decode, send_one, walk_each};
use super::session::{State, reopen_flags};
use super::{DIALECT, Failure, InFlight, encode_error, encode_reply};
use crate::numbers::{Getattr, Lopen};
use crate::{Fid, Kind, Names, Qid, Rmessage, Tag, Tmessage};

/// The type bits of a mode, and their values for a regular file and a directory.
const TYPE_MASK: u32 = 0o170000;
const REGULAR: u32 = 0o100000;
const DIRECTORY: u32 = 0o040000;

/// Returns whether a request must not be carried out twice.
pub(super) fn is_doubtful(message: &[u8]) -> bool {
    matches!(
        message.get(4).copied().and_then(Kind::of),
        Some(
            Kind::Lcreate
                | Kind::Mkdir
                | Kind::Symlink
                | Kind::Mknod
                | Kind::Link
                | Kind::Unlinkat
                | Kind::Remove
                | Kind::Rename
                | Kind::Renameat
                | Kind::Write
                | Kind::Clunk
                | Kind::Walk
        )
    )
}

impl Recovery {
    /// Settles renames, before fids are walked by paths that these may have changed.
    pub(super) fn settle_renames(
        &mut self,
        server: &mut dyn Server,
        roots: &Roots,
    ) -> Result<(), Failure> {
        self.settle_each(|recovery, pending, request| match *request {
            Tmessage::Renameat {
                olddirfid,
                oldname,
                newdirfid,
                newname,
            } => {
                let Some(position) = recovery
                    .session
                    .fids
                    .get(&olddirfid)
                    .map(|dir| dir.position)
                else {
                    return Ok(None);
                };
                let known = recovery.session.names.qid_of(position, oldname);
                let old = recovery.lookup(server, roots, olddirfid, oldname)?;
                let new = recovery.lookup(server, roots, newdirfid, newname)?;
                let moved = was_moved(known, old, new);
                Ok(moved.then(|| encode_reply(pending.tag, &Rmessage::Renameat {})))
            }
            Tmessage::Rename { fid, dfid, name } => {
                let Some(qid) = recovery.session.fids.get(&fid).map(|known| known.qid) else {
                    return Ok(None);
                };
                let is_there = recovery.clone_fid(server, roots, fid)?;
                let new = recovery.lookup(server, roots, dfid, name)?;
                if let Some(fid) = is_there {
                    send_one(server, &Tmessage::Clunk { fid })?;
                }
                let moved = is_there.is_none() && new.is_some_and(|new| is_same_file(new, qid));
                Ok(moved.then(|| encode_reply(pending.tag, &Rmessage::Rename {})))
            }
            _ => Ok(None),
        })
    }

    /// Settles the other doubtful requests, after the fids are restored.
    pub(super) fn settle(
        &mut self,
        server: &mut dyn Server,
        roots: &Roots,
        lost: &HashSet<Fid>,
    ) -> Result<(), Failure> {
        self.settle_each(|recovery, pending, request| match *request {
            Tmessage::Remove { fid } if lost.contains(&fid) => {
                let stale = recovery.session.fids.get(&fid).is_some_and(|fid| fid.stale);
                Ok((!stale).then(|| encode_reply(pending.tag, &Rmessage::Remove {})))
            }
            _ if super::fids_of(request)
                .iter()
                .flatten()
                .any(|fid| lost.contains(fid)) =>
            {
                Ok(None)
            }
            Tmessage::Mkdir { dfid, name, .. } => {
                let made = recovery.created(server, pending, dfid, name, |mode, _| {
                    mode & TYPE_MASK == DIRECTORY
                })?;
                Ok(made.map(|made| match made {
                    Ok(qid) => encode_reply(pending.tag, &Rmessage::Mkdir { qid }),
                    Err(errno) => encode_error(pending.tag, errno),
                }))
            }
            Tmessage::Mknod {
                dfid, name, mode, ..
            } => {
                let made = recovery.created(server, pending, dfid, name, |found, size| {
                    found & TYPE_MASK == mode & TYPE_MASK && (mode & TYPE_MASK != REGULAR || size == 0)
                })?;
                Ok(made.map(|made| match made {
                    Ok(qid) => encode_reply(pending.tag, &Rmessage::Mknod { qid }),
                    Err(errno) => encode_error(pending.tag, errno),
                }))
            }
            Tmessage::Symlink {
                fid, name, target, ..
            } => {
                let len = target.len() as u64;
                let made = recovery.created(server, pending, fid, name, |mode, size| {
                    mode & TYPE_MASK == 0o120000 && size == len
                })?;
                Ok(made.map(|made| match made {
                    Ok(qid) => encode_reply(pending.tag, &Rmessage::Symlink { qid }),
                    Err(errno) => encode_error(pending.tag, errno),
                }))
            }
            Tmessage::Link { dfid, fid, name } => {
                let qid = recovery.session.fids.get(&fid).map(|known| known.qid);
                let there = recovery.lookup_in(server, dfid, name)?;
                Ok(match (there, qid) {
                    (Some(there), Some(qid)) if is_same_file(there, qid) => {
                        Some(encode_reply(pending.tag, &Rmessage::Link {}))
                    }
                    _ => None,
                })
            }
            Tmessage::Lcreate {
                fid, name, flags, ..
            } if flags & Lopen::EXCL.bits() != 0 => {
                let made = recovery.created(server, pending, fid, name, |mode, size| {
                    mode & TYPE_MASK == REGULAR && size == 0
                })?;
                Ok(match made {
                    None => None,
                    Some(Err(errno)) => Some(encode_error(pending.tag, errno)),
                    Some(Ok(_)) => Some(open_made(server, pending.tag, fid, name, flags)?),
                })
            }
            Tmessage::Unlinkat { dirfid, name, .. } => {
                let position = recovery.session.fids.get(&dirfid).map(|dir| dir.position);
                let known =
                    position.and_then(|position| recovery.session.names.qid_of(position, name));
                let there = recovery.lookup_in(server, dirfid, name)?;
                let is_removed = known
                    .is_some_and(|known| !there.is_some_and(|there| is_same_file(there, known)));
                Ok(is_removed.then(|| encode_reply(pending.tag, &Rmessage::Unlinkat {})))
            }
            Tmessage::Write { fid, offset, data } => {
                let appends = recovery.session.fids.get(&fid).is_some_and(|known| {
                    matches!(known.state, State::Open { flags, .. } if flags & Lopen::APPEND.bits() != 0)
                });
                if !appends {
                    return Ok(None);
                }
                let Some(to) = recovery.clone_fid(server, roots, fid)? else {
                    return Ok(None);
                };
                let count = written(server, to, offset, data.0)?;
                send_one(server, &Tmessage::Clunk { fid: to })?;
                Ok((count > 0).then(|| encode_reply(pending.tag, &Rmessage::Write { count })))
            }
            Tmessage::Clunk { fid } => {
                let known = recovery.session.fids.get(&fid);
                if !known.is_some_and(|known| matches!(known.state, State::XattrWrite { .. })) {
                    return Ok(None);
                }
                let reply = send_one(server, &Tmessage::Clunk { fid })?;
                Ok(Some(match decode(&reply)? {
                    Err(Errno::EEXIST | Errno::ENODATA) => {
                        encode_reply(pending.tag, &Rmessage::Clunk {})
                    }
                    _ => with_tag(reply, pending.tag),
                }))
            }
            // Later requests may build on it.
            Tmessage::Walk { .. } => Ok(Some(with_tag(send_one(server, request)?, pending.tag))),
            _ => Ok(None),
        })
    }

    /// Calls `settle` with each doubtful request; if it returns a reply, the request is settled.
    fn settle_each(
        &mut self,
        mut settle: impl FnMut(
            &mut Recovery,
            &InFlight,
            &Tmessage<'_>,
        ) -> Result<Option<Vec<u8>>, Failure>,
    ) -> Result<(), Failure> {
        let mut left = std::mem::take(&mut self.in_doubt).into_iter();
        let mut undone = Vec::new();
        let mut done = Ok(());
        for pending in left.by_ref() {
            let message = pending.message.clone();
            let Ok((_, request)) = Tmessage::decode(DIALECT, &message) else {
                continue;
            };
            match settle(self, &pending, &request) {
                Ok(None) => undone.push(pending),
                Ok(Some(reply)) => {
                    let answered = decode(&reply)?;
                    let ok = answered.is_ok();
                    let answer = answered.unwrap_or(Rmessage::Flush {});
                    self.session.apply_reply(&request, &answer, ok);
                    let InFlight { tag, order, .. } = pending;
                    self.settled.push(Settled { tag, order, reply });
                }
                Err(failure) => {
                    undone.push(pending);
                    done = Err(failure);
                    break;
                }
            }
        }
        undone.extend(left);
        self.in_doubt = undone;
        done
    }

    /// Returns the qid of `name` in the directory of a fid that is not walked yet.
    fn lookup(
        &mut self,
        server: &mut dyn Server,
        roots: &Roots,
        dir: Fid,
        name: &[u8],
    ) -> Result<Option<Qid>, Failure> {
        let Some(fid) = self.clone_fid(server, roots, dir)? else {
            return Ok(None);
        };
        let found = self.lookup_in(server, fid, name)?;
        send_one(server, &Tmessage::Clunk { fid })?;
        Ok(found)
    }

    /// Returns the qid of `name` in a directory.
    fn lookup_in(
        &mut self,
        server: &mut dyn Server,
        dir: Fid,
        name: &[u8],
    ) -> Result<Option<Qid>, Failure> {
        let to = self.new_fid();
        let path = vec![name.to_vec()];
        let walk = Walk {
            from: dir,
            to,
            path,
        };
        let found = walk_each(server, &[walk])?[0].flatten();
        if found.is_some() {
            send_one(server, &Tmessage::Clunk { fid: to })?;
        }
        Ok(found)
    }

    /// Returns whether a request in flight made `name`: its qid if so, `EEXIST` if another file was
    /// there before, or `None` if there is none. `fits` checks whether a mode and a size are of the
    /// file to be made.
    fn created(
        &mut self,
        server: &mut dyn Server,
        pending: &InFlight,
        dir: Fid,
        name: &[u8],
        fits: impl Fn(u32, u64) -> bool,
    ) -> Result<Option<Result<Qid, Errno>>, Failure> {
        let fid = self.new_fid();
        let names = [name];
        let mask = (Getattr::BASIC | Getattr::BTIME).bits();
        let walk = Tmessage::Walk {
            fid: dir,
            newfid: fid,
            names: Names::new(&names),
        };
        let walked = send_one(server, &walk)?;
        let qid = match decode(&walked)? {
            Ok(Rmessage::Walk { qids }) => qids.iter().last(),
            _ => None,
        };
        let Some(qid) = qid else {
            return Ok(None);
        };
        let look = [Tmessage::Getattr { fid, mask }, Tmessage::Clunk { fid }];
        let replies = ask(server, &look)?;
        let Ok(Rmessage::Getattr {
            valid,
            mode,
            size,
            ctime_sec,
            ctime_nsec,
            btime_sec,
            btime_nsec,
            ..
        }) = decode(&replies[0])?
        else {
            return Ok(Some(Err(Errno::EEXIST)));
        };
        let born = match valid & Getattr::BTIME.bits() {
            0 => (ctime_sec, ctime_nsec),
            _ => (btime_sec, btime_nsec),
        };
        let ours = fits(mode, size) && born >= pending.latest;
        Ok(Some(if ours { Ok(qid) } else { Err(Errno::EEXIST) }))
    }
}

/// Returns a reply with another tag.
fn with_tag(mut reply: Vec<u8>, tag: Tag) -> Vec<u8> {
    reply[5..7].copy_from_slice(&tag.0.to_le_bytes());
    reply
}

fn was_moved(known: Option<Qid>, old: Option<Qid>, new: Option<Qid>) -> bool {
    match (known, old, new) {
        (_, None, Some(new)) => known.is_none_or(|known| is_same_file(known, new)),
        // Another file has taken the old name since.
        (Some(known), Some(old), Some(new)) => {
            !is_same_file(known, old) && is_same_file(known, new)
        }
        _ => false,
    }
}

/// Turns a directory's fid into the open file that was made in it, as Tlcreate does.
fn open_made(
    server: &mut dyn Server,
    tag: Tag,
    fid: Fid,
    name: &[u8],
    flags: u32,
) -> Result<Vec<u8>, Failure> {
    let names = [name];
    let walk = Tmessage::Walk {
        fid,
        newfid: fid,
        names: Names::new(&names),
    };
    let flags = reopen_flags(flags);
    let replies = ask(server, &[walk, Tmessage::Lopen { fid, flags }])?;
    Ok(match decode(&replies[1])? {
        Ok(Rmessage::Lopen { qid, iounit }) => {
            encode_reply(tag, &Rmessage::Lcreate { qid, iounit })
        }
        Ok(_) => encode_error(tag, Errno::EIO),
        Err(errno) => encode_error(tag, errno),
    })
}

/// Returns how many leading bytes of `data` a file has at `offset`.
fn written(server: &mut dyn Server, fid: Fid, offset: u64, data: &[u8]) -> Result<u32, Failure> {
    if decode(&send_one(server, &Tmessage::Lopen { fid, flags: 0 })?)?.is_err() {
        return Ok(0);
    }
    let mut same = 0;
    while same < data.len() {
        let read = Tmessage::Read {
            fid,
            offset: offset + same as u64,
            count: (data.len() - same) as u32,
        };
        let reply = send_one(server, &read)?;
        let Ok(Rmessage::Read { data: found }) = decode(&reply)? else {
            break;
        };
        let rest = &data[same..];
        let pairs = found.0.iter().zip(rest);
        let equal = pairs.take_while(|(one, other)| one == other).count();
        same += equal;
        if equal == 0 || equal < found.0.len() {
            break;
        }
    }
    Ok(same as u32)
}
