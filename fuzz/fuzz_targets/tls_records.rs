//! TLS with a peer whose bytes are arbitrary, or records changed: see `barge_fuzz::tls`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::tls::script(data));
