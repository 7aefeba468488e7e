//! Environments of object stores: see `barge_fuzz::stores`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::stores::environment(data));
