//! Registries: see `barge_fuzz::registry`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::registry::text(data));
