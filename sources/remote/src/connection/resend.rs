//! The error that a link reports for lent payloads after their server is lost. The link keeps no
//! copy, so the lender sends them again ([`transports::Link::send_lent`]).

use std::fmt;
use std::io::{self, ErrorKind};

/// The numbers of the requests to send again. [`transports::Link::recv`] returns it between two
/// messages as an error of kind `Interrupted`; a server cannot produce it.
#[derive(Debug)]
pub(crate) struct ResendRequired(pub(crate) Vec<usize>);

impl ResendRequired {
    /// The requests that `error` lists.
    pub(super) fn numbers(error: &io::Error) -> impl Iterator<Item = usize> {
        let again = error.get_ref().and_then(|error| error.downcast_ref());
        let numbers = again.map_or(&[][..], |ResendRequired(numbers)| numbers);
        numbers.iter().copied()
    }
}

impl fmt::Display for ResendRequired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests are to be asked again", self.0.len())
    }
}

impl std::error::Error for ResendRequired {}

impl From<ResendRequired> for io::Error {
    fn from(again: ResendRequired) -> io::Error {
        io::Error::new(ErrorKind::Interrupted, again)
    }
}
