//! An NFS client that asks for anything: see `barge_fuzz::nfs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::nfs::script(data));
