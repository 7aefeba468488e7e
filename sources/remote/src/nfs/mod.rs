//! NFS: the client half of the protocol joined to a connection that comes again when it is lost.
//!
//! - `conn` makes calls, and makes them again over another connection where the first is lost.
//! - `version` is what the file-system traits ask of a version of the protocol; `v3` and `v4` are those.
//! - `direct` is for a program that asks in the protocol's own words.
//! - `secure` has a connection secured before it is used.
//! - `fs` mounts; `node`, `file`, `dir` and `locks` are the file-system traits on top; `commit`
//!   makes written data durable, and `uncommitted` keeps copies of it until then.
//!
//! What it lacks on purpose: delegations to write, layouts, NLM (v3 has no locks), any cache but for what is open.

mod commit;
mod conn;
mod dir;
mod direct;
mod file;
mod fs;
mod locks;
mod mount;
mod node;
mod place;
mod secure;
mod uncommitted;
mod url;
mod v3;
mod v4;
mod version;

pub use self::conn::{Dial, Flight};
pub use self::direct::{Compounds, Procedures};
pub use self::fs::Options;
pub use self::mount::{Dialled, Mount, mount};
pub use self::secure::{Secure, secured};
pub use self::url::Url;
pub use self::v4::Turn;
