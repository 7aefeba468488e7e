//! Clients of an NFS server with arbitrary RPCSEC_GSS calls: see `barge_fuzz::gss`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| barge_fuzz::gss::script(data));
