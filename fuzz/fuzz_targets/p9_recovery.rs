//! A session that goes on with a server that says anything: see `barge_fuzz::recovery`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::recovery::script(data));
