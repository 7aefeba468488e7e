//! What the fuzz targets do with their input, and what must hold whatever it is.
//!
//! - [`block`]: a device and a server of NBD answer each request once, and none beyond the disk.
//! - [`decode`]: messages are decoded or refused, and what was decoded is encoded to the same bytes.
//! - [`client`]: the client half takes what a server may answer, and refuses the rest.
//! - [`fuse`]: the FUSE server half answers each request once, whatever it asks.
//! - [`image`]: of an image of EROFS everything can be asked for, whatever it says, within bounds of time and memory.
//! - [`kept`]: whatever becomes of copies on a local disk, files have their source's contents.
//! - [`nfs`]: the NFS server half answers each call once, as long as it says, whatever it asks.
//! - [`nfs_client`]: so does that of NFS, and makes of READ_PLUS's segments no byte that was not told.
//! - [`recovery`]: what a client has is said again to a server that may answer anything, and each request is answered once.
//! - [`rings`]: a device takes what it can out of any memory and any queues, and gives each request back.
//! - [`rofs`]: images are refused, or walked to the end.
//! - [`sidecar`]: what lies beside images is refused or within its bounds, and no change to an image goes unseen.
//! - [`tar`]: archives are refused, or make a plan.
//! - [`session`]: the server half answers each request once, or closes that connection alone.
//!
//! `smoke` runs the targets; `seeds/` is what they start from, made by `examples/seeds.rs`.

#![forbid(unsafe_code)]

pub mod block;
pub mod client;
pub mod decode;
pub mod fuse;
pub mod image;
pub mod kept;
pub mod nfs;
pub mod nfs_client;
pub mod recovery;
pub mod rings;
pub mod rofs;
pub mod session;
pub mod sidecar;
pub mod tar;

/// Far more room for a reply than any session may use.
const ROOM: usize = 64 << 20;
