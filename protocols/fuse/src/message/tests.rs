//! Golden bytes of every request, truncation, and round trips.

use proptest::prelude::*;

use super::*;

const FORM: WireFormat = WireFormat { setxattr_ext: true };

fn header() -> Header {
    Header {
        unique: 0x1112,
        nodeid: 0x21,
        uid: 0x31,
        gid: 0x41,
        pid: 0x51,
        ..Header::default()
    }
}

/// Returns each request with its arguments in hexadecimal.
fn requests() -> Vec<(Request<'static>, &'static str)> {
    use Request as R;
    let name = Text(b"ab");
    let newname = Text(b"c");
    let create = CreateIn {
        flags: 1,
        mode: 2,
        umask: 3,
        open_flags: 4,
    };
    let fsync = FsyncIn {
        fh: 1,
        fsync_flags: 2,
    };
    let lk = LkIn {
        fh: 1,
        owner: 2,
        start: 3,
        end: 4,
        kind: 5,
        pid: 6,
        lk_flags: 7,
    };
    let lk_hex = "0100000000000000 0200000000000000 0300000000000000 0400000000000000 05000000 06000000 07000000 00000000";
    let read = ReadIn {
        fh: 1,
        offset: 2,
        size: 3,
        read_flags: 4,
        lock_owner: 5,
        flags: 6,
    };
    let read_hex =
        "0100000000000000 0200000000000000 03000000 04000000 0500000000000000 06000000 00000000";
    let release = ReleaseIn {
        fh: 1,
        flags: 2,
        release_flags: 3,
        lock_owner: 4,
    };
    let release_hex = "0100000000000000 02000000 03000000 0400000000000000";
    let copy = CopyIn {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 3,
        fh_out: 4,
        off_out: 5,
        len: 6,
        flags: 7,
    };
    let copy_hex = "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000 0600000000000000 0700000000000000";
    let open = OpenIn {
        flags: 1,
        open_flags: 2,
    };
    vec![
        (R::Lookup { name }, "616200"),
        (
            R::Forget {
                args: ForgetIn { nlookup: 1 },
            },
            "0100000000000000",
        ),
        (
            R::Getattr {
                args: GetattrIn {
                    getattr_flags: 1,
                    fh: 2,
                },
            },
            "01000000 00000000 0200000000000000",
        ),
        (
            R::Setattr {
                args: SetattrIn {
                    valid: 1,
                    fh: 2,
                    size: 3,
                    lock_owner: 4,
                    atime: 5,
                    mtime: 6,
                    ctime: 7,
                    atimensec: 8,
                    mtimensec: 9,
                    ctimensec: 10,
                    mode: 11,
                    uid: 12,
                    gid: 13,
                },
            },
            "01000000 00000000 0200000000000000 0300000000000000 0400000000000000
             0500000000000000 0600000000000000 0700000000000000 08000000 09000000 0a000000
             0b000000 00000000 0c000000 0d000000 00000000",
        ),
        (R::Readlink {}, ""),
        (
            R::Symlink {
                name,
                target: newname,
            },
            "616200 6300",
        ),
        (
            R::Mknod {
                args: MknodIn {
                    mode: 1,
                    rdev: 2,
                    umask: 3,
                },
                name,
            },
            "01000000 02000000 03000000 00000000 616200",
        ),
        (
            R::Mkdir {
                args: MkdirIn { mode: 1, umask: 2 },
                name,
            },
            "01000000 02000000 616200",
        ),
        (R::Unlink { name }, "616200"),
        (R::Rmdir { name }, "616200"),
        (
            R::Rename {
                args: RenameIn { newdir: 1 },
                name,
                newname,
            },
            "0100000000000000 616200 6300",
        ),
        (
            R::Link {
                args: LinkIn { oldnodeid: 1 },
                name,
            },
            "0100000000000000 616200",
        ),
        (R::Open { args: open }, "01000000 02000000"),
        (R::Read { args: read }, read_hex),
        (
            R::Write {
                args: WriteIn {
                    fh: 1,
                    offset: 2,
                    size: 3,
                    write_flags: 4,
                    lock_owner: 5,
                    flags: 6,
                },
            },
            read_hex,
        ),
        (R::Statfs {}, ""),
        (R::Release { args: release }, release_hex),
        (
            R::Fsync { args: fsync },
            "0100000000000000 02000000 00000000",
        ),
        (
            R::Setxattr {
                args: SetxattrIn {
                    size: 2,
                    flags: 3,
                    setxattr_flags: 4,
                },
                name,
                value: Rest(b"xy"),
            },
            "02000000 03000000 04000000 00000000 616200 7879",
        ),
        (
            R::Getxattr {
                args: GetxattrIn { size: 1 },
                name,
            },
            "01000000 00000000 616200",
        ),
        (
            R::Listxattr {
                args: GetxattrIn { size: 1 },
            },
            "01000000 00000000",
        ),
        (R::Removexattr { name }, "616200"),
        (
            R::Flush {
                args: FlushIn {
                    fh: 1,
                    lock_owner: 2,
                },
            },
            "0100000000000000 0000000000000000 0200000000000000",
        ),
        (
            R::Init {
                args: InitIn {
                    major: 7,
                    minor: 2,
                    max_readahead: 3,
                    flags: InitFlags::from_bits_retain(5),
                },
            },
            "07000000 02000000 03000000 05000000",
        ),
        (
            R::Init {
                args: InitIn {
                    major: 7,
                    minor: 2,
                    max_readahead: 3,
                    flags: InitFlags::INIT_EXT | InitFlags::CREATE_SUPP_GROUP,
                },
            },
            "07000000 02000000 03000000 00000040 04000000 0000000000000000000000000000000000000000
             000000000000000000000000000000000000000000000000",
        ),
        (R::Opendir { args: open }, "01000000 02000000"),
        (R::Readdir { args: read }, read_hex),
        (R::Releasedir { args: release }, release_hex),
        (
            R::Fsyncdir { args: fsync },
            "0100000000000000 02000000 00000000",
        ),
        (R::Getlk { args: lk }, lk_hex),
        (R::Setlk { args: lk }, lk_hex),
        (R::Setlkw { args: lk }, lk_hex),
        (
            R::Access {
                args: AccessIn { mask: 1 },
            },
            "01000000 00000000",
        ),
        (
            R::Create { args: create, name },
            "01000000 02000000 03000000 04000000 616200",
        ),
        (
            R::Interrupt {
                args: InterruptIn { unique: 1 },
            },
            "0100000000000000",
        ),
        (
            R::Bmap {
                args: BmapIn {
                    block: 1,
                    blocksize: 2,
                },
            },
            "0100000000000000 02000000 00000000",
        ),
        (R::Destroy {}, ""),
        (
            R::Ioctl {
                args: IoctlIn {
                    fh: 1,
                    flags: 2,
                    cmd: 3,
                    arg: 4,
                    in_size: 5,
                    out_size: 6,
                },
                input: Rest(b"x"),
            },
            "0100000000000000 02000000 03000000 0400000000000000 05000000 06000000 78",
        ),
        (
            R::Poll {
                args: PollIn {
                    fh: 1,
                    kh: 2,
                    flags: 3,
                    events: 4,
                },
            },
            "0100000000000000 0200000000000000 03000000 04000000",
        ),
        (R::NotifyReply { data: Rest(b"x") }, "78"),
        (
            R::BatchForget {
                args: BatchForgetIn { count: 1 },
                forgets: Rest(b"0123456789abcdef"),
            },
            "01000000 00000000 30313233343536373839616263646566",
        ),
        (
            R::Fallocate {
                args: FallocateIn {
                    fh: 1,
                    offset: 2,
                    length: 3,
                    mode: 4,
                },
            },
            "0100000000000000 0200000000000000 0300000000000000 04000000 00000000",
        ),
        (R::Readdirplus { args: read }, read_hex),
        (
            R::Rename2 {
                args: Rename2In {
                    newdir: 1,
                    flags: 2,
                },
                name,
                newname,
            },
            "0100000000000000 02000000 00000000 616200 6300",
        ),
        (
            R::Lseek {
                args: LseekIn {
                    fh: 1,
                    offset: 2,
                    whence: 3,
                },
            },
            "0100000000000000 0200000000000000 03000000 00000000",
        ),
        (R::CopyFileRange { args: copy }, copy_hex),
        (R::Setupmapping { data: Rest(b"x") }, "78"),
        (R::Removemapping { data: Rest(b"x") }, "78"),
        (R::Syncfs {}, ""),
        (
            R::Tmpfile { args: create, name },
            "01000000 02000000 03000000 04000000 616200",
        ),
        (
            R::Statx {
                args: StatxIn {
                    getattr_flags: 1,
                    fh: 2,
                    sx_flags: 3,
                    sx_mask: 4,
                },
            },
            "01000000 00000000 0200000000000000 03000000 04000000",
        ),
        (R::CopyFileRange64 { args: copy }, copy_hex),
    ]
}

