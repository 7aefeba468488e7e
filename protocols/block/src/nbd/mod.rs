//! NBD (the protocol's specification: `doc/proto.md` of the reference implementation), the server
//! half: fixed newstyle, structured replies, `base:allocation`.
//!
//! The name of an export is the path of a file below the root of the served tree, or a name
//! assigned to a file; the empty name is the root itself, if that is a file.
//!
//! Deliberately absent: the oldstyle, TLS, extended headers, resizing.

mod commands;
mod message;
mod options;

use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;
use vfs::{Call, Caller, Cx, Errno, Export, Patience};
use wire::{
    Incoming, Malformed, MessageSender, Outgoing, RequestTarget, Role, ServeOutcome, Session,
    Vocabulary,
};

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

/// A read-only file with an assigned name.
#[derive(Clone)]
pub struct Image {
    /// The export name for clients.
    pub name: Vec<u8>,
    /// The tree that holds the file.
    pub export: Arc<Export>,
    /// The file's path in the tree.
    pub path: Vec<u8>,
}

impl Server {
    /// Serves the files of `export`, read-only if `read_only`, and `images`, whose names take
    /// precedence.
    pub fn new(export: Arc<Export>, read_only: bool, images: Vec<Image>) -> Server {
        Server {
            export,
            read_only,
            images,
        }
    }

    /// Returns a session for a new connection.
    pub fn session(&self) -> Connection {
        Connection {
            server: self.clone(),
            handshake: Mutex::default(),
            selected: OnceLock::new(),
            requests: Requests::default(),
        }
    }
}

/// A client's connection.
pub struct Connection {
    server: Server,
    /// The state of the handshake.
    handshake: Mutex<Handshake>,
    /// The chosen export, once there is one.
    selected: OnceLock<SelectedExport>,
    requests: Requests,
}

/// The options negotiated in the handshake.
#[derive(Clone, Default)]
struct Handshake {
    /// The client's handshake flags, once received.
    flags: Option<HandshakeFlags>,
    structured_replies: bool,
    /// The export for which the client requested `base:allocation`.
    allocation_export: Option<Vec<u8>>,
}

/// The disk of a connection, and the negotiated options for it.
struct SelectedExport {
    disk: Disk,
    structured_replies: bool,
    /// Whether the client may request extents.
    allocation_context: bool,
}

/// The reason why a request ends without a reply from its handler.
enum Failure {
    /// The source returned an error.
    Error(Errno),
    /// The client's messages cannot be parsed any further.
    Malformed(Malformed),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Error(errno)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        Failure::Malformed(malformed)
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
        // The client's cookies need not be unique.
        Ok(self.requests.next())
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        // NBD has no users: every client acts as root, if the peer may act as that.
        let caller = call.acts_as(Caller::ROOT);
        let cx = Cx {
            caller: &caller,
            patience,
            call,
        };
        let served = match message::decode(message.bytes())? {
            Message::Request(request) => match self.selected.get() {
                Some(attached) => attached.serve(&cx, &request, message, out),
                None => Err(Malformed::new("a request before an export was chosen").into()),
            },
            Message::Flags(flags) => self.set_client_flags(flags).map_err(Failure::from),
            Message::Option { number, data } => self.option(&cx, number, data, out),
        };
        match served {
            Ok(()) => Ok(ServeOutcome::Done),
            Err(stop) => {
                out.truncate(0);
                match stop {
                    Failure::Error(Errno::PARKED) => Ok(ServeOutcome::Parked),
                    Failure::Error(_) => Ok(ServeOutcome::WouldBlock),
                    Failure::Malformed(malformed) => Err(malformed),
                }
            }
        }
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        match (message::decode(message.bytes()), self.selected.get()) {
            (Ok(Message::Request(request)), Some(attached)) => {
                attached.reply_error(&request, Errno::EIO, out);
                true
            }
            _ => false,
        }
    }

    fn set_message_sender(&self, voice: Arc<dyn MessageSender>) {
        voice.send(&greeting());
    }

    fn target(&self, call: &Call, message: &[u8]) -> RequestTarget {
        let offset = match message::decode(message) {
            Ok(Message::Request(request)) => Some(request.offset),
            _ => None,
        };
        RequestTarget {
            share: self.server.export.share_name(call.export_number()),
            inode: self.selected.get().map(|selected| selected.disk.id()),
            offset,
            ..RequestTarget::default()
        }
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }
}

/// A command is named by its number; handshake messages have no names.
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

/// Returns whether the error means that the request is to be served again, and is not a result.
fn is_retry(errno: Errno) -> bool {
    matches!(errno, Errno::WOULD_BLOCK | Errno::PARKED)
}
