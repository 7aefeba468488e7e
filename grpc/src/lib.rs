//! gRPC services on a Unix socket: HTTP/2 without TLS, and methods that run on threads which may
//! block. The async runtime stays internal.
//!
//! tonic does the protocol. A program routes requests by their path in a `match` rather than with
//! generated code, which takes no compiler of protocol buffers.

mod authority;
mod methods;
mod server;

pub use methods::{MAX_REQUEST, immediate, stream, unary};
pub use server::{Limits, run};

/// A request before its message is decoded.
pub type Request = http::Request<hyper::body::Incoming>;

/// A response with its encoded messages.
pub type Response = http::Response<tonic::body::Body>;
