//! An NFS client whose server sends arbitrary replies: see `barge_fuzz::nfs_client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::nfs_client::script(data));
