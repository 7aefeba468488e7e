//! A FUSE client with arbitrary requests: see `barge_fuzz::fuse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::fuse::script(data));
