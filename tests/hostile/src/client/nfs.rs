//! NFS v3 with MOUNT and NLM, and v4.

use super::{Client, FILE, MSIZE, Protocol, SLOTS};
use crate::rpc::{self, MOUNT, NFS, NLM, Ops, opaque, results, unwrap, word, words};

/// Whether the server may call a client of v4.1 over its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Callbacks {
    None,
    Possible,
}

/// Checks that a reply is a success of at least `len` bytes.
pub(super) fn check(reply: &[u8], len: u32) {
    assert_eq!(word(results(reply)), 0, "an error");
    assert!(reply.len() >= len as usize, "{} bytes", reply.len());
}

impl Client {
    /// v3: gets the handles of the root and of the file.
    pub(super) fn mount(&mut self) {
        let root = self.rpc((MOUNT, 3, 1), &opaque(b"/"));
        assert_eq!(word(&root), 0, "MNT");
        self.root = unwrap(&root[4..]);
        self.file = self.lookup(FILE);
    }

    /// v3: the handle of a file in the root.
    pub fn lookup(&mut self, name: &str) -> Vec<u8> {
        let body = [opaque(&self.root), opaque(name.as_bytes())].concat();
        let found = self.rpc((NFS, 3, 3), &body);
        assert_eq!(word(&found), 0, "LOOKUP");
        unwrap(&found[4..])
    }

    /// v4.1: EXCHANGE_ID, CREATE_SESSION and RECLAIM_COMPLETE.
    pub(super) fn begin_session(&mut self, name: &str) {
        (self.id, self.sequence) = self.exchange_id(name.as_bytes()).expect("a client");
        let callbacks = match self.protocol {
            Protocol::Nfs42 => Callbacks::Possible,
            _ => Callbacks::None,
        };
        self.session = self.create_session(callbacks).expect("a session");
        // Of all: without it OPEN is answered GRACE.
        let nothing_to_reclaim = self.begin().op(58, &[0]);
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

    /// A call as it travels.
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

    /// The results of the call whose reply comes next.
    pub fn results(&mut self) -> Vec<u8> {
        results(&self.reply()).to_vec()
    }

    /// Takes the replies to so many calls.
    pub fn take_replies(&mut self, calls: usize) {
        for _ in 0..calls {
            self.reply();
        }
    }

    /// Sends the call that was made here before once more, and then makes this one. Both must
    /// succeed, though neither can be carried out twice.
    pub fn once_more(&mut self, what: (u32, u32, u32), body: &[u8]) {
        let call = self.call(what, body);
        let before = self.sent.replace(call.clone());
        for call in before.iter().chain([&call]) {
            self.exchange(call, 0);
        }
    }

    /// The bytes of a lock of one byte, exclusive: what LOCK and UNLOCK of NLM share.
    fn nlm_lock(&self, caller: &[u8], owner: u32, offset: u64) -> Vec<u8> {
        let range = [offset, 1].map(u64::to_be_bytes).concat();
        let owner = owner.to_be_bytes();
        let names = [caller, &self.file, &owner].map(opaque).concat();
        [names, words(&[1]), range].concat()
    }

    /// A call of NLM's LOCK of a byte for a client of this name, which waits if `block` is set.
    pub fn nlm_lock_call(
        &mut self,
        block: bool,
        caller: &[u8],
        owner: u32,
        offset: u64,
    ) -> Vec<u8> {
        // Cookie, block, exclusive, the lock, reclaim and the state.
        let lock = self.nlm_lock(caller, owner, offset);
        let body = [words(&[0, block.into(), 1]), lock, words(&[0, 1])].concat();
        self.call((NLM, 4, 2), &body)
    }

    /// NLM's UNLOCK if `unlock` is set, else LOCK, for a client of this name: the status.
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

    /// The status in the reply of NLM that comes next.
    pub fn nlm_status(&mut self) -> u32 {
        // After an empty cookie.
        word(&self.results()[4..])
    }

    /// v4: carries a compound out; its status and results.
    pub fn compound(&mut self, ops: &Ops) -> (u32, Vec<u8>) {
        let reply = self.rpc((NFS, 4, 1), &ops.compound(self.protocol.minor()));
        // Status, tag, count.
        let tag = unwrap(&reply[4..]).len().next_multiple_of(4);
        (word(&reply), reply[12 + tag..].to_vec())
    }

    /// v4: SEQUENCE on the next slot, where the version has that.
    pub fn begin(&mut self) -> Ops {
        if self.protocol.minor() == 0 {
            return Ops::default();
        }
        self.slot = (self.slot + 1) % SLOTS;
        let slot = self.slot;
        self.slots[slot] += 1;
        Ops::default().sequence(&self.session, self.slots[slot], slot as u32, SLOTS as u32)
    }

    /// v4: a call of a compound on the file.
    fn on_file(&mut self, ops: Ops) -> Vec<u8> {
        let all = self.begin().root().lookup(FILE.as_bytes()).then(ops);
        self.call((NFS, 4, 1), &all.compound(self.protocol.minor()))
    }

    /// v4.0: SETCLIENTID and SETCLIENTID_CONFIRM; the client's id, or the status.
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

    /// v4.1: EXCHANGE_ID; the client's id and its next number, or the status.
    pub fn exchange_id(&mut self, owner: &[u8]) -> Result<(Vec<u8>, u32), u32> {
        let ops = Ops::default().op(42, &[1, 1]).opaque(owner);
        let (status, results) = self.compound(&ops.words(&[0, 0, 0]));
        match status {
            0 => Ok((results[8..16].to_vec(), word(&results[16..]))),
            status => Err(status),
        }
    }

    /// v4.1: CREATE_SESSION of the client; the session's id, or the status.
    pub fn create_session(&mut self, callbacks: Callbacks) -> Result<Vec<u8>, u32> {
        let channel = [0, MSIZE + 1000, MSIZE + 1000, 4096, 250, SLOTS as u32, 0];
        let back = match callbacks {
            Callbacks::None => 0,
            Callbacks::Possible => 2,
        };
        let ops = Ops::default().op(43, &[]).raw(&self.id);
        let ops = ops.words(&[self.sequence, back]).words(&channel);
        // The program of callbacks, by AUTH_NONE.
        let ops = ops.words(&channel).words(&[0x4000_0000, 1, 0]);
        let (status, results) = self.compound(&ops);
        if status != 0 {
            return Err(status);
        }
        self.sequence += 1;
        Ok(results[8..24].to_vec())
    }

    /// v4: an OPEN of a file for reading by an owner of its own, for a compound whose current
    /// file handle is the root.
    pub fn open(&self, owner: &str, file: &str) -> Ops {
        self.open_for(1, owner, file)
    }

    /// The same for an access of 1 (reading), 2 (writing) or 3.
    pub fn open_for(&self, access: u32, owner: &str, file: &str) -> Ops {
        let ops = Ops::default().op(18, &[1, access, 0]).raw(&self.id);
        let ops = ops.opaque(owner.as_bytes()).words(&[0, 0]);
        ops.opaque(file.as_bytes())
    }
}
