//! A guest with arbitrary, possibly invalid queues: see `barge_fuzz::rings`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::rings::script(data));
