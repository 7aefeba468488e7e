//! Inputs that build a plan: a file system, a tar stream, an OCI image.

mod decompress;
mod oci;
mod tar;
mod vfs;

pub use self::decompress::{decompress, is_archive};
pub use self::oci::oci_layout;
pub use self::tar::tar;
pub use self::vfs::file_system;
