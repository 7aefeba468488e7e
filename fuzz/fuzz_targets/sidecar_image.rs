//! Sidecars of images: see `barge_fuzz::sidecar`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::sidecar::image(data));