/// Returns a whole message of `opcode` with the arguments given in hexadecimal.
fn golden(opcode: Opcode, payload: u32, arguments: &str) -> Vec<u8> {
    let digits: Vec<u8> = arguments
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let arguments = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("two hex digits")
    });
    let len = 40 + digits.len() as u32 / 2 + payload;
    let mut bytes = Vec::new();
    for word in [len, opcode as u32, 0x1112, 0, 0x21, 0, 0x31, 0x41, 0x51, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend(arguments);
    bytes
}

#[test]
fn requests_have_their_golden_bytes() {
    let mut missing = Opcode::ALL.to_vec();
    for (request, hex) in requests() {
        let opcode = request.opcode();
        missing.retain(|&other| other != opcode);
        let payload = if opcode == Opcode::Write { 3 } else { 0 };
        let bytes = golden(opcode, payload, hex);
        let mut encoded = Vec::new();
        request.encode(FORM, header(), &mut encoded);
        assert_eq!(encoded, bytes, "{request:?}");
        let decoded = Request::decode(FORM, &bytes).expect("a request");
        assert_eq!(decoded.1, request);
        assert_eq!((decoded.0.unique, decoded.0.nodeid), (0x1112, 0x21));
        assert_eq!(Opcode::of(opcode as u32), Some(opcode));
    }
    assert_eq!(missing, []);
}

