//! Messages of all dialects: see `barge_fuzz::decode`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::decode::stream(data));
