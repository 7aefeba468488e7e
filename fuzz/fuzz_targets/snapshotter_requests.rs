//! Requests to the snapshotter of containerd: see `barge_fuzz::snapshotter`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::snapshotter::script(data));
