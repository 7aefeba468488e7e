//! An NFS client with arbitrary requests: see `barge_fuzz::nfs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::nfs::script(data));
