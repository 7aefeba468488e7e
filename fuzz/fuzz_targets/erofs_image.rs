//! EROFS images: see `barge_fuzz::image`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::image::run(data));
