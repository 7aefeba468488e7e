//! The table of requests, from which their types, decoding and encoding are generated.
//!
//! A request is an [`InHeader`], its arguments, and extensions. Decoding reads within the message
//! only, never panics, and borrows from the message. Bytes after the arguments are ignored: a newer
//! kernel may append fields.
//!
//! A reply is an [`OutHeader`], followed by one of the structures of [`crate::layout`], by bytes,
//! or by no data.

use wire::{Malformed, Reader};

use crate::layout::*;
use crate::numbers::{EXT_GROUPS, InitFlags, MAX_SECURITY_CONTEXTS};

/// Bytes before a request's arguments.
pub const HEADER: usize = InHeader::SIZE;

/// Bytes before the payload of a WRITE.
pub const WRITE_HEAD: usize = HEADER + WriteIn::SIZE;

/// Bytes before a reply's arguments.
pub const REPLY_HEADER: usize = OutHeader::SIZE;

/// The header of a request. Encoding computes `len` and `total_extlen`.
pub type Header = InHeader;

impl Header {
    /// Returns a whole message with these bytes as its arguments, without checking them.
    pub fn message(self, arguments: &[u8]) -> Vec<u8> {
        let header = Header {
            len: (HEADER + arguments.len()) as u32,
            ..self
        };
        [&header.encode(), arguments].concat()
    }
}

/// The INIT flags that change the layout of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireFormat {
    /// SETXATTR uses the longer structure ([`InitFlags::SETXATTR_EXT`]).
    pub setxattr_ext: bool,
}

/// The reason why bytes are not a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// An unknown opcode.
    Opcode(u32),
    /// Arguments that do not fit the opcode.
    Arguments(&'static str, Malformed),
    /// Less than a header, or fewer bytes than the header announces.
    Frame(Malformed),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Opcode(opcode) => write!(f, "unknown opcode {opcode}"),
            DecodeError::Arguments(name, what) => write!(f, "{name}: {what}"),
            DecodeError::Frame(what) => write!(f, "malformed message: {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}

macro_rules! requests {
    (
        lifetime $a:lifetime;
        $(
            $(#[$doc:meta])*
            $opcode:literal $name:ident { $($field:ident: $type:ty),* }
        )*
    ) => {
        /// The opcode of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$doc])* $name = $opcode,)*
        }

        impl Opcode {
            /// All opcodes.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// Returns the opcode with this number.
            pub const fn of(number: u32) -> Option<Opcode> {
                Some(match number {
                    $($opcode => Opcode::$name,)*
                    _ => return None,
                })
            }

            /// Returns the opcode's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => stringify!($name),)*
                }
            }
        }

        /// A request's arguments, named as the kernel's structures are. The node id that they refer
        /// to is in the header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Request<$a> {
            $($(#[$doc])* $name { $($field: $type),* },)*
        }

        impl<$a> Request<$a> {
            /// Returns the request's opcode.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Request::$name { .. } => Opcode::$name,)*
                }
            }

            fn arguments(
                opcode: Opcode,
                form: WireFormat,
                from: &mut Reader<$a>,
            ) -> Result<Request<$a>, Malformed> {
                let _ = form;
                Ok(match opcode {
                    $(Opcode::$name => Request::$name {
                        $($field: <$type as Argument<$a>>::get(from, form)?),*
                    },)*
                })
            }

            fn put(&self, form: WireFormat, to: &mut Vec<u8>) {
                match self {
                    $(Request::$name { $($field),* } => {
                        $(Argument::append($field, form, to);)*
                    })*
                }
            }
        }
    };
}

