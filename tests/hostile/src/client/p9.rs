//! 9P2000.L.

use p9::{Data, Dialect, Fid, Names, Rmessage, Tag, Tmessage as T, Uid};

use super::{Client, FILE, MSIZE};
use crate::raw_client::encode_request;

/// The fid of the file.
const FILE_FID: Fid = Fid(1);

/// Size in bytes of the header of a read or write message.
const HEADER_SIZE: u32 = 24;

/// Asserts that a reply is a success of at least `len` bytes, minus a header.
pub(super) fn check(reply: &[u8], len: u32) {
    let least = len.saturating_sub(HEADER_SIZE) as usize;
    assert!(reply.len() >= least, "{} bytes", reply.len());
    let (_, reply) = Rmessage::decode(Dialect::Linux, reply).expect("a reply");
    assert!(!matches!(reply, Rmessage::Lerror { .. }), "{reply:?}");
}

impl Client {
    pub(super) fn p9_attributes(&mut self) -> Vec<u8> {
        self.p9(&T::Getattr {
            fid: FILE_FID,
            mask: 0x7ff,
        })
    }

    pub(super) fn p9_read(&mut self, len: u32) -> Vec<u8> {
        self.p9(&T::Read {
            fid: FILE_FID,
            offset: 0,
            count: len - HEADER_SIZE,
        })
    }

    pub(super) fn p9_write(&mut self, data: &[u8]) -> Vec<u8> {
        self.p9(&T::Write {
            fid: FILE_FID,
            offset: 0,
            data: Data(&data[HEADER_SIZE as usize..]),
        })
    }

    /// Encodes a message with a new tag.
    fn p9(&mut self, request: &T<'_>) -> Vec<u8> {
        let tag = Tag((self.number() & 0x7fff) as u16);
        encode_request(tag, request)
    }

    /// Sends a 9P request; returns success, or the errno of the error.
    pub fn p9_rpc(&mut self, request: &T<'_>) -> Result<(), u32> {
        let request = self.p9(request);
        self.send(&request);
        let reply = self.reply();
        match Rmessage::decode(Dialect::Linux, &reply).expect("a reply").1 {
            Rmessage::Lerror { errno } => Err(errno),
            _ => Ok(()),
        }
    }

    pub(super) fn attach(&mut self) {
        let version = T::Version {
            msize: MSIZE,
            version: Dialect::Linux.version().as_bytes(),
        };
        self.send(&encode_request(Tag::NONE, &version));
        self.reply();
        let attach = T::Attach {
            fid: Fid(0),
            afid: Fid::NONE,
            uname: b"",
            aname: b"",
            n_uname: Uid(0),
        };
        self.p9_rpc(&attach).expect("attached");
        self.walk(FILE_FID, &[FILE.as_bytes()]).expect("there");
        let (fid, flags) = (FILE_FID, 2);
        self.p9_rpc(&T::Lopen { fid, flags }).expect("opened");
    }

    /// Walks from the root.
    pub fn walk(&mut self, newfid: Fid, names: &[&[u8]]) -> Result<(), u32> {
        let names = Names::new(names);
        let fid = Fid(0);
        self.p9_rpc(&T::Walk { fid, newfid, names })
    }
}
