//! A session that continues on a server with arbitrary replies: see `barge_fuzz::recovery`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::recovery::script(data));
