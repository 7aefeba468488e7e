//! Requests of the control socket: see `barge_fuzz::control`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::control::line(data));
