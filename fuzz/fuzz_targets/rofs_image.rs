//! ROFS images: see `barge_fuzz::rofs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::rofs::image(data));
