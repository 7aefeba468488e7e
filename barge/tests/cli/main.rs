//! Tests of the program: its options, its environment, and foreign clients.

mod bench;
mod browser;
mod bundle;
mod config;
mod confinement;
mod diagnose;
mod disk_cache;
mod doctor;
mod exports;
mod foreign;
#[cfg(feature = "gss")]
mod gss;
mod guests;
mod hashes;
mod identity;
mod images;
mod layers;
mod lazy;
mod locks;
mod mount;
mod newcomer;
mod nfs;
mod objects;
mod overlay;
mod pack;
mod passthrough;
mod reconnect;
mod registry;
mod restart;
mod served;
mod service;
mod status;
mod tls;
mod units;
mod virtiofs;
mod virtiofsd;
