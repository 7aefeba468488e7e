//! Directories of overlays: see `barge_fuzz::overlay`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::overlay::directory(data));
