//! Inputs that build a plan: a file system, a tar stream, an OCI image.

mod decompress;
mod oci;
mod overlay;
mod tar;
mod vfs;

pub use self::decompress::{decompress, decompress_zstd, is_archive};
pub use self::oci::{Layer, OciLayout, merge_layers, single_layer};
pub use self::tar::tar;
pub use self::vfs::file_system;
