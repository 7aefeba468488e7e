//! A monitor with arbitrary vhost-user messages and descriptors: see `barge_fuzz::vhost_user`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::vhost_user::script(data));
