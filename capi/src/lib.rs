//! The C library `libbarge`: files of any source, for programs and plugins in C.
//!
//! `ffi` has the functions of `include/barge.h`, which cbindgen writes from it, and all unsafe
//! code; `call` turns results and panics into what a C program gets.
//!
//! Deliberately absent: everything but reading and writing files that exist, which is what servers
//! of disks need.

mod call;
pub mod ffi;
