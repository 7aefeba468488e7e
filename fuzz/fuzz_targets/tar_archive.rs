//! Tar streams: see `barge_fuzz::tar`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::tar::archive(data));
