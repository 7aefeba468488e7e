//! A guest whose queues need be none: see `barge_fuzz::rings`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::rings::script(data));