requests! {
    lifetime 'a;

    /// Looks up a name in a directory. Answered with [`EntryOut`].
    1 Lookup { name: Text<'a> }
    /// Takes back look-ups of a node. Has no reply.
    2 Forget { args: ForgetIn }
    /// Answered with [`AttrOut`].
    3 Getattr { args: GetattrIn }
    /// Answered with [`AttrOut`].
    4 Setattr { args: SetattrIn }
    /// Answered with the link's target.
    5 Readlink {}
    /// Answered with [`EntryOut`].
    6 Symlink { name: Text<'a>, target: Text<'a> }
    /// Answered with [`EntryOut`].
    8 Mknod { args: MknodIn, name: Text<'a> }
    /// Answered with [`EntryOut`].
    9 Mkdir { args: MkdirIn, name: Text<'a> }
    /// Removes a name of a file that is not a directory.
    10 Unlink { name: Text<'a> }
    /// Removes an empty directory.
    11 Rmdir { name: Text<'a> }
    /// Moves a file to another directory and name.
    12 Rename { args: RenameIn, name: Text<'a>, newname: Text<'a> }
    /// Adds a hard link. Answered with [`EntryOut`].
    13 Link { args: LinkIn, name: Text<'a> }
    /// Answered with [`OpenOut`].
    14 Open { args: OpenIn }
    /// Answered with the bytes read.
    15 Read { args: ReadIn }
    /// The payload follows at [`WRITE_HEAD`]. Answered with [`WriteOut`].
    16 Write { args: WriteIn }
    /// Answered with [`StatFs`].
    17 Statfs {}
    /// Closes an open file.
    18 Release { args: ReleaseIn }
    /// fsync(2).
    20 Fsync { args: FsyncIn }
    /// The value is `args.size` bytes long.
    21 Setxattr { args: SetxattrIn, name: Text<'a>, value: Rest<'a> }
    /// Answered with the value, or with [`GetxattrOut`] if `args.size` is 0.
    22 Getxattr { args: GetxattrIn, name: Text<'a> }
    /// Answered with NUL-terminated names, or with [`GetxattrOut`] if `args.size` is 0.
    23 Listxattr { args: GetxattrIn }
    /// Removes an extended attribute.
    24 Removexattr { name: Text<'a> }
    /// A process closed a descriptor of an open file.
    25 Flush { args: FlushIn }
    /// The first request. Answered with [`InitOut`].
    26 Init { args: InitIn }
    /// Answered with [`OpenOut`].
    27 Opendir { args: OpenIn }
    /// Answered with entries of [`crate::dirent`].
    28 Readdir { args: ReadIn }
    /// Closes an open directory.
    29 Releasedir { args: ReleaseIn }
    /// fsync(2) of a directory.
    30 Fsyncdir { args: FsyncIn }
    /// Finds a conflicting lock. Answered with [`LkOut`].
    31 Getlk { args: LkIn }
    /// Locks or unlocks without waiting.
    32 Setlk { args: LkIn }
    /// Locks, and waits until no other lock conflicts.
    33 Setlkw { args: LkIn }
    /// access(2).
    34 Access { args: AccessIn }
    /// Answered with [`EntryOut`] and [`OpenOut`].
    35 Create { args: CreateIn, name: Text<'a> }
    /// Cancels another request. Has no reply.
    36 Interrupt { args: InterruptIn }
    /// Maps a block of a file to one of its device.
    37 Bmap { args: BmapIn }
    /// The last request.
    38 Destroy {}
    /// ioctl(2).
    39 Ioctl { args: IoctlIn, input: Rest<'a> }
    /// poll(2).
    40 Poll { args: PollIn }
    /// The reply to a server's retrieve notification. Has no reply itself.
    41 NotifyReply { data: Rest<'a> }
    /// Takes back look-ups of `args.count` nodes. Has no reply.
    42 BatchForget { args: BatchForgetIn, forgets: Rest<'a> }
    /// fallocate(2).
    43 Fallocate { args: FallocateIn }
    /// Answered with entries of [`crate::dirent`], each of them looked up.
    44 Readdirplus { args: ReadIn }
    /// renameat2(2).
    45 Rename2 { args: Rename2In, name: Text<'a>, newname: Text<'a> }
    /// Finds data or a hole. Answered with [`LseekOut`].
    46 Lseek { args: LseekIn }
    /// Answered with [`WriteOut`].
    47 CopyFileRange { args: CopyIn }
    /// Maps a part of a file into the DAX window.
    48 Setupmapping { data: Rest<'a> }
    /// Removes DAX mappings.
    49 Removemapping { data: Rest<'a> }
    /// syncfs(2).
    50 Syncfs {}
    /// Makes an unnamed file; `name` is ignored. Answered as CREATE is.
    51 Tmpfile { args: CreateIn, name: Text<'a> }
    /// Answered with [`StatxOut`].
    52 Statx { args: StatxIn }
    /// Answered with [`CopyOut`].
    53 CopyFileRange64 { args: CopyIn }
}

impl Opcode {
    /// Returns whether the request has no reply.
    pub const fn is_silent(self) -> bool {
        matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply
        )
    }
}

impl<'a> Request<'a> {
    /// Decodes a whole message; of a WRITE the first [`WRITE_HEAD`] bytes suffice.
    pub fn decode(
        form: WireFormat,
        message: &'a [u8],
    ) -> Result<(Header, Request<'a>), DecodeError> {
        let header = Header::decode(message).map_err(DecodeError::Frame)?;
        let opcode = Opcode::of(header.opcode).ok_or(DecodeError::Opcode(header.opcode))?;
        let malformed = |what| DecodeError::Arguments(opcode.name(), what);
        let end = match opcode {
            Opcode::Write => WRITE_HEAD,
            _ => extensions_at(&header).map_err(malformed)?,
        };
        let arguments = message.get(HEADER..end).ok_or_else(|| {
            let announced = format!("expected {end} bytes, got {}", message.len());
            DecodeError::Frame(Malformed::new(announced))
        })?;
        let request = Request::arguments(opcode, form, &mut Reader::new(arguments));
        let request = request.map_err(malformed)?;
        if let Request::Write { args } = &request
            && WRITE_HEAD + args.size as usize > header.len as usize
        {
            return Err(malformed(Malformed::new(format!(
                "expected a payload of {} bytes, got a message of {}",
                args.size, header.len
            ))));
        }
        Ok((header, request))
    }

    /// Appends the encoded message to `to`, except for the payload of a WRITE.
    pub fn encode(&self, form: WireFormat, header: Header, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend_from_slice(&[0; HEADER]);
        self.put(form, to);
        let payload = match self {
            Request::Write { args } => args.size as usize,
            _ => 0,
        };
        let header = Header {
            len: (to.len() - begin + payload) as u32,
            opcode: self.opcode() as u32,
            total_extlen: 0,
            ..header
        };
        to[begin..begin + HEADER].copy_from_slice(&header.encode());
    }
}

/// Returns the offset of a message's extensions, which is the end of its arguments.
fn extensions_at(header: &Header) -> Result<usize, Malformed> {
    let extensions = usize::from(header.total_extlen) * 8;
    (header.len as usize)
        .checked_sub(extensions)
        .filter(|&at| at >= HEADER)
        .ok_or_else(|| {
            Malformed::new(format!(
                "expected a message with {extensions} bytes of extensions, got one of {}",
                header.len
            ))
        })
}

/// The decoded extensions of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The caller's relevant supplementary groups.
    pub groups: Option<Vec<u32>>,
    /// The security contexts of the file to be made.
    pub contexts: Vec<SecurityContext<'a>>,
}

/// A security context that the client's LSM assigns to a file to be made: the name and value of an
/// extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SecurityContext<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
}

/// Decodes a message's extensions. Extensions of unknown types are skipped; of several of one type
/// the last is used.
pub fn extensions<'a>(header: &Header, message: &'a [u8]) -> Result<Extensions<'a>, Malformed> {
    let mut extensions = Extensions::default();
    if header.total_extlen == 0 {
        return Ok(extensions);
    }
    let mut from = Reader::new(message);
    from.bytes(extensions_at(header)?)?;
    while !from.rest().is_empty() {
        let extension = ExtHeader::take(&mut from)?;
        let body = (extension.size as usize)
            .checked_sub(ExtHeader::SIZE)
            .ok_or_else(|| Malformed::new("expected an extension, got one without a header"))?;
        let mut body = Reader::new(from.bytes(body)?);
        match extension.kind {
            EXT_GROUPS => {
                let count = body.u32()? as usize;
                let groups = Reader::new(body.bytes(count.saturating_mul(4))?);
                let groups = groups.rest().as_chunks().0.iter();
                extensions.groups = Some(groups.map(|id| u32::from_le_bytes(*id)).collect());
            }
            count @ 0..=MAX_SECURITY_CONTEXTS => {
                let contexts = (0..count).map(|_| security_context(&mut body));
                extensions.contexts = contexts.collect::<Result<_, _>>()?;
            }
            _ => {}
        }
        padded(&mut from, extension.size as usize)?;
    }
    Ok(extensions)
}

fn security_context<'a>(from: &mut Reader<'a>) -> Result<SecurityContext<'a>, Malformed> {
    let begin = from.rest().len();
    let head = SecctxHead::take(from)?;
    let Text(name) = Text::get(from, WireFormat::default())?;
    let value = from.bytes(head.size as usize)?;
    padded(from, begin - from.rest().len())?;
    Ok(SecurityContext { name, value })
}

/// Skips the padding after a field of `len` bytes, which ends at a multiple of 8.
fn padded(from: &mut Reader<'_>, len: usize) -> Result<(), Malformed> {
    let padding = (8 - len % 8) % 8;
    from.bytes(padding.min(from.rest().len())).map(drop)
}

/// An argument of a request.
trait Argument<'a>: Sized {
    fn get(from: &mut Reader<'a>, form: WireFormat) -> Result<Self, Malformed>;

    fn append(&self, form: WireFormat, to: &mut Vec<u8>);
}

impl<'a, T: Field> Argument<'a> for T {
    #[inline]
    fn get(from: &mut Reader<'a>, _: WireFormat) -> Result<T, Malformed> {
        T::take(from)
    }

    fn append(&self, _: WireFormat, to: &mut Vec<u8>) {
        let begin = to.len();
        to.resize(begin + T::BYTES, 0);
        self.put(&mut to[begin..]);
    }
}

/// A name, or the target of a symbolic link: NUL-terminated on the wire, without the NUL here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a>(pub &'a [u8]);

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<'a> Argument<'a> for Text<'a> {
    fn get(from: &mut Reader<'a>, _: WireFormat) -> Result<Text<'a>, Malformed> {
        let rest = from.rest();
        let end = rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or_else(|| Malformed::new(format!("expected a NUL within {} bytes", rest.len())))?;
        from.bytes(end + 1)?;
        Ok(Text(&rest[..end]))
    }

    fn append(&self, _: WireFormat, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0);
        to.push(0);
    }
}

/// All remaining bytes of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest<'a>(pub &'a [u8]);

impl<'a> Argument<'a> for Rest<'a> {
    fn get(from: &mut Reader<'a>, _: WireFormat) -> Result<Rest<'a>, Malformed> {
        from.bytes(from.rest().len()).map(Rest)
    }

    fn append(&self, _: WireFormat, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0);
    }
}

/// `fuse_setxattr_in`. The additional fields of the longer structure are 0 in the shorter one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetxattrIn {
    pub size: u32,
    pub flags: u32,
    pub setxattr_flags: u32,
}

impl<'a> Argument<'a> for SetxattrIn {
    fn get(from: &mut Reader<'a>, form: WireFormat) -> Result<SetxattrIn, Malformed> {
        let mut args = SetxattrIn {
            size: from.u32()?,
            flags: from.u32()?,
            setxattr_flags: 0,
        };
        if form.setxattr_ext {
            args.setxattr_flags = from.u32()?;
            from.u32()?;
        }
        Ok(args)
    }

    fn append(&self, form: WireFormat, to: &mut Vec<u8>) {
        for number in [self.size, self.flags] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        if form.setxattr_ext {
            to.extend_from_slice(&self.setxattr_flags.to_le_bytes());
            to.extend_from_slice(&[0; 4]);
        }
    }
}

/// `fuse_init_in`. With another major version only the version fields are known; a kernel that does
/// not offer [`InitFlags::INIT_EXT`] sends no `flags2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: InitFlags,
}

impl<'a> Argument<'a> for InitIn {
    fn get(from: &mut Reader<'a>, _: WireFormat) -> Result<InitIn, Malformed> {
        let (major, minor) = (from.u32()?, from.u32()?);
        let mut args = InitIn {
            major,
            minor,
            max_readahead: 0,
            flags: InitFlags::empty(),
        };
        if major == crate::numbers::MAJOR {
            args.max_readahead = from.u32()?;
            args.flags = InitFlags::from_bits_retain(from.u32()?.into());
            if args.flags.contains(InitFlags::INIT_EXT) {
                let more = u64::from(from.u32()?) << 32;
                args.flags |= InitFlags::from_bits_retain(more);
                from.bytes(InitIn::UNUSED)?;
            }
        }
        Ok(args)
    }

    fn append(&self, _: WireFormat, to: &mut Vec<u8>) {
        let flags = self.flags.bits();
        for number in [self.major, self.minor, self.max_readahead, flags as u32] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        if self.flags.contains(InitFlags::INIT_EXT) {
            to.extend_from_slice(&((flags >> 32) as u32).to_le_bytes());
            to.resize(to.len() + InitIn::UNUSED, 0);
        }
    }
}

impl InitIn {
    /// Reserved bytes after `flags2`.
    const UNUSED: usize = 44;
}

#[cfg(test)]
mod tests;
