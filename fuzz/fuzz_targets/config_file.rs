//! barge.toml: see `barge_fuzz::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::config::file(data));
