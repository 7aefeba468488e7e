//! Two clients of a server with a tree in memory: see `barge_fuzz::session`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::session::script(data));
