//! Tstat: attributes as of stat(5).

use vfs::{Attr, AttrMask, Cx, Kind, Node, Result, Time};

use super::create::SET_BITS;
use crate::numbers::Dm;
use crate::server::qid::qid_of;
use crate::server::request::RequestContext;
use crate::stat::UnixStat;
use crate::{Dialect, Fid, Rmessage, Stat};

impl RequestContext<'_> {
    pub(in crate::server) fn stat(&mut self, fid: Fid) -> Result<()> {
        let fid = self.fid(fid)?;
        let cx = self.cx(&fid.attach().caller);
        let attr = fid.attr(&cx, AttrMask::STAT)?;
        let name = match &fid.step().name_in_parent {
            Some(location) => location.name()?.bytes(),
            None => b"/",
        };
        let strings = StatStrings::new(self, &cx, fid.node(), &attr)?;
        let stat = strings.stat(self.dialect, &attr, name);
        self.reply(&Rmessage::Stat { stat })
    }

    /// Returns a record of a directory's contents.
    pub(super) fn record(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        attr: &Attr,
        name: &[u8],
    ) -> Result<Vec<u8>> {
        let strings = StatStrings::new(self, cx, node, attr)?;
        let stat = strings.stat(self.dialect, attr, name);
        let mut record = Vec::with_capacity(stat.record_size(self.dialect));
        stat.encode(self.dialect, &mut record);
        Ok(record)
    }
}

/// The strings of a stat record.
struct StatStrings {
    user: String,
    group: String,
    extension: Vec<u8>,
}

impl StatStrings {
    fn new(
        context: &RequestContext<'_>,
        cx: &Cx<'_>,
        node: &dyn Node,
        attr: &Attr,
    ) -> Result<StatStrings> {
        let users = &context.connection.server.users;
        Ok(StatStrings {
            user: bounded(users.user(attr.uid), attr.uid),
            group: bounded(users.group(attr.gid), attr.gid),
            extension: match context.dialect {
                Dialect::Unix => extension(cx, node, attr)?,
                Dialect::Plan9 | Dialect::Linux => Vec::new(),
            },
        })
    }

    fn stat<'a>(&'a self, dialect: Dialect, attr: &Attr, name: &'a [u8]) -> Stat<'a> {
        Stat {
            kind: 0,
            dev: 0,
            qid: qid_of(attr),
            mode: stat_mode(dialect, attr).bits(),
            atime: seconds(attr.atime),
            mtime: seconds(attr.mtime),
            length: match attr.kind {
                Kind::Directory => 0,
                _ => attr.size,
            },
            name,
            uid: self.user.as_bytes(),
            gid: self.group.as_bytes(),
            // Sources do not record the last writer.
            muid: b"",
            unix: UnixStat {
                extension: &self.extension,
                n_uid: attr.uid,
                n_gid: attr.gid,
                n_muid: u32::MAX,
            },
        }
    }
}

/// Returns a name, or the number if there is none that fits in a record.
fn bounded(name: Option<String>, id: u32) -> String {
    /// Many times the limit of user databases.
    const MOST: usize = 1024;
    name.filter(|name| name.len() <= MOST)
        .unwrap_or_else(|| id.to_string())
}

fn extension(cx: &Cx<'_>, node: &dyn Node, attr: &Attr) -> Result<Vec<u8>> {
    /// Linux's `PATH_MAX`: no client can use a longer target.
    const MOST: usize = 4096;
    let device = |letter| format!("{letter} {} {}", attr.rdev.major, attr.rdev.minor).into();
    Ok(match attr.kind {
        Kind::Symlink => match node.readlink(cx) {
            Ok(target) if target.len() <= MOST => target,
            Err(errno) if errno.is_signal() => return Err(errno),
            _ => Vec::new(),
        },
        Kind::BlockDevice => device('b'),
        Kind::CharDevice => device('c'),
        Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket => Vec::new(),
    })
}

fn stat_mode(dialect: Dialect, attr: &Attr) -> Dm {
    let mut mode = Dm::from_bits_retain(attr.mode & 0o777);
    mode.set(Dm::DIR, attr.kind == Kind::Directory);
    if dialect == Dialect::Unix {
        mode |= match attr.kind {
            Kind::Symlink => Dm::SYMLINK,
            Kind::BlockDevice | Kind::CharDevice => Dm::DEVICE,
            Kind::Fifo => Dm::NAMEDPIPE,
            Kind::Socket => Dm::SOCKET,
            Kind::File | Kind::Directory => Dm::empty(),
        };
        for (dm, bit) in SET_BITS {
            mode.set(dm, attr.mode & bit != 0);
        }
    }
    mode
}

/// Returns a time limited to 32 bits, without all ones, which mean no change in a Twstat.
fn seconds(time: Time) -> u32 {
    time.sec.clamp(0, i64::from(u32::MAX - 1)) as u32
}
