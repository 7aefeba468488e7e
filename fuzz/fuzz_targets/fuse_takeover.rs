//! A FUSE mount that another process continues: see `barge_fuzz::fuse::takeover`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::fuse::takeover(data));
