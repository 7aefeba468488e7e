//! A remote file system over a barge server in the same process, and over servers that misbehave.

mod blocking;
mod cancel;
mod conformance;
mod device;
mod diod;
mod garbage;
mod hostile;
mod lasting;
mod net;
mod nfs;
mod pipe;
mod queue;
mod silent;
mod virtiofsd;
