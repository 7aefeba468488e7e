//! A remote file system over a barge server in the same process, and over misbehaving servers.

mod blocking;
mod blocks;
mod cancel;
mod conformance;
mod copies;
mod device;
mod diod;
mod garbage;
mod handed;
mod hostile;
mod in_flight;
mod landing;
mod lasting;
mod lent;
mod listed;
mod net;
mod nfs;
mod pages;
mod pipe;
mod queue;
mod silent;
mod virtiofsd;
