//! NBD (the protocol's specification: `doc/proto.md` of the reference implementation), the server half: fixed newstyle,
//! structured replies, `base:allocation`.
//!
//! The name of an export is the path of a file below the root of what is served, or one that a file was given; the
//! empty name is the root itself, where that is a file.
//!
//! Not there: the oldstyle, TLS, extended headers, resizing.

mod commands;
mod message;
mod options;

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use vfs::{Call, Caller, Cx, Errno, Export, Patience};
use wire::{Answer, Incoming, Malformed, Outgoing, Role, Session, Vocabulary, Voice};

use self::message::{HandshakeFlags, Message, command, frame, greeting};
use crate::Disk;
use crate::requests::{Requests, vocabulary};

/// The files of an export as disks.
#[derive(Clone)]
pub struct Server {
    export: Arc<Export>,
    read_only: bool,
    images: Vec<Image>,
}

/// A file that has a name of its own, and can only be read.
#[derive(Clone)]
pub struct Image {
    /// What clients call it.
    pub name: Vec<u8>,
    /// What the file is in.
    pub export: Arc<Export>,
    /// Its path there.
    pub path: Vec<u8>,
}

impl Server {
    /// Serves the files of `export`, only to be read if `read_only`, and `images`, whose names come first.
    pub fn new(export: Arc<Export>, read_only: bool, images: Vec<Image>) -> Server {
        Server {
            export,
            read_only,
            images,
        }
    }

    /// A new connection.
    pub fn session(&self) -> Connection {
        Connection {
            server: self.clone(),
            said: Mutex::default(),
            attached: OnceLock::new(),
            requests: Requests::default(),
        }
    }
}

/// A client's connection.
pub struct Connection {
    server: Server,
    /// What has been agreed on so far.
    said: Mutex<Said>,
    /// What it has chosen, once it has.
    attached: OnceLock<Attached>,
    requests: Requests,
}

/// What both sides have said of what is to come.
#[derive(Clone, Default)]
struct Said {
    /// What the client can do, once it has said so.
    flags: Option<HandshakeFlags>,
    structured: bool,
    /// The export of whose holes it wants to be told.
    mapped: Option<Vec<u8>>,
}

/// The disk of a connection, and how it is spoken of.
struct Attached {
    disk: Disk,
    structured: bool,
    /// Whether extents may be asked for.
    mapped: bool,
}

/// What ends a request other than with an answer.
enum Stop {
    /// The source says so.
    Failed(Errno),
    /// The client cannot be followed.
    Malformed(Malformed),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

impl From<Malformed> for Stop {
    fn from(malformed: Malformed) -> Stop {
        Stop::Malformed(malformed)
    }
}

impl Session for Connection {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        frame(head)
    }

    fn reply_bound(&self, message: &[u8], _: usize) -> usize {
        message::reply_bound(message)
    }

    fn role(&self, _: &[u8]) -> Result<Role, Malformed> {
        // Not the client's cookies.
        Ok(self.requests.next())
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<Answer, Malformed> {
        // NBD has no users: who may connect has the super-user's access, as far as the peer may act
        // as that.
        let caller = call.acts_as(Caller::ROOT);
        let cx = Cx {
            caller: &caller,
            patience,
            call,
        };
        let served = match message::decode(message.bytes())? {
            Message::Request(request) => match self.attached.get() {
                Some(attached) => attached.serve(&cx, &request, message, out),
                None => Err(Malformed::new("a request before an export was chosen").into()),
            },
            Message::Flags(flags) => self.greeted(flags).map_err(Stop::from),
            Message::Option { number, data } => self.option(&cx, number, data, out),
        };
        match served {
            Ok(()) => Ok(Answer::Done),
            Err(stop) => {
                out.truncate(0);
                match stop {
                    Stop::Failed(Errno::PARKED) => Ok(Answer::Parked),
                    Stop::Failed(_) => Ok(Answer::WouldBlock),
                    Stop::Malformed(malformed) => Err(malformed),
                }
            }
        }
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        match (message::decode(message.bytes()), self.attached.get()) {
            (Ok(Message::Request(request)), Some(attached)) => {
                attached.refuse(&request, Errno::EIO, out);
                true
            }
            _ => false,
        }
    }

    fn can_speak(&self, voice: Arc<dyn Voice>) {
        voice.say(&greeting());
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }
}

/// A command's word is its number; what is agreed on before commands has none.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    vocabulary("nbd", command::BLOCK_STATUS.into(), |number| {
        match number as u16 {
            command::READ => "NBD_CMD_READ",
            command::WRITE => "NBD_CMD_WRITE",
            command::FLUSH => "NBD_CMD_FLUSH",
            command::TRIM => "NBD_CMD_TRIM",
            command::WRITE_ZEROES => "NBD_CMD_WRITE_ZEROES",
            command::BLOCK_STATUS => "NBD_CMD_BLOCK_STATUS",
            _ => "",
        }
    })
});

/// Whether what came of a try means that it is to be tried again, and is no answer.
fn is_again(errno: Errno) -> bool {
    matches!(errno, Errno::WOULD_BLOCK | Errno::PARKED)
}
