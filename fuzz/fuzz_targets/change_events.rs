//! Events of changes with arbitrary bytes: see `barge_fuzz::changes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::changes::events(data));
