//! The channel of agents: see `barge_fuzz::agent`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::agent::lines(data));
