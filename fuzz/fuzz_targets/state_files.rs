//! Files of the state directory: see `barge_fuzz::state`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::state::file(data));
