//! Reads and writes of [`std::fs::File`] at an offset.

#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use std::os::unix::fs::FileExt;
#[cfg(windows)]
pub use windows::FileExt;
