//! v4: compounds.

pub mod state;

use super::{Stop, Turn};
use crate::rpc::Refusal;

/// Answers a call of v4.
pub(crate) fn serve(_: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    match procedure {
        0 => Ok(()),
        _ => Err(Refusal::ProcedureUnavailable.into()),
    }
}
