//! NFSv3 with MOUNT and NLM, and NFSv4.

use super::{Client, FILE, MSIZE, Protocol, SLOTS};
use crate::rpc::{self, MOUNT, NFS, NLM, Ops, decode_opaque, opaque, results, word, words};

/// Whether the server may send callbacks to a v4.1 client over its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Callbacks {
    None,
    Possible,
}

/// Asserts that a reply is a success of at least `len` bytes.
pub(super) fn check(reply: &[u8], len: u32) {
    assert_eq!(word(results(reply)), 0, "an error");
    assert!(reply.len() >= len as usize, "{} bytes", reply.len());
}

impl Client {
    /// v3: gets the file handles of the root and of the file.
    pub(super) fn mount(&mut self) {
        let root = self.rpc((MOUNT, 3, 1), &opaque(b"/"));
        assert_eq!(word(&root), 0, "MNT");
        self.root = decode_opaque(&root[4..]);
        self.file = self.lookup(FILE);
    }

    /// v3: returns the file handle of a file in the root.
    pub fn lookup(&mut self, name: &str) -> Vec<u8> {
        let body = [opaque(&self.root), opaque(name.as_bytes())].concat();
        let found = self.rpc((NFS, 3, 3), &body);
        assert_eq!(word(&found), 0, "LOOKUP");
        decode_opaque(&found[4..])
    }

    /// v4.1: performs EXCHANGE_ID, CREATE_SESSION and RECLAIM_COMPLETE.
    pub(super) fn begin_session(&mut self, name: &str) {
        (self.id, self.sequence) = self.exchange_id(name.as_bytes()).expect("a client");
        let callbacks = match self.protocol {
            Protocol::Nfs42 => Callbacks::Possible,
            _ => Callbacks::None,
        };
        self.session = self.create_session(callbacks).expect("a session");
        // RECLAIM_COMPLETE of all file systems: without it OPEN fails with NFS4ERR_GRACE.
        let nothing_to_reclaim = self.begin_compound().op(58, &[0]);
        assert_eq!(self.compound(&nothing_to_reclaim).0, 0);
    }

    pub(super) fn nfs_attributes(&mut self) -> Vec<u8> {
        match self.protocol {
            Protocol::Nfs3 => {
                let handle = opaque(&self.file);
                self.call((NFS, 3, 1), &handle)
            }
            _ => self.on_file(Ops::default().op(9, &[1, 1 << 1])),
        }
    }

    pub(super) fn nfs_read(&mut self, len: u32) -> Vec<u8> {
        match self.protocol {
            Protocol::Nfs3 => {
                let body = [opaque(&self.file), words(&[0, 0, len])].concat();
                self.call((NFS, 3, 6), &body)
            }
            _ => self.on_file(Ops::default().read(len)),
        }
    }

    pub(super) fn nfs_write(&mut self, data: &[u8]) -> Vec<u8> {
        match self.protocol {
            Protocol::Nfs3 => {
                let handle = opaque(&self.file);
                let numbers = words(&[0, 0, data.len() as u32, 0]);
                self.call((NFS, 3, 7), &[handle, numbers, opaque(data)].concat())
            }
            _ => {
                let write = Ops::default().op(38, &[0, 0, 0, 0, 0, 0, 0]);
                self.on_file(write.opaque(data))
            }
        }
    }

    /// Encodes a call.
    pub fn call(&mut self, what: (u32, u32, u32), body: &[u8]) -> Vec<u8> {
        let xid = self.number();
        rpc::call(xid, what, body)
    }

    /// Calls a procedure and returns its results.
    pub fn rpc(&mut self, what: (u32, u32, u32), body: &[u8]) -> Vec<u8> {
        let call = self.call(what, body);
        self.send(&call);
        self.results()
    }

    /// Receives the next reply and returns its results.
    pub fn results(&mut self) -> Vec<u8> {
        results(&self.reply()).to_vec()
    }

    /// Receives `calls` replies.
    pub fn receive_replies(&mut self, calls: usize) {
        for _ in 0..calls {
            self.reply();
        }
    }

    /// Retransmits the call made here last, and then makes this one. Both must succeed, though
    /// neither can be executed twice.
    pub fn retransmit_previous(&mut self, what: (u32, u32, u32), body: &[u8]) {
        let call = self.call(what, body);
        let before = self.sent.replace(call.clone());
        for call in before.iter().chain([&call]) {
            self.exchange(call, 0);
        }
    }

    /// Encodes an exclusive lock of one byte, the common part of NLM's LOCK and UNLOCK.
    fn nlm_lock(&self, caller: &[u8], owner: u32, offset: u64) -> Vec<u8> {
        let range = [offset, 1].map(u64::to_be_bytes).concat();
        let owner = owner.to_be_bytes();
        let names = [caller, &self.file, &owner].map(opaque).concat();
        [names, words(&[1]), range].concat()
    }

