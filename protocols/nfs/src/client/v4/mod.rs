//! NFS v4 calls (RFC 7530, RFC 8881, RFC 7862, RFC 8276): a compound for each type that implements
//! [`Operations`].

mod attr;
mod callback;
mod client;
mod compound;
mod data;
mod delegation;
mod dir;
mod lock;
mod name;
mod open;
mod range;
mod session;
mod slots;
#[cfg(test)]
mod tests;
mod xattr;

pub use attr::{Access, Capabilities, FsStat, GetAttr, GetCapabilities, SetAttr};
pub use callback::{Backchannels, CallbackHandler};
pub use client::{Renew, SetClientId, SetClientIdConfirm};
pub use compound::{Compound, CompoundResult, Operations, Ops, Results, Sequence, status_flags};
pub use data::{Commit, Piece, Read, ReadPieces, Write};
pub use delegation::{DelegReturn, FreeStateId, TestStateIds};
pub use dir::ReadDir;
pub use lock::{Lock, LockRange, TestLock, Unlock};
pub use name::{Create, Link, Lookup, ReadLink, Remove, Rename, Root};
pub use open::{Claim, Close, GrantedDelegation, Open, OpenConfirm, Opened, SeqidEffect};
pub use range::{Allocate, Copy, CopyResult, Seek};
pub use session::{
    BindConnection, CreateSession, DestroyClientId, DestroySession, ExchangeId, Exchanged,
    ReclaimComplete, SequenceOnly, Session,
};
pub use slots::{Slot, Slots};
pub use xattr::{GetXattr, ListXattrs, RemoveXattr, SetXattr};

pub use crate::v4::{ClientId, SessionId, StateId, Status, Verifier};
