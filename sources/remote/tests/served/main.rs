//! A remote file system over a barge server in the same process, and over misbehaving servers.

mod blocking;
mod blocks;
mod cancel;
mod conformance;
mod connection;
mod copies;
mod device;
mod diod;
mod fd_passing;
mod garbage;
mod hostile;
mod in_flight;
mod landing;
mod lent;
mod listed;
mod net;
mod nfs;
mod pages;
mod queue;
mod reconnecting;
mod timeouts;
mod virtiofsd;