#[test]
fn a_request_cut_short_is_refused_or_another() {
    for (request, hex) in requests() {
        let bytes = golden(request.opcode(), 3, hex);
        for len in 0..bytes.len() {
            let mut cut = bytes[..len].to_vec();
            // The header announces more bytes than follow.
            let announced = Request::decode(FORM, &cut);
            if request.opcode() != Opcode::Write {
                assert!(announced.is_err(), "{len} of {request:?}");
            }
            if let Some(size) = cut.first_chunk_mut() {
                *size = (len as u32).to_le_bytes();
            }
            if let Ok((_, other)) = Request::decode(FORM, &cut) {
                assert_ne!(other, request, "{len} of {request:?}");
            }
        }
    }
}

#[test]
fn the_shorter_setxattr_has_no_more_flags() {
    let request = Request::Setxattr {
        args: SetxattrIn {
            size: 1,
            flags: 2,
            setxattr_flags: 0,
        },
        name: Text(b"a"),
        value: Rest(b"x"),
    };
    let bytes = golden(Opcode::Setxattr, 0, "01000000 02000000 6100 78");
    let decoded = Request::decode(WireFormat::default(), &bytes).expect("a request");
    assert_eq!(decoded.1, request);
    let mut encoded = Vec::new();
    request.encode(WireFormat::default(), header(), &mut encoded);
    assert_eq!(encoded, bytes);
}

