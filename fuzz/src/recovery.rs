//! A session that continues with another server, as untrusted as the previous one: the input
//! determines requests and replies, when the server is lost, and the replies of the next one to the
//! recovery.
//!
//! Invariants: requests of a recovery are no longer than negotiated, and end; each request of the
//! client is answered once, by the server or from the record, or is sent again, by the client
//! itself if that has its payload.

use std::collections::{HashMap, HashSet};

use arbitrary::{Result, Unstructured};
use p9::message::{HEADER, Header, WRITE_HEAD};
use p9::recovery::{Failure, Record, RequestAction, Server, Unsent};
use p9::{Data, Dialect, Fid, Kind, Names, Qid, QidType, Qids, Rmessage, Tag, Tmessage, Uid};

const LINUX: Dialect = Dialect::Linux;
const MSIZE: u32 = 8192;

/// More requests than any recovery of a session that fits an input sends.
const MOST: usize = 1 << 16;

/// Plays the script `data`.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let mut session = Session::new();
    while !input.is_empty() {
        match input.arbitrary::<u8>()? % 8 {
            0..=2 => session.ask(input)?,
            3..=5 => session.answer(input)?,
            6 => session.lose(),
            _ => session.go_on(input)?,
        }
    }
    Ok(())
}

struct Session {
    record: Record,
    up: bool,
    /// Unanswered requests, with their kinds.
    flights: HashMap<u16, Kind>,
    /// Requests that were ever flushed: if not answered before, they may never be.
    flushed: HashSet<u16>,
}

impl Session {
    fn new() -> Session {
        let mut record = Record::default();
        let version = LINUX.version().as_bytes();
        let msize = MSIZE;
        let mut hello = Vec::new();
        Tmessage::Version { msize, version }.encode(LINUX, Tag::NONE, &mut hello);
        assert_eq!(record.on_request(hello, true), Ok(RequestAction::Send));
        let welcome = Rmessage::Version { msize, version };
        let noted = record.on_reply(&encoded(Tag::NONE, &welcome));
        noted.expect("it is one");
        Session {
            record,
            up: true,
            flights: HashMap::new(),
            flushed: HashSet::new(),
        }
    }

    fn ask(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let tag = input.int_in_range(0..=15)?;
        if self.flights.contains_key(&tag) {
            return Ok(());
        }
        let mut message = Vec::new();
        let (kind, flushed) = with_request(input, |request| {
            request.encode(LINUX, Tag(tag), &mut message);
            let flushed = match request {
                Tmessage::Flush { oldtag } => Some(oldtag.0),
                _ => None,
            };
            (request.kind(), flushed)
        })?;
        self.flushed.extend(flushed);
        let asked = if kind == Kind::Write && input.arbitrary()? {
            message.truncate(WRITE_HEAD);
            self.record.on_lent_write(message, self.up)
        } else {
            self.record.on_request(message, self.up)
        };
        match asked.expect("it is one") {
            RequestAction::Send => {
                assert!(self.up);
                self.flights.insert(tag, kind);
            }
            RequestAction::Wait => {
                assert!(!self.up);
                self.flights.insert(tag, kind);
            }
            RequestAction::Answer(answer) => {
                assert_eq!(tag_of(&answer), tag);
                assert!(Rmessage::decode(LINUX, &answer).is_ok());
            }
        }
        Ok(())
    }

    /// Receives a message from the server, perhaps a reply to a request.
    fn answer(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let tag = input.int_in_range(0..=15)?;
        if !self.up {
            return Ok(());
        }
        let kind = self.flights.remove(&tag).unwrap_or(Kind::Clunk);
        let reply = reply(input, kind, Tag(tag))?;
        let looked_at = Record::reply_bytes_needed(reply[4], reply.len());
        // The client handles a message that is not a reply.
        let _ = self.record.on_reply(&reply[..looked_at.min(reply.len())]);
        Ok(())
    }

    fn lose(&mut self) {
        if self.up {
            self.record.on_connection_lost();
            self.up = false;
        }
    }

    /// Connects another server.
    fn go_on(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if self.up || !self.record.is_recoverable() {
            return Ok(());
        }
        let mut recovery = self.record.begin();
        let mut other = Other { input, asked: 0 };
        let done = recovery.run(&mut other);
        let settled = self.record.end(recovery);
        self.answered(settled);
        if done.is_err() {
            return Ok(());
        }
        let Unsent {
            messages,
            answers,
            lent,
        } = self.record.unsent();
        let sent: Vec<_> = messages.iter().map(|message| tag_of(message)).collect();
        assert!(sent.iter().all(|tag| self.flights.contains_key(tag)));
        self.answered(answers);
        for tag in lent {
            let flight = self.flights.remove(&tag.0);
            assert_eq!(flight, Some(Kind::Write), "nobody lent it");
        }
        assert!(
            sent.iter().all(|tag| self.flights.contains_key(tag)),
            "answered and sent"
        );
        let flushed = &self.flushed;
        self.flights
            .retain(|tag, _| sent.contains(tag) || !flushed.contains(tag));
        assert_eq!(sent.len(), self.flights.len(), "neither");
        assert!(self.record.unsent() == Unsent::default());
        self.up = true;
        Ok(())
    }

    fn answered(&mut self, answers: Vec<Vec<u8>>) {
        for answer in answers {
            assert!(Rmessage::decode(LINUX, &answer).is_ok());
            let flight = self.flights.remove(&tag_of(&answer));
            assert!(flight.is_some(), "nobody waits for it");
        }
    }
}

/// The new server.
struct Other<'a, 'b> {
    input: &'a mut Unstructured<'b>,
    asked: usize,
}

