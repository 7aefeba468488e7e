//! Two clients share a server over a tree in memory; the input determines their messages.
//!
//! A script is a byte of `Start` followed by steps, each with a byte for the client and the
//! action. Invariants are asserted by `client`, which drives a session as the engine does but in
//! one thread; messages are constructed by `request`.

mod client;
mod request;

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use memory::Memory;
use p9::server::{ExportList, NumericUsers, Options, QueueConnection, Server};
use p9::{Dialect, Fid, Tag, Tmessage, Uid};
use vfs::{Call, Export, Patience};
use vfs_testkit::{Message, clock};
use wire::ServeOutcome;

use self::client::Client;

/// Plays the script `data`.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let start = Start(input.arbitrary()?);
    let server = server(start.waits());
    let mut clients = [Client::new(&server), Client::new(&server)];
    for (number, client) in clients.iter_mut().enumerate() {
        if let Some(dialect) = start.dialect(number) {
            begin(client, dialect);
        }
    }
    while !input.is_empty() {
        let step = Step(input.arbitrary()?);
        let client = &mut clients[step.client()];
        match step.what() {
            What::Framed => {
                let bytes = framed(input)?;
                client.receive(&bytes);
            }
            What::Raw => {
                let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
                client.receive(input.bytes(len)?);
            }
            What::Reconnect => *client = Client::new(&server),
            What::Bent => {
                let mut bytes = request::any(client.dialect(), input)?;
                let at = input.choose_index(bytes.len())?;
                bytes[at] = input.arbitrary()?;
                client.receive(&bytes);
            }
            What::Request => {
                let bytes = request::any(client.dialect(), input)?;
                client.receive(&bytes);
            }
        }
        // An action of one client may be the event that the other waits for.
        clients.iter_mut().for_each(Client::resume);
    }
    Ok(())
}

/// Takes a message from the input, with its size field corrected to fit.
fn framed(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let size: u32 = input.arbitrary()?;
    let rest = input.bytes((size as usize).saturating_sub(4).min(input.len()))?;
    let size = rest.len() as u32 + 4;
    Ok([&size.to_le_bytes(), rest].concat())
}

fn begin(client: &mut Client, dialect: Dialect) {
    client.receive(&beginning(dialect).concat());
}

/// Creates a connection over a queue that is initialized and has [`Fid`] 0 as its root.
pub(crate) fn begun_by_queue() -> QueueConnection {
    let session = server(true).queue_session();
    for message in beginning(Dialect::Linux) {
        let (call, message) = (Call::detached(), Message::new(message));
        let served = vfs_testkit::session::serve(&session, &call, Patience::Full, &message, 4096);
        assert_eq!(served.expect("a message").0, ServeOutcome::Done);
    }
    session
}

/// Returns Tversion and Tattach.
fn beginning(dialect: Dialect) -> [Vec<u8>; 2] {
    let version = Tmessage::Version {
        msize: 4096,
        version: dialect.version().as_bytes(),
    };
    let attach = Tmessage::Attach {
        fid: Fid(0),
        afid: Fid::NONE,
        uname: b"root",
        aname: b"",
        n_uname: Uid(0),
    };
    [(Tag::NONE, version), (Tag(0), attach)].map(|(tag, request)| {
        let mut bytes = Vec::new();
        request.encode(dialect, tag, &mut bytes);
        bytes
    })
}

/// Creates a server with two exports, and limits small enough to be reached.
fn server(wait_for_locks: bool) -> Server {
    let exports = ["", "other"].map(|name| Arc::new(Export::new(name, tree())));
    Server::new(
        Arc::new(ExportList(exports.into())),
        Arc::new(NumericUsers),
        Options {
            max_msize: 16 << 10,
            max_fids: 12,
            max_fid_memory: 1 << 20,
            max_xattr_bytes: 80 << 10,
            unknown_user: Some(65534),
            blocking_locks: wait_for_locks,
        },
    )
}

pub(crate) fn tree() -> Arc<Memory> {
    let options = memory::Options {
        max_bytes: 1 << 20,
        max_nodes: 64,
        ..Default::default()
    };
    Memory::with_options(clock(), options)
}

/// The initial state: two bits for each client, and one for the server.
struct Start(u8);

impl Start {
    /// Returns the dialect of a client that is attached initially.
    fn dialect(&self, client: usize) -> Option<Dialect> {
        match self.0 >> (2 * client) & 3 {
            0 => Some(Dialect::Linux),
            1 => Some(Dialect::Unix),
            2 => Some(Dialect::Plan9),
            _ => None,
        }
    }

    fn waits(&self) -> bool {
        self.0 & 0x10 == 0
    }
}

/// A step: the lowest bit is the client, three more are the action.
struct Step(u8);

enum What {
    /// A message from the input.
    Framed,
    /// Bytes that need not be a message.
    Raw,
    /// The connection is closed and another one opened.
    Reconnect,
    /// A request with a byte changed.
    Bent,
    /// A request with small numbers and names that may exist.
    Request,
}

impl Step {
    fn client(&self) -> usize {
        usize::from(self.0 & 1)
    }

    fn what(&self) -> What {
        match self.0 >> 1 & 7 {
            0 => What::Framed,
            1 if self.0 & 0xe0 == 0 => What::Raw,
            1 if self.0 & 0xe0 == 0x20 => What::Reconnect,
            1 | 2 => What::Bent,
            _ => What::Request,
        }
    }
}