#[test]
fn a_write_holds_no_more_than_its_message() {
    let mut bytes = golden(Opcode::Write, 4, &"00".repeat(40));
    bytes[56] = 4;
    assert!(Request::decode(FORM, &bytes).is_ok());
    bytes[56] = 5;
    assert!(Request::decode(FORM, &bytes).is_err());
}

#[test]
fn extensions_are_no_arguments() {
    // An unknown extension, then one with two groups.
    let hex = "616200 1000000021000000 0000000000000000 14000000 20000000 02000000 07000000 08000000 00000000";
    let mut bytes = golden(Opcode::Lookup, 0, hex);
    bytes[36] = 5;
    let (header, request) = Request::decode(FORM, &bytes).expect("a request");
    assert_eq!(request, Request::Lookup { name: Text(b"ab") });
    let groups = Extensions {
        groups: Some(vec![7, 8]),
        contexts: vec![],
    };
    assert_eq!(extensions(&header, &bytes), Ok(groups));
    // More groups announced than present.
    bytes[67] = 3;
    assert!(extensions(&header, &bytes).is_err());
    // More extensions announced than the message is long.
    bytes[37] = 1;
    assert!(Request::decode(FORM, &bytes).is_err());
}

/// The layout of Linux's `get_security_context` (`fs/fuse/dir.c`).
#[test]
fn security_contexts_are_extensions() {
    // Two contexts of 3 and 2 bytes with names of 2 and 1, then an extension with none.
    let hex = "616200 \
        30000000 02000000 \
        03000000 00000000 7379 00 010203 0000 \
        02000000 00000000 7a 00 0405 00000000 00000000 00000000 \
        08000000 00000000";
    let mut bytes = golden(Opcode::Lookup, 0, hex);
    bytes[36] = 7;
    let (header, _) = Request::decode(FORM, &bytes).expect("a request");
    assert_eq!(extensions(&header, &bytes), Ok(Extensions::default()));
    // The last extension gets an unknown type.
    let last = bytes.len() - 4;
    bytes[last] = 40;
    let context = |name, value| SecurityContext { name, value };
    let contexts = vec![context(&b"sy"[..], &[1, 2, 3][..]), context(b"z", &[4, 5])];
    let expected = Extensions {
        groups: None,
        contexts,
    };
    assert_eq!(extensions(&header, &bytes), Ok(expected));
    // A context longer than its extension, then more contexts announced than present.
    for (at, wrong) in [(51, 200), (47, 31)] {
        let mut bytes = bytes.clone();
        bytes[at] = wrong;
        assert!(extensions(&header, &bytes).is_err(), "byte {at}");
    }
}

#[test]
fn another_major_version_has_fields_of_its_own() {
    let bytes = golden(Opcode::Init, 0, "08000000 01000000");
    let (_, request) = Request::decode(FORM, &bytes).expect("a request");
    let Request::Init { args } = request else {
        panic!("{request:?}");
    };
    assert_eq!((args.major, args.minor), (8, 1));
}

proptest! {
    #[test]
    fn decoding_never_panics(
        opcode in 0u32..60,
        extensions in 0u16..4,
        setxattr_ext: bool,
        tail in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let header = Header {
            len: (HEADER + tail.len()) as u32,
            opcode,
            total_extlen: extensions,
            ..Header::default()
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend(tail);
        let _ = Request::decode(WireFormat { setxattr_ext }, &bytes);
        let _ = super::extensions(&header, &bytes);
        let _ = Request::decode(WireFormat { setxattr_ext }, &bytes[..HEADER]);
        for plus in [false, true] {
            let mut from = Reader::new(&bytes);
            while let Ok(Some(_)) = crate::dirent::Dirent::next(plus, &mut from) {}
        }
    }
}
