//! Cached copies of files on a local disk: see `barge_fuzz::disk_cache`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::disk_cache::directory(data));
