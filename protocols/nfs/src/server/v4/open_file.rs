//! The objects that the v4 state stores for the export.

use std::net::IpAddr;
use std::sync::Arc;

use vfs::holes::HoleSearchHint;
use vfs::{Caller, File};

use super::state::Tree;
use crate::server::filehandle::Located;

/// The state of a v4 open: its file and the caller that opened it.
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub(super) file: Arc<dyn File>,
    pub(super) caller: Caller,
    pub(super) hole_hint: Arc<HoleSearchHint>,
    /// The client's address at the time of the OPEN.
    pub(super) addr: Option<IpAddr>,
    /// The source's lease, if this is a delegation.
    pub(super) _lease: Option<Arc<dyn vfs::Lease>>,
}

/// The exported tree, as the v4 state refers to it.
pub(crate) enum ExportTree {}

impl Tree for ExportTree {
    type File = OpenFile;
    type Node = Located;
}
