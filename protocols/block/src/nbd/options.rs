//! The handshake: the negotiation of options and the choice of an export.

use vfs::{Cx, DirEntry, DirSink, Errno, Kind, OpenFlags, ReaddirMode, Result};
use wire::{Malformed, Outgoing, Reader};

use super::message::{
    HandshakeFlags, MAX_PAYLOAD, TransmissionFlags, option, option_reply as reply_to, reply,
};
use super::{Connection, Failure, Handshake, Image, SelectedExport, Server, is_retry};
use crate::Disk;

/// The only metadata context: allocated data and zeros.
const ALLOCATION: &[u8] = b"base:allocation";

/// Its id in replies.
pub(super) const ALLOCATION_ID: u32 = 1;

/// The most exports in a list.
const MAX_LISTED: usize = 1000;

impl Connection {
    /// Records the client's handshake flags; those that both sides support apply.
    pub(super) fn set_client_flags(&self, flags: u32) -> std::result::Result<(), Malformed> {
        let known = u16::try_from(flags)
            .ok()
            .and_then(HandshakeFlags::from_bits);
        let flags =
            known.ok_or_else(|| Malformed::new(format!("expected flags, got {flags:x}")))?;
        let mut handshake = self.handshake.lock();
        match handshake.flags.replace(flags) {
            None if flags.contains(HandshakeFlags::FIXED_NEWSTYLE) => Ok(()),
            None => Err(Malformed::new(
                "expected a client of fixed newstyle negotiation",
            )),
            Some(_) => Err(Malformed::new("expected an option, got flags again")),
        }
    }

    pub(super) fn option(
        &self,
        cx: &Cx<'_>,
        number: u32,
        data: &[u8],
        out: &mut dyn Outgoing,
    ) -> std::result::Result<(), Failure> {
        let handshake = self.handshake.lock().clone();
        let Some(flags) = handshake.flags else {
            return Err(Malformed::new("expected flags, got an option").into());
        };
        if self.selected.get().is_some() {
            return Err(Malformed::new("expected a request, got an option").into());
        }
        if number == option::EXPORT_NAME {
            // EXPORT_NAME can only be refused by closing the connection.
            let attached = self.server.select(cx, data, &handshake)?;
            let attached =
                attached.map_err(|error| Malformed::new(format!("no such export: {error}")))?;
            out.bytes(&attached.disk.size().to_be_bytes());
            out.bytes(&attached.flags().bits().to_be_bytes());
            if !flags.contains(HandshakeFlags::NO_ZEROES) {
                out.zeros(124);
            }
            return Ok(self.start_transmission(attached)?);
        }
        let mut answer = |kind, data: &[u8]| reply_to(out, number, kind, data);
        match number {
            option::ABORT => answer(reply::ACK, b""),
            option::LIST if !data.is_empty() => answer(reply::INVALID, b"LIST has no data"),
            option::LIST => match self.server.list(cx) {
                Ok(names) => {
                    for name in names {
                        let len = (name.len() as u32).to_be_bytes();
                        answer(reply::SERVER, &[&len, name.as_slice()].concat());
                    }
                    answer(reply::ACK, b"");
                }
                Err(errno) if is_retry(errno) => return Err(errno.into()),
                Err(errno) => answer(reply::POLICY, errno.to_string().as_bytes()),
            },
            option::INFO | option::GO => {
                let Ok(name) = info_request(data) else {
                    answer(reply::INVALID, b"expected a name and information types");
                    return Ok(());
                };
                let attached = match self.server.select(cx, name, &handshake)? {
                    Ok(attached) => attached,
                    Err(errno) => {
                        answer(reply::UNKNOWN, errno.to_string().as_bytes());
                        return Ok(());
                    }
                };
                for information in attached.information() {
                    answer(reply::INFO, &information);
                }
                answer(reply::ACK, b"");
                if number == option::GO {
                    self.start_transmission(attached)?;
                }
            }
            option::STRUCTURED_REPLY if !data.is_empty() => {
                answer(reply::INVALID, b"STRUCTURED_REPLY has no data")
            }
            option::STRUCTURED_REPLY => {
                self.update_handshake(|handshake| handshake.structured_replies = true);
                answer(reply::ACK, b"");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let sets = number == option::SET_META_CONTEXT;
                if sets {
                    self.update_handshake(|handshake| handshake.allocation_export = None);
                }
                if !handshake.structured_replies {
                    answer(reply::INVALID, b"expected STRUCTURED_REPLY first");
                    return Ok(());
                }
                let Ok((name, queries)) = context_request(data) else {
                    answer(reply::INVALID, b"expected a name and queries");
                    return Ok(());
                };
                let asks = |query: &&[u8]| match sets {
                    true => *query == ALLOCATION,
                    false => [ALLOCATION, b"base:"].contains(query),
                };
                if queries.iter().any(asks) || !sets && queries.is_empty() {
                    let id = if sets { ALLOCATION_ID } else { 0 };
                    answer(
                        reply::META_CONTEXT,
                        &[&id.to_be_bytes(), ALLOCATION].concat(),
                    );
                    if sets {
                        self.update_handshake(|handshake| {
                            handshake.allocation_export = Some(name.to_vec())
                        });
                    }
                }
                answer(reply::ACK, b"");
            }
            _ => answer(reply::UNSUPPORTED, b""),
        }
        Ok(())
    }

