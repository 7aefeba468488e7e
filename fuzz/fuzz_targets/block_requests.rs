//! Guests and clients that ask anything of a disk: see `barge_fuzz::block`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::block::script(data));
