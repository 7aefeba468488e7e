//! The state of a FUSE session: see `barge_fuzz::fuse_state`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::fuse_state::load(data));
