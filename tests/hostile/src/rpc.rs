//! Calls of ONC RPC and compounds of NFS v4, by bytes (RFC 5531, RFC 7530, RFC 8881).

/// The number of NFS as a program.
pub const NFS: u32 = 100_003;
/// The number of MOUNT.
pub const MOUNT: u32 = 100_005;
/// The number of NLM.
pub const NLM: u32 = 100_021;

/// A call of the super-user to a program, version and procedure, as it travels in a stream.
pub fn call(xid: u32, (program, version, procedure): (u32, u32, u32), body: &[u8]) -> Vec<u8> {
    // AUTH_SYS of an unnamed machine, and no verifier.
    let head = [
        xid, 0, 2, program, version, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0,
    ];
    let head = words(&head);
    let mark = (head.len() + body.len()) as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], &head, body].concat()
}

/// The results in the reply to an accepted call, given without its record mark.
///
/// # Panics
/// If the call was refused.
#[track_caller]
pub fn results(reply: &[u8]) -> &[u8] {
    assert_eq!(reply[4..24], words(&[1, 0, 0, 0, 0]), "not accepted");
    &reply[24..]
}

/// Numbers as XDR has them.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Bytes of variable length as XDR has them.
pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = (bytes.len() as u32).to_be_bytes().to_vec();
    put.extend(bytes);
    put.resize(put.len().next_multiple_of(4), 0);
    put
}

/// The number at the beginning of `bytes`.
///
/// # Panics
/// If there are less than four.
pub fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("a word"))
}

/// The bytes of the [`opaque`] at the beginning of `bytes`.
///
/// # Panics
/// If they are fewer than it says.
pub fn unwrap(bytes: &[u8]) -> Vec<u8> {
    bytes[4..][..word(bytes) as usize].to_vec()
}

/// Operations of a compound of NFS v4.
#[derive(Clone, Default)]
pub struct Ops {
    count: u32,
    bytes: Vec<u8>,
}

impl Ops {
    /// Adds an operation, whose arguments begin with these numbers.
    pub fn op(mut self, number: u32, arguments: &[u32]) -> Ops {
        self.count += 1;
        self.words(&[number]).words(arguments)
    }

    /// Adds numbers to the arguments of the last operation.
    pub fn words(self, numbers: &[u32]) -> Ops {
        self.raw(&words(numbers))
    }

    /// Adds bytes of variable length to them.
    pub fn opaque(self, bytes: &[u8]) -> Ops {
        self.raw(&opaque(bytes))
    }

    /// Adds bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Ops {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Adds operations.
    pub fn then(mut self, ops: Ops) -> Ops {
        self.count += ops.count;
        self.raw(&ops.bytes)
    }

    /// PUTROOTFH.
    pub fn root(self) -> Ops {
        self.op(24, &[])
    }

    /// LOOKUP.
    pub fn lookup(self, name: &[u8]) -> Ops {
        self.op(15, &[]).opaque(name)
    }

    /// CREATE of a directory without attributes.
    pub fn mkdir(self, name: &[u8]) -> Ops {
        self.op(6, &[2]).opaque(name).words(&[0, 0])
    }

    /// READ of `len` bytes from the beginning, without an open.
    pub fn read(self, len: u32) -> Ops {
        self.op(25, &[0, 0, 0, 0, 0, 0, len])
    }

    /// READDIR of up to `len` bytes.
    pub fn readdir(self, len: u32) -> Ops {
        self.op(26, &[0, 0, 0, 0, len, len, 0])
    }

    /// SEQUENCE on a slot, of `slots`.
    pub fn sequence(self, session: &[u8], seqid: u32, slot: u32, slots: u32) -> Ops {
        let numbers = [seqid, slot, slots - 1, 0];
        self.op(53, &[]).raw(session).words(&numbers)
    }

    /// The arguments of COMPOUND, without a tag.
    pub fn compound(&self, minor: u32) -> Vec<u8> {
        [&words(&[0, minor, self.count])[..], &self.bytes].concat()
    }
}
