//! The results of a procedure.

use wire::{Malformed, Put, Xdr, XdrReader};

use super::Status;

/// The results of a procedure: `T` on success, a status and `F` on failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T, F = ()> {
    /// Success.
    Done(T),
    /// Failure. The status is never [`Status::Ok`].
    Failed(Status, F),
}

impl<'a, T: Xdr<'a>, F: Xdr<'a>> Xdr<'a> for Outcome<T, F> {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        Ok(match Status::get(from)? {
            Status::Ok => Outcome::Done(T::get(from)?),
            status => Outcome::Failed(status, F::get(from)?),
        })
    }

    fn put(&self, to: &mut impl Put) {
        match self {
            Outcome::Done(value) => {
                Status::Ok.put(to);
                value.put(to);
            }
            Outcome::Failed(status, value) => {
                debug_assert_ne!(*status, Status::Ok);
                status.put(to);
                value.put(to);
            }
        }
    }
}
