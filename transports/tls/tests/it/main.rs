//! Links over sockets in this process, with certificates made for each test.

mod bad;
mod files;
mod sides;
mod stream;
