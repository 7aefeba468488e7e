//! NBD with the newstyle handshake.

use super::{Client, FILE};
use crate::rpc::word;

/// Command numbers.
pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const FLUSH: u16 = 3;

impl Client {
    /// Performs the handshake for the file.
    pub(super) fn negotiate(&mut self) {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting).expect("a greeting");
        let flags = 1u32.to_be_bytes();
        let name = FILE.as_bytes();
        let body = [&(name.len() as u32).to_be_bytes()[..], name, &[0, 0]].concat();
        let head = [7u32.to_be_bytes(), (body.len() as u32).to_be_bytes()].concat();
        self.send(&[&flags[..], b"IHAVEOPT", &head, &body].concat());
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).expect("a reply");
            let mut body = vec![0; word(&head[16..]) as usize];
            self.stream.read_exact(&mut body).expect("a reply");
            match word(&head[12..]) {
                // NBD_REP_ACK.
                1 => return,
                // NBD_REP_INFO.
                3 => {}
                other => panic!("reply {other:x}"),
            }
        }
    }

    /// Encodes a request.
    pub(super) fn nbd(&mut self, command: u16, len: u32, data: &[u8]) -> Vec<u8> {
        let cookie = u64::from(self.number());
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &[0, 0],
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &[0; 8],
            &len.to_be_bytes(),
            data,
        ]
        .concat()
    }

    /// Asserts that a reply is a success, and receives its `len` bytes of data.
    pub(super) fn check_nbd(&mut self, reply: &[u8], len: u32) {
        assert_eq!(word(&reply[4..]), 0, "an error");
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data).expect("data");
    }
}