    /// Encodes NLM's LOCK of a byte for the client `caller`; it waits if `block` is set.
    pub fn nlm_lock_call(
        &mut self,
        block: bool,
        caller: &[u8],
        owner: u32,
        offset: u64,
    ) -> Vec<u8> {
        // Cookie, block, exclusive, the lock, reclaim and state.
        let lock = self.nlm_lock(caller, owner, offset);
        let body = [words(&[0, block.into(), 1]), lock, words(&[0, 1])].concat();
        self.call((NLM, 4, 2), &body)
    }

    /// Calls NLM's UNLOCK if `unlock` is set, otherwise LOCK, for the client `caller`; returns the
    /// status.
    pub fn nlm(&mut self, unlock: bool, caller: &[u8], owner: u32, offset: u64) -> u32 {
        let call = match unlock {
            true => {
                let lock = self.nlm_lock(caller, owner, offset);
                self.call((NLM, 4, 4), &[words(&[0]), lock].concat())
            }
            false => self.nlm_lock_call(false, caller, owner, offset),
        };
        self.send(&call);
        self.nlm_status()
    }

    /// Receives the next NLM reply and returns its status.
    pub fn nlm_status(&mut self) -> u32 {
        // After an empty cookie.
        word(&self.results()[4..])
    }

    /// v4: executes a compound; returns its status and results.
    pub fn compound(&mut self, ops: &Ops) -> (u32, Vec<u8>) {
        let reply = self.rpc((NFS, 4, 1), &ops.compound(self.protocol.minor()));
        // Status, tag, count.
        let tag = decode_opaque(&reply[4..]).len().next_multiple_of(4);
        (word(&reply), reply[12 + tag..].to_vec())
    }

    /// v4: returns SEQUENCE on the next slot, if the minor version has sessions.
    pub fn begin_compound(&mut self) -> Ops {
        if self.protocol.minor() == 0 {
            return Ops::default();
        }
        self.slot = (self.slot + 1) % SLOTS;
        let slot = self.slot;
        self.slots[slot] += 1;
        Ops::default().sequence(&self.session, self.slots[slot], slot as u32, SLOTS as u32)
    }

    /// v4: encodes a compound on the file.
    fn on_file(&mut self, ops: Ops) -> Vec<u8> {
        let all = self
            .begin_compound()
            .root()
            .lookup(FILE.as_bytes())
            .append(ops);
        self.call((NFS, 4, 1), &all.compound(self.protocol.minor()))
    }

    /// v4.0: performs SETCLIENTID and SETCLIENTID_CONFIRM; returns the client ID, or the status.
    pub fn set_client_id(&mut self, name: &[u8]) -> Result<Vec<u8>, u32> {
        let ops = Ops::default().op(35, &[1, 1]).opaque(name).words(&[0]);
        let ops = ops.opaque(b"tcp").opaque(b"0.0.0.0.0.0");
        let (status, results) = self.compound(&ops.words(&[0]));
        if status != 0 {
            return Err(status);
        }
        let confirm = Ops::default().op(36, &[]).raw(&results[8..24]);
        match self.compound(&confirm).0 {
            0 => Ok(results[8..16].to_vec()),
            status => Err(status),
        }
    }

    /// v4.1: performs EXCHANGE_ID; returns the client ID and its sequence ID, or the status.
    pub fn exchange_id(&mut self, owner: &[u8]) -> Result<(Vec<u8>, u32), u32> {
        let ops = Ops::default().op(42, &[1, 1]).opaque(owner);
        let (status, results) = self.compound(&ops.words(&[0, 0, 0]));
        match status {
            0 => Ok((results[8..16].to_vec(), word(&results[16..]))),
            status => Err(status),
        }
    }

    /// v4.1: performs CREATE_SESSION for the client; returns the session ID, or the status.
    pub fn create_session(&mut self, callbacks: Callbacks) -> Result<Vec<u8>, u32> {
        let channel = [0, MSIZE + 1000, MSIZE + 1000, 4096, 250, SLOTS as u32, 0];
        let back = match callbacks {
            Callbacks::None => 0,
            Callbacks::Possible => 2,
        };
        let ops = Ops::default().op(43, &[]).raw(&self.id);
        let ops = ops.words(&[self.sequence, back]).words(&channel);
        // The callback program, with AUTH_NONE.
        let ops = ops.words(&channel).words(&[0x4000_0000, 1, 0]);
        let (status, results) = self.compound(&ops);
        if status != 0 {
            return Err(status);
        }
        self.sequence += 1;
        Ok(results[8..24].to_vec())
    }

    /// v4: returns OPEN of a file for reading with an open owner, for a compound whose current file
    /// handle is the root.
    pub fn open(&self, owner: &str, file: &str) -> Ops {
        self.open_for(1, owner, file)
    }

    /// Returns the same for an access of 1 (read), 2 (write) or 3 (both).
    pub fn open_for(&self, access: u32, owner: &str, file: &str) -> Ops {
        let ops = Ops::default().op(18, &[1, access, 0]).raw(&self.id);
        let ops = ops.opaque(owner.as_bytes()).words(&[0, 0]);
        ops.opaque(file.as_bytes())
    }
}
