//! What a link says of payloads that were lent to it, when the server that was sent them is lost: it has kept none, so who
//! lent them sends them again ([`transports::Link::send_lent`]).

use std::fmt;
use std::io::{self, ErrorKind};

/// Requests, by their numbers, that are to be asked again. It comes out of [`transports::Link::recv`] between two messages, as
/// what has kind `Interrupted`, and no server can say it.
#[derive(Debug)]
pub(crate) struct Again(pub(crate) Vec<usize>);

impl Again {
    /// The requests that `error` is about.
    pub(super) fn numbers(error: &io::Error) -> impl Iterator<Item = usize> {
        let again = error.get_ref().and_then(|error| error.downcast_ref());
        let numbers = again.map_or(&[][..], |Again(numbers)| numbers);
        numbers.iter().copied()
    }
}

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests are to be asked again", self.0.len())
    }
}

impl std::error::Error for Again {}

impl From<Again> for io::Error {
    fn from(again: Again) -> io::Error {
        io::Error::new(ErrorKind::Interrupted, again)
    }
}