impl Server for Other<'_, '_> {
    fn call(&mut self, requests: &[Tmessage<'_>]) -> std::result::Result<Vec<Vec<u8>>, Failure> {
        self.asked += requests.len();
        assert!(self.asked < MOST, "it does not end");
        let gone = |_| Failure::Temporary("the input is over".into());
        let answers = requests.iter().map(|request| {
            assert!(request.size(LINUX) <= MSIZE as usize, "{request:?}");
            if self.input.is_empty() {
                return Err(Failure::Temporary("the input is over".into()));
            }
            if let Tmessage::Version { .. } = request
                && self.input.ratio(15, 16).map_err(gone)?
            {
                let version = LINUX.version().as_bytes();
                let msize = MSIZE;
                return Ok(encoded(Tag::NONE, &Rmessage::Version { msize, version }));
            }
            reply(self.input, request.kind(), Tag(1)).map_err(gone)
        });
        answers.collect()
    }
}

fn encoded(tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    reply.encode(LINUX, tag, &mut message);
    message
}

fn tag_of(message: &[u8]) -> u16 {
    Header::decode(message).expect("a message").tag.0
}

/// Calls `to` with a request of a kind that sessions record.
fn with_request<T>(input: &mut Unstructured<'_>, to: impl FnOnce(&Tmessage<'_>) -> T) -> Result<T> {
    const WORDS: [&[u8]; 6] = [b"a", b"b", b"c", b".", b"..", b""];
    let fid = Fid(input.int_in_range(0..=4)?);
    let other = Fid(input.int_in_range(0..=4)?);
    let [name, second] = [*input.choose(&WORDS)?, *input.choose(&WORDS)?];
    let number: u32 = *input.choose(&[0, 1, 2, 0o102, 0o302, 0o2001, 4096, u32::MAX])?;
    let words = [name, second];
    Ok(to(&match input.arbitrary::<u8>()? % 20 {
        0 | 1 => Tmessage::Attach {
            fid,
            afid: Fid::NONE,
            uname: name,
            aname: b"",
            n_uname: Uid(number % 3),
        },
        2..=4 => Tmessage::Walk {
            fid,
            newfid: other,
            names: Names::new(&words[..number as usize % 3]),
        },
        5 => Tmessage::Lopen { fid, flags: number },
        6 => Tmessage::Lcreate {
            fid,
            name,
            flags: number,
            mode: 0o644,
            gid: 0,
        },
        7 => Tmessage::Clunk { fid },
        8 => Tmessage::Remove { fid },
        9 => Tmessage::Renameat {
            olddirfid: fid,
            oldname: name,
            newdirfid: other,
            newname: second,
        },
        10 => Tmessage::Rename {
            fid,
            dfid: other,
            name,
        },
        11 => Tmessage::Unlinkat {
            dirfid: fid,
            name,
            flags: number,
        },
        12 => Tmessage::Mkdir {
            dfid: fid,
            name,
            mode: number,
            gid: 0,
        },
        13 => Tmessage::Symlink {
            fid,
            name,
            target: second,
            gid: 0,
        },
        14 => Tmessage::Link {
            dfid: fid,
            fid: other,
            name,
        },
        15 => Tmessage::Lock {
            fid,
            kind: (number % 4) as u8,
            flags: 0,
            start: number.into(),
            length: u64::from(number / 2),
            proc_id: 1,
            client_id: name,
        },
        16 => Tmessage::Xattrwalk {
            fid,
            newfid: other,
            name,
        },
        17 => Tmessage::Xattrcreate {
            fid,
            name,
            size: u64::from(number),
            flags: 0,
        },
        18 => Tmessage::Write {
            fid,
            offset: number.into(),
            data: Data(second),
        },
        _ => Tmessage::Flush {
            oldtag: Tag((number % 16) as u16),
        },
    }))
}

/// Builds a reply to a request of this kind, or an error, or a malformed reply.
fn reply(input: &mut Unstructured<'_>, kind: Kind, tag: Tag) -> Result<Vec<u8>> {
    let qid = Qid {
        kind: *input.choose(&[QidType::DIR, QidType::empty()])?,
        version: 0,
        path: u64::from(input.arbitrary::<u8>()? % 8),
    };
    let qids = [qid; 16];
    let count: u8 = input.arbitrary()?;
    let sound = match kind {
        _ if count >= 240 => Rmessage::Lerror {
            errno: u32::from(input.arbitrary::<u8>()?),
        },
        Kind::Attach => Rmessage::Attach { qid },
        Kind::Walk => Rmessage::Walk {
            qids: Qids::new(&qids[..usize::from(count % 4)]),
        },
        Kind::Lopen => Rmessage::Lopen { qid, iounit: 0 },
        Kind::Lcreate => Rmessage::Lcreate { qid, iounit: 0 },
        Kind::Clunk => Rmessage::Clunk {},
        Kind::Remove => Rmessage::Remove {},
        Kind::Flush => Rmessage::Flush {},
        Kind::Lock => Rmessage::Lock { status: count % 4 },
        Kind::Xattrwalk => Rmessage::Xattrwalk { size: count.into() },
        Kind::Write => Rmessage::Write {
            count: count.into(),
        },
        // Other kinds with any bytes as contents.
        kind => {
            let bytes = input.bytes(usize::from(count).min(input.len()))?;
            let head = Header {
                size: (HEADER + bytes.len()) as u32,
                number: kind.reply(),
                tag,
            };
            return Ok([&head.encode(), bytes].concat());
        }
    };
    Ok(encoded(tag, &sound))
}
