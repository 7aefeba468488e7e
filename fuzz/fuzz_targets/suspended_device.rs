//! A suspended vhost-user device: see `barge_fuzz::suspended`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::suspended::resume(data));
