//! OCI image layouts: see `barge_fuzz::oci`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::oci::layout(data));
