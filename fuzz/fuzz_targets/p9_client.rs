//! A 9P client whose server sends arbitrary replies: see `barge_fuzz::client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::client::script(data));
