//! Requesting TLS (RFC 9289 section 4.1): the first call of a connection, and its reply.

use wire::{Malformed, Xdr, XdrReader};

use crate::rpc::{
    self, CALL, LAST, MARK, OpaqueAuth, REPLY, Record, STARTTLS, VERSION, flavor, program,
};

/// The maximum length of a reply in bytes.
const MAX_REPLY: usize = 1 << 10;

/// Returns the request for TLS, a NULL call with XID `xid` to `version` of NFS.
pub fn request(xid: u32, version: u32) -> Vec<u8> {
    null(xid, version, flavor::TLS)
}

/// Returns a NULL call, to be made over TLS: the client's handshake completes before the server has
/// verified its certificate, so the first reply shows whether the server accepts it.
pub fn probe(xid: u32, version: u32) -> Vec<u8> {
    null(xid, version, flavor::NONE)
}

fn null(xid: u32, version: u32, credential: u32) -> Vec<u8> {
    const NULL: u32 = 0;
    let mut call = vec![0; MARK];
    for word in [xid, CALL, VERSION, program::NFS, version, NULL] {
        word.put(&mut call);
    }
    for flavor in [credential, flavor::NONE] {
        OpaqueAuth { flavor, body: &[] }.put(&mut call);
    }
    let mark = (call.len() - MARK) as u32 | LAST;
    call[..MARK].copy_from_slice(&mark.to_be_bytes());
    call
}

/// Returns the length of the reply that `head` begins; `None` while `head` is too short to tell.
pub fn frame(head: &[u8]) -> Result<Option<usize>, Malformed> {
    rpc::frame(head, MAX_REPLY)
}

/// Returns whether `reply`, a complete message, grants TLS.
pub fn is_granted(xid: u32, reply: &[u8]) -> Result<bool, Malformed> {
    let record = Record::new(reply)?;
    let mut from = XdrReader::new(record.bytes());
    if (from.u32()?, from.u32()?) != (xid, REPLY) {
        return Err(Malformed::new("expected the reply to AUTH_TLS"));
    }
    if from.u32()? != 0 {
        return Ok(false);
    }
    let verifier = OpaqueAuth::get(&mut from)?;
    let status = from.u32()?;
    let answer = (verifier.flavor, verifier.body, status);
    Ok(answer == (STARTTLS.flavor, STARTTLS.body, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9289_4_1_the_question_and_the_answer() {
        let requested = request(7, 4);
        let words: Vec<u32> = requested
            .chunks(4)
            .map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes")))
            .collect();
        assert_eq!(words, [1 << 31 | 40, 7, 0, 2, 100_003, 4, 0, 7, 0, 0, 0]);
        let granted = b"\x80\0\0\x20\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x08STARTTLS\0\0\0\0";
        assert_eq!(frame(granted), Ok(Some(granted.len())));
        assert_eq!(is_granted(7, granted), Ok(true));
        assert!(is_granted(8, granted).is_err());
        for len in 0..granted.len() {
            assert!(is_granted(7, &granted[..len]).is_err(), "{len}");
        }
        let plain = b"\x80\0\0\x18\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(is_granted(7, plain), Ok(false));
        let refused = b"\x80\0\0\x14\0\0\0\x07\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x05";
        assert_eq!(is_granted(7, refused), Ok(false));
    }
}
