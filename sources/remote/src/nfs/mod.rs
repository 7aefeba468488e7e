//! NFS: the client half of the protocol joined to a connection that is re-established when lost.
//!
//! - `rpc_client` makes calls, and retransmits them over a new connection after the first is lost.
//! - `version` is the interface between the file-system traits and a protocol version; `v3` and
//!   `v4` implement it.
//! - `direct` offers the protocol's own procedures and compounds.
//! - `starttls` sets up TLS on a connection.
//! - `mount` mounts, as the `options` say. `fs`, `node_ops`, `file`, `dir` and `locks` implement
//!   the file-system traits; `node` is a node, `shared` the state that all nodes and files share.
//! - `commit` makes written data durable, and `uncommitted` keeps copies of it until then.
//!
//! Deliberately absent: write delegations, layouts, NLM (v3 has no locks), and caches other than
//! that of open files.

mod commit;
mod compact_node;
mod dir;
mod direct;
mod file;
mod fs;
mod handle;
mod hidden;
mod hidden_log;
mod locks;
mod mount;
mod node;
mod node_ops;
mod options;
mod read_destination;
mod rpc_client;
mod shared;
mod starttls;
mod uncommitted;
mod url;
mod v3;
mod v4;
mod version;

pub use self::direct::{Compounds, Procedures};
pub use self::hidden_log::HiddenLog;
pub use self::mount::{Mount, mount};
pub use self::options::Options;
pub use self::rpc_client::{Dial, DialResult, PendingCall};
pub use self::starttls::{TlsSettings, establish_tls};
pub use self::url::Url;
pub use self::v4::PendingCompound;
