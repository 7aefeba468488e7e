//! A client half with an untrusted server: the input determines requests and replies.
//!
//! Invariants: an accepted reply belongs to its request, is no larger than requested, and can be
//! decoded; its contents are valid for the file-system traits; no tag is allocated while in use.

use std::collections::HashMap;

use arbitrary::{Result, Unstructured};
use p9::client::{Client, Received, attr, dir, error};
use p9::message::{DATA_HEAD, HEADER, Header};
use p9::{Data, Dialect, Fid, Kind, Names, Qid, QidType, Qids, Rmessage, Stat, Tag, Tmessage, Uid};
use vfs::{Errno, Name};
use wire::Reader;

const MSIZE: u32 = 8192;

/// Plays the script `data`.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let Some(client) = agreed(input)? else {
        return Ok(());
    };
    let mut peer = Peer {
        client,
        held: HashMap::new(),
    };
    while !input.is_empty() {
        match input.arbitrary::<u8>()? % 8 {
            0..=2 => peer.ask(input)?,
            3 => peer.cancel(input)?,
            4 => peer.release(input)?,
            5 => {
                let bytes = raw(input)?;
                if !peer.receive(&bytes) {
                    return Ok(());
                }
            }
            _ => {
                let bytes = peer.reply(input)?;
                if !peer.receive(&bytes) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Creates a client that has received the server's first message, if that is acceptable.
fn agreed(input: &mut Unstructured<'_>) -> Result<Option<Client>> {
    let offered = *input.choose(&Dialect::ALL)?;
    let mut client = Client::new(offered, MSIZE).with_fd_passing();
    let mut hello = Vec::new();
    client.version_request(&mut hello);
    let told = match input.arbitrary::<u8>()? % 6 {
        0 => raw(input)?,
        number => {
            let version = match number {
                4 => Dialect::FD_PASSING,
                5 => "unknown",
                _ => Dialect::ALL[usize::from(number) - 1].version(),
            };
            let version = Rmessage::Version {
                msize: *input.choose(&[MSIZE, 4096, 256, 255, u32::MAX])?,
                version: version.as_bytes(),
            };
            let mut bytes = Vec::new();
            version.encode(offered, Tag::NONE, &mut bytes);
            bytes
        }
    };
    if client.frame(&told) != Ok(Some(told.len())) || client.negotiate(&told) != Ok(true) {
        return Ok(None);
    }
    assert!((Client::MIN_MSIZE..=MSIZE).contains(&client.msize()));
    assert!(client.payload() < client.msize());
    Ok(Some(client))
}

/// Takes a message from the input, with its size field corrected.
fn raw(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let size: u32 = input.arbitrary()?;
    let rest = input.bytes((size as usize).saturating_sub(4).min(input.len()))?;
    Ok([&(rest.len() as u32 + 4).to_le_bytes(), rest].concat())
}

struct Peer {
    client: Client,
    /// Allocated tags: the request, and whether it is answered.
    held: HashMap<u16, Asked>,
}

struct Asked {
    kind: Kind,
    most: usize,
    answered: bool,
}

impl Peer {
    fn ask(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let fid = match self.client.new_fid() {
            Ok(fid) => fid,
            Err(errno) => panic!("no fid: {errno}"),
        };
        let count: u32 = *input.choose(&[0, 1, 100, 4000])?;
        let names = [&b"a"[..]; Names::MAX];
        let request = match input.arbitrary::<u8>()? % 15 {
            0 => Tmessage::Read {
                fid,
                offset: 0,
                count,
            },
            1 => Tmessage::Readdir {
                fid,
                offset: 0,
                count,
            },
            2 => Tmessage::Write {
                fid,
                offset: 0,
                data: Data(&[7; 4000][..count as usize]),
            },
            3 => Tmessage::Walk {
                fid,
                newfid: fid,
                names: Names::new(&names[..count as usize % (Names::MAX + 1)]),
            },
            4 => Tmessage::Clunk { fid },
            5 => Tmessage::Getattr {
                fid,
                mask: attr::REQUEST_MASK,
            },
            6 => Tmessage::Stat { fid },
            7 => Tmessage::Attach {
                fid,
                afid: Fid::NONE,
                uname: b"u",
                aname: b"",
                n_uname: Uid(0),
            },
            8 => Tmessage::Lopen { fid, flags: 0 },
            9 => Tmessage::Open { fid, mode: 0 },
            10 => Tmessage::Readlink { fid },
            11 => Tmessage::Statfs { fid },
            12 => Tmessage::Getlock {
                fid,
                kind: 1,
                start: 0,
                length: 0,
                proc_id: 1,
                client_id: b"c",
            },
            13 => Tmessage::Remove { fid },
            _ => Tmessage::Hand { fid },
        };
        let mut head = Vec::new();
        let asked = self.client.request(&request, &mut head);
        let kind = request.kind();
        let fits = request.size(self.client.dialect()) <= self.client.msize() as usize;
        let (tag, payload) = match asked {
            Ok(asked) => asked,
            Err(Errno::EOPNOTSUPP) if !kind.is_in(self.client.dialect()) => return Ok(()),
            Err(Errno::EOPNOTSUPP) if kind == Kind::Hand && !self.client.has_fd_passing() => {
                return Ok(());
            }
            Err(Errno::EMSGSIZE) if !fits => return Ok(()),
            Err(errno) => panic!("{request:?}: {errno}"),
        };
        assert_eq!(
            head.len() + payload.len(),
            request.size(self.client.dialect())
        );
        assert!(kind.is_in(self.client.dialect()) && fits);
        let most = match request {
            Tmessage::Walk { names, .. } => names.len(),
            _ => count as usize,
        };
        let before = self.held.insert(
            tag.0,
            Asked {
                kind,
                most,
                answered: false,
            },
        );
        assert!(before.is_none(), "{tag:?} is in use");
        Ok(())
    }

    fn cancel(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let tag = Tag(input.int_in_range(0..=4)?);
        let mut flush = Vec::new();
        if self.client.cancel(tag, &mut flush) {
            let decoded = Tmessage::decode(self.client.dialect(), &flush);
            assert!(matches!(decoded, Ok((_, Tmessage::Flush { oldtag })) if oldtag == tag));
        }
        Ok(())
    }

    /// Releases a tag, like a caller that has its reply or does not want it.
    fn release(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let tag = Tag(input.int_in_range(0..=4)?);
        if self.held.get(&tag.0).is_some_and(|asked| asked.answered) {
            self.held.remove(&tag.0);
            self.client.release(tag);
        }
        Ok(())
    }

    /// Builds a message that may be a reply to one of the requests.
    fn reply(&mut self, input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let dialect = self.client.dialect();
        let flush = if input.ratio(1, 4)? { 0x8000 } else { 0 };
        let tag = Tag(input.int_in_range(0..=4)? | flush);
        let asked = self
            .held
            .get(&tag.0)
            .map_or(Kind::Flush, |asked| asked.kind);
        let qid = Qid {
            kind: QidType::from_bits_retain(input.arbitrary()?),
            version: input.arbitrary()?,
            path: u64::from(input.arbitrary::<u8>()?),
        };
        let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
        let bytes = input.bytes(len)?;
        let qids = [qid; 16];
        let reply = match asked {
            Kind::Read => Rmessage::Read { data: Data(bytes) },
            Kind::Readdir => Rmessage::Readdir { data: Data(bytes) },
            Kind::Write => Rmessage::Write {
                count: bytes.len() as u32,
            },
            Kind::Walk => Rmessage::Walk {
                qids: Qids::new(&qids[..len % 17]),
            },
            Kind::Clunk => Rmessage::Clunk {},
            Kind::Remove => Rmessage::Remove {},
            Kind::Hand => Rmessage::Hand {},
            Kind::Flush => Rmessage::Flush {},
            Kind::Attach => Rmessage::Attach { qid },
            Kind::Readlink => Rmessage::Readlink { target: bytes },
            Kind::Stat => Rmessage::Stat {
                stat: Stat {
                    qid,
                    mode: input.arbitrary()?,
                    name: bytes,
                    uid: bytes,
                    ..Stat::UNTOUCHED
                },
            },
            // Other kinds with any bytes as contents.
            kind => {
                let head = Header {
                    size: (HEADER + bytes.len()) as u32,
                    number: kind.reply(),
                    tag,
                };
                return Ok([&head.encode(), bytes].concat());
            }
        };
        let mut message = Vec::new();
        reply.encode(dialect, tag, &mut message);
        Ok(message)
    }

    /// Receives a message; returns whether the connection continues.
    fn receive(&mut self, message: &[u8]) -> bool {
        match self.client.frame(message) {
            Ok(Some(len)) if len == message.len() => {}
            Ok(_) | Err(_) => return false,
        }
        let apart = self.client.separate_payload(message);
        let received = self.client.receive(message);
        if let Some((tag, len)) = apart {
            // A payload received in place must be accepted exactly as in a complete message.
            assert_eq!(DATA_HEAD + len, message.len());
            let result = Ok(());
            assert_eq!(received, Ok(Received::Answer { tag, result }));
        }
        let (tag, result) = match received {
            Ok(Received::Answer { tag, result }) => (tag, result),
            Ok(Received::TooLate) => return true,
            Err(malformed) => {
                drop(malformed.to_string());
                return false;
            }
        };
        let asked = self.held.get_mut(&tag.0).expect("somebody asked");
        assert!(!asked.answered, "answered twice");
        asked.answered = true;
        match result {
            Ok(()) => {
                let decoded = Rmessage::decode(self.client.dialect(), message);
                let (got, reply) = decoded.expect("it was checked");
                assert_eq!((got, reply.kind()), (tag, asked.kind));
                assert_eq!(error::errno_of(&reply), None);
                check_contents(&reply, asked.most, self.client.dialect());
            }
            Err(errno) => assert!(!errno.is_signal(), "{errno:?} is not a server's to say"),
        }
        true
    }
}

/// Checks that a reply's contents are valid for the file-system traits.
fn check_contents(reply: &Rmessage<'_>, most: usize, dialect: Dialect) {
    match reply {
        Rmessage::Read { data } => {
            assert!(data.0.len() <= most);
            let mut records = Reader::new(data.0);
            while let Ok(Some(stat)) = dir::record(&mut records, dialect) {
                check_name(stat.name);
                check_attr(&attr::of_stat(&stat, dialect));
            }
        }
        Rmessage::Readdir { data } => {
            assert!(data.0.len() <= most);
            for entry in dir::entries(data.0).map_while(|entry| entry.ok()) {
                check_name(entry.name);
                assert!(entry.id != 0 && entry.offset != 0);
            }
        }
        Rmessage::Write { count } => assert!(*count as usize <= most),
        Rmessage::Walk { qids } => assert!(qids.len() <= most),
        Rmessage::Stat { stat } => check_attr(&attr::of_stat(stat, dialect)),
        Rmessage::Getattr { .. } => {
            if let Ok(attr) = attr::of_getattr(reply) {
                check_attr(&attr);
            }
        }
        _ => {}
    }
}

fn check_name(name: &[u8]) {
    assert!(matches!(name, b"." | b"..") || Name::new(name).is_ok());
}

/// Checks the attributes that every node has.
pub(crate) fn check_attr(attr: &vfs::Attr) {
    assert_ne!(attr.id, 0);
    assert_eq!(attr.mode & !0o7777, 0);
    assert!(attr.blksize >= 512);
    for time in [attr.atime, attr.mtime, attr.ctime] {
        assert!(time.nsec < 1_000_000_000);
    }
}
