//! Requests to the broker: see `barge_fuzz::broker`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::broker::script(data));
