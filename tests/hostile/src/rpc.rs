//! Byte-level ONC RPC calls and NFSv4 compounds (RFC 5531, RFC 7530, RFC 8881).

/// The program number of NFS.
pub const NFS: u32 = 100_003;
/// The program number of MOUNT.
pub const MOUNT: u32 = 100_005;
/// The program number of NLM.
pub const NLM: u32 = 100_021;

/// Encodes a call as root to a program, version and procedure, with its record mark.
pub fn call(xid: u32, (program, version, procedure): (u32, u32, u32), body: &[u8]) -> Vec<u8> {
    // AUTH_SYS with an empty machine name, and no verifier.
    let head = [
        xid, 0, 2, program, version, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0,
    ];
    let head = words(&head);
    let mark = (head.len() + body.len()) as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], &head, body].concat()
}

/// Returns the results in an accepted reply without its record mark.
///
/// # Panics
/// If the call was rejected.
#[track_caller]
pub fn results(reply: &[u8]) -> &[u8] {
    assert_eq!(reply[4..24], words(&[1, 0, 0, 0, 0]), "not accepted");
    &reply[24..]
}

/// Encodes numbers in XDR.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Encodes variable-length opaque data in XDR.
pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = (bytes.len() as u32).to_be_bytes().to_vec();
    put.extend(bytes);
    put.resize(put.len().next_multiple_of(4), 0);
    put
}

/// Returns the number at the beginning of `bytes`.
///
/// # Panics
/// If there are fewer than four bytes.
pub fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("a word"))
}

/// Returns the data of the [`opaque`] at the beginning of `bytes`.
///
/// # Panics
/// If `bytes` is shorter than the encoded length.
pub fn decode_opaque(bytes: &[u8]) -> Vec<u8> {
    bytes[4..][..word(bytes) as usize].to_vec()
}

/// The operations of an NFSv4 compound.
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

    /// Adds variable-length opaque data to the arguments of the last operation.
    pub fn opaque(self, bytes: &[u8]) -> Ops {
        self.raw(&opaque(bytes))
    }

    /// Adds raw bytes to the arguments of the last operation.
    pub fn raw(mut self, bytes: &[u8]) -> Ops {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends the operations of `ops`.
    pub fn append(mut self, ops: Ops) -> Ops {
        self.count += ops.count;
        self.raw(&ops.bytes)
    }

    /// Adds PUTROOTFH.
    pub fn root(self) -> Ops {
        self.op(24, &[])
    }

    /// Adds LOOKUP.
    pub fn lookup(self, name: &[u8]) -> Ops {
        self.op(15, &[]).opaque(name)
    }

    /// Adds CREATE of a directory without attributes.
    pub fn mkdir(self, name: &[u8]) -> Ops {
        self.op(6, &[2]).opaque(name).words(&[0, 0])
    }

    /// Adds READ of `len` bytes from the beginning, with the anonymous stateid.
    pub fn read(self, len: u32) -> Ops {
        self.op(25, &[0, 0, 0, 0, 0, 0, len])
    }

    /// Adds READDIR of up to `len` bytes.
    pub fn readdir(self, len: u32) -> Ops {
        self.op(26, &[0, 0, 0, 0, len, len, 0])
    }

    /// Adds SEQUENCE on one of `slots` slots.
    pub fn sequence(self, session: &[u8], seqid: u32, slot: u32, slots: u32) -> Ops {
        let numbers = [seqid, slot, slots - 1, 0];
        self.op(53, &[]).raw(session).words(&numbers)
    }

    /// Returns the arguments of COMPOUND with an empty tag.
    pub fn compound(&self, minor: u32) -> Vec<u8> {
        [&words(&[0, minor, self.count])[..], &self.bytes].concat()
    }
}
