//! READDIR (RFC 8881 section 18.23).

use std::sync::Arc;

use vfs::{AttrMask, Cx, DirEntry, DirSink, Kind, Node, OpenFlags, ReaddirMode, Sink as _};
use wire::Xdr as _;

use super::attr::{AttributeSource, WRITE_ONLY, fsid, supported};
use super::compound::{Compound, OpError, OpResult};
use super::referral::REFERRAL_AWARE;
use crate::server::{RequestContext, Server};
use crate::v4::Status;
use crate::v4::attr::{Attributes, Bitmap, FileType, number as n};
use crate::v4::op::Readdir;

/// v4 reserves the cookies 1 and 2, which a source may use.
const RESERVED: u64 = 2;

impl RequestContext<'_, Compound> {
    pub(super) fn readdir(&mut self, args: Readdir) -> OpResult {
        let node = match self.node()?.kind() {
            Kind::Directory => self.node()?,
            _ => return Err(Status::Notdir.into()),
        };
        if (1..=RESERVED).contains(&args.cookie) {
            return Err(Status::BadCookie.into());
        }
        if !args.attributes.and(&WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        let cx = self.cx();
        let file = self.server.file(&cx, &node, OpenFlags::READ)?;
        // The limit applies to the whole result: the verifier before the entries, and after them
        // the end of the list and the eof flag.
        const AROUND: usize = 8 + 4 + 4;
        let most = (args.max_count as usize)
            .min(self.server.options.max_io as usize)
            .min(self.reply.room())
            .checked_sub(AROUND)
            .ok_or(Status::Toosmall)?;
        self.reply.value(&[0u8; 8]);
        let want = args
            .attributes
            .and(&supported(self.server, self.compound.minor));
        let device = match want.has(n::FSID) {
            true => file.attr(&cx, AttrMask::BASIC)?.device,
            false => 0,
        };
        let mut listing = Listing {
            server: self.server,
            cx,
            minor: self.compound.minor,
            want,
            device,
            at_name: self.is_at_name(),
            entries: Vec::with_capacity(most.min(64 << 10)),
            most,
            full: false,
            failed: None,
        };
        const CHEAP: Bitmap = Bitmap::of(&[
            n::RDATTR_ERROR,
            n::TYPE,
            n::FSID,
            n::FILEID,
            n::MOUNTED_ON_FILEID,
        ]);
        let plus = match want.without(&CHEAP).is_empty() {
            true => ReaddirMode::Names,
            false => ReaddirMode::Entries,
        };
        file.readdir(
            &cx,
            args.cookie.saturating_sub(RESERVED),
            plus,
            &mut listing,
        )?;
        let Listing {
            entries,
            full,
            failed,
            ..
        } = listing;
        if let Some(error) = failed {
            return Err(error);
        }
        if full && entries.is_empty() {
            return Err(Status::Toosmall.into());
        }
        self.reply.bytes(&entries);
        self.reply.value(&false);
        self.reply.value(&!full);
        Ok(())
    }
}

/// Encoded entries.
struct Listing<'a> {
    server: &'a Server,
    cx: Cx<'a>,
    minor: u32,
    want: Bitmap,
    /// The device number of the directory's file system.
    device: u64,
    /// Whether the directory was found through the export's name.
    at_name: bool,
    entries: Vec<u8>,
    most: usize,
    /// Whether an entry did not fit.
    full: bool,
    /// The reason why the READDIR fails at an entry, if it does: its attributes cannot be read yet,
    /// or it is a referral and the client does not support those.
    failed: Option<OpError>,
}

impl Listing<'_> {
    /// Writes the attributes of an entry.
    fn attributes(&mut self, entry: &DirEntry<'_>) -> OpResult {
        let Some(found) = &entry.entry else {
            // Only attributes of the directory entry itself were requested (with the mounted-on
            // values for a mount point, as in readdir(3)), or the file was removed meanwhile.
            Attributes {
                read_error: self.want.has(n::RDATTR_ERROR).then_some(Status::Ok as u32),
                kind: entry
                    .kind
                    .filter(|_| self.want.has(n::TYPE))
                    .map(FileType::from),
                fsid: self
                    .want
                    .has(n::FSID)
                    .then(|| fsid(self.device, self.at_name)),
                fileid: self.want.has(n::FILEID).then_some(entry.id),
                mounted_on: self.want.has(n::MOUNTED_ON_FILEID).then_some(entry.id),
                ..Attributes::default()
            }
            .put(&mut self.entries);
            return Ok(());
        };
        let node: &Arc<dyn Node> = &found.node;
        if self.server.referrals.of(node).is_some() && self.want.and(&REFERRAL_AWARE).is_empty() {
            return Err(Status::Moved.into());
        }
        let described = AttributeSource::new(
            self.server,
            &self.cx,
            (node, self.at_name),
            &found.attr,
            &self.want,
        );
        match described {
            Ok(described) => described
                .attributes(self.server, self.minor, &self.want)
                .put(&mut self.entries),
            Err(errno) if errno.is_signal() => return Err(errno.into()),
            Err(errno) => Attributes {
                read_error: self
                    .want
                    .has(n::RDATTR_ERROR)
                    .then_some(Status::from(errno) as u32),
                ..Attributes::default()
            }
            .put(&mut self.entries),
        }
        Ok(())
    }
}

impl DirSink for Listing<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let start = self.entries.len();
        true.put(&mut self.entries);
        entry.cookie.wrapping_add(RESERVED).put(&mut self.entries);
        entry.name.put(&mut self.entries);
        if let Err(error) = self.attributes(&entry) {
            self.failed = Some(error);
            return false;
        }
        if self.entries.len() > self.most {
            self.entries.truncate(start);
            self.full = true;
        }
        !self.full
    }
}
