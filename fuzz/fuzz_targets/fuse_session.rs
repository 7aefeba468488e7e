//! A FUSE client that asks for anything: see `barge_fuzz::fuse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::fuse::script(data));