    fn update_handshake(&self, what: impl FnOnce(&mut Handshake)) {
        what(&mut self.handshake.lock());
    }

    /// Ends the handshake: requests follow.
    fn start_transmission(&self, attached: SelectedExport) -> std::result::Result<(), Malformed> {
        let result = self.selected.set(attached);
        result.map_err(|_| Malformed::new("expected one export, got two at once"))
    }
}

impl Server {
    /// Opens the export `name`. The outer error means that the call is to be repeated.
    fn select(
        &self,
        cx: &Cx<'_>,
        name: &[u8],
        handshake: &Handshake,
    ) -> Result<Result<SelectedExport>> {
        let opened = match self.images.iter().find(|image| image.name == name) {
            Some(image) => Disk::open(cx, &image.export, &image.path, true),
            None => Disk::open(cx, &self.export, name, self.read_only),
        };
        match opened {
            Ok(disk) => Ok(Ok(SelectedExport {
                disk,
                structured_replies: handshake.structured_replies,
                allocation_context: handshake.allocation_export.as_deref() == Some(name),
            })),
            Err(errno) if is_retry(errno) => Err(errno),
            Err(errno) => Ok(Err(errno)),
        }
    }

    /// Returns the names of exports: images, and the files in the root, or the empty name if the
    /// root is a file.
    fn list(&self, cx: &Cx<'_>) -> Result<Vec<Vec<u8>>> {
        let may_use = |image: &&Image| image.export.fs.root(cx).err() != Some(Errno::EACCES);
        let images = self.images.iter().filter(may_use);
        let mut names = Names {
            files: images.map(|image| image.name.clone()).collect(),
            ..Names::default()
        };
        let root = self.export.fs.root(cx)?;
        if root.kind() == Kind::File {
            names.files.push(Vec::new());
            return Ok(names.files);
        }
        let dir = root.open(cx, OpenFlags::READ)?;
        loop {
            let (before, cookie) = (names.seen, names.cookie);
            dir.readdir(cx, cookie, ReaddirMode::Names, &mut names)?;
            if names.seen == before || names.files.len() >= MAX_LISTED {
                return Ok(names.files);
            }
        }
    }
}

/// Names of files in a directory.
#[derive(Default)]
struct Names {
    files: Vec<Vec<u8>>,
    seen: usize,
    cookie: u64,
}

impl DirSink for Names {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.files.len() >= MAX_LISTED {
            return false;
        }
        if entry.kind == Some(Kind::File) {
            self.files.push(entry.name.to_vec());
        }
        self.seen += 1;
        self.cookie = entry.cookie;
        true
    }
}

impl SelectedExport {
    fn flags(&self) -> TransmissionFlags {
        use TransmissionFlags as F;
        let mut flags = F::HAS_FLAGS | F::CAN_MULTI_CONN;
        flags.set(F::READ_ONLY, self.disk.is_read_only());
        let writes = F::SEND_FLUSH | F::SEND_FUA;
        flags.set(writes, !self.disk.is_read_only());
        let zeroes = F::SEND_TRIM | F::SEND_WRITE_ZEROES | F::SEND_FAST_ZERO;
        flags.set(zeroes, self.disk.can_discard());
        flags.set(F::SEND_DF, self.structured_replies);
        flags
    }

    /// Returns the information replies: size and flags, and the block sizes.
    fn information(&self) -> [Vec<u8>; 2] {
        const EXPORT: u16 = 0;
        const BLOCK_SIZE: u16 = 3;
        let (size, flags) = (self.disk.size().to_be_bytes(), self.flags().bits());
        let export = [&EXPORT.to_be_bytes()[..], &size, &flags.to_be_bytes()].concat();
        // Minimum, preferred and maximum.
        let sizes = [1, 4096, MAX_PAYLOAD].map(u32::to_be_bytes).concat();
        let block_size = [&BLOCK_SIZE.to_be_bytes()[..], &sizes].concat();
        [export, block_size]
    }
}

/// Returns the name in INFO and GO. The requested information types are ignored: all may be sent.
fn info_request(data: &[u8]) -> std::result::Result<&[u8], Malformed> {
    let mut fields = Reader::new(data);
    let name = length_prefixed(&mut fields)?;
    let kinds = u16::from_be_bytes(fields.array()?);
    fields.bytes(usize::from(kinds) * size_of::<u16>())?;
    fields.end()?;
    Ok(name)
}

/// Returns the name and the queries of a metadata context option.
fn context_request(data: &[u8]) -> std::result::Result<(&[u8], Vec<&[u8]>), Malformed> {
    let mut fields = Reader::new(data);
    let name = length_prefixed(&mut fields)?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(fields.array()?) {
        queries.push(length_prefixed(&mut fields)?);
    }
    fields.end()?;
    Ok((name, queries))
}

/// Returns bytes that follow their 32-bit length.
fn length_prefixed<'a>(fields: &mut Reader<'a>) -> std::result::Result<&'a [u8], Malformed> {
    let len = u32::from_be_bytes(fields.array()?);
    fields.bytes(len as usize)
}
