//! 9P: the client half of the protocol joined to a connection.

mod input;
mod pipe;
mod send;

pub use self::input::Reply;
pub use self::pipe::{Pipe, Ticket};
