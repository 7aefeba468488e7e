//! Requests of a guest to a block device, and of an NBD client, over a disk in memory.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use block::Disk;
use block::nbd::Server;
use block::virtio::Device;
use memory::Memory;
use vfs::{Call, Caller, Cx, Export};
use vfs_testkit::context::{TestNode, ok, run};
use vfs_testkit::{Message, clock, session};
use wire::{ServeOutcome, Session};

use crate::ROOM;

/// Plays the script `data`: each request is answered once, a device's with all of its buffer; an
/// NBD client that violates the protocol ends its connection alone.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

const SIZE: u64 = 64 << 10;

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    let root = TestNode {
        node: ok(run(&Caller::ROOT, |cx| export.fs.root(cx))),
        caller: Caller::ROOT,
    };
    ok(ok(root.file("disk", &[7; 4096])).truncate(SIZE));
    match input.arbitrary()? {
        true => guest(input, &export),
        false => client(input, export),
    }
}

fn guest(input: &mut Unstructured<'_>, export: &Export) -> Result<()> {
    let call = Call::detached();
    let disk = ok(Disk::open(
        &Cx::new(&Caller::ROOT, &call),
        export,
        b"disk",
        false,
    ));
    let device = Device::new(Arc::new(disk));
    while !input.is_empty() {
        let kind: u8 = input.arbitrary()?;
        let sector: u8 = input.arbitrary()?;
        let mut bytes = [u32::from(kind & 15).to_le_bytes(), [0; 4]].concat();
        bytes.extend(u64::from(sector).to_le_bytes());
        bytes.extend(piece(input)?);
        let room = 1 + usize::from(input.arbitrary::<u16>()? & 0x1fff);
        let framed = device.frame(&bytes).expect("a length").unwrap_or(0);
        let together = framed.min(bytes.len());
        let message = Message::with_separate_payload(bytes, together);
        let (answer, reply) =
            session::serve_patiently(&device, &call, &message, room).expect("an answer");
        assert_eq!((answer, reply.len()), (ServeOutcome::Done, room));
        assert!(reply[room - 1] <= 2, "a status that there is not");
    }
    Ok(())
}

fn client(input: &mut Unstructured<'_>, export: Arc<Export>) -> Result<()> {
    let connection = Server::new(export, false, Vec::new()).session();
    let mut bytes = 3u32.to_be_bytes().to_vec();
    while !input.is_empty() {
        match input.arbitrary::<u8>()? {
            0..=95 => {
                let data = piece(input)?;
                option(&mut bytes, input.arbitrary::<u8>()? & 15, data);
            }
            96..=127 => option(&mut bytes, 7, b"\0\0\0\x04disk\0\0"),
            128..=143 => bytes.extend(piece(input)?),
            kind => {
                let kind = kind % 9;
                let flags = input.arbitrary::<u8>()? & 31;
                let offset = u64::from(input.arbitrary::<u32>()? % (SIZE as u32 + 9));
                let data = piece(input)?;
                let len = match kind {
                    1 => data.len() as u32,
                    _ => input.arbitrary::<u32>()? % (SIZE as u32 + 9),
                };
                bytes.extend(0x2560_9513u32.to_be_bytes());
                bytes.extend([0, flags, 0, kind]);
                bytes.extend(*b"a cookie");
                bytes.extend(offset.to_be_bytes());
                bytes.extend(len.to_be_bytes());
                if kind == 1 {
                    bytes.extend(data);
                }
            }
        }
    }
    let mut rest = bytes.as_slice();
    while let Ok(Some(len)) = connection.frame(rest)
        && len <= rest.len()
    {
        let is_request = rest.starts_with(&0x2560_9513u32.to_be_bytes());
        let is_farewell = is_request && rest[7] == 2;
        let message = Message::new(rest[..len].to_vec());
        let call = Call::detached();
        let Ok((answer, reply)) = session::serve_patiently(&connection, &call, &message, ROOM)
        else {
            return Ok(());
        };
        assert_eq!(answer, ServeOutcome::Done);
        if is_request && !is_farewell {
            assert_eq!(reply.get(8..16), rest.get(8..16), "the cookie");
        }
        rest = &rest[len..];
    }
    Ok(())
}

fn option(bytes: &mut Vec<u8>, number: u8, data: &[u8]) {
    bytes.extend(b"IHAVEOPT");
    bytes.extend(u32::from(number).to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
}

/// Takes some bytes, at most 255.
fn piece<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
    input.bytes(len)
}
