//! The state of a 9P session: see `barge_fuzz::p9_state`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    barge_fuzz::p9_state::load(data);
});
