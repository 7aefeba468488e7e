//! Arbitrary requests of guests and clients to a disk: see `barge_fuzz::block`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::block::script(data));
