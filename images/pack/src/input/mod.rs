//! Inputs that build a plan: a file system (with the feature `file-systems`), a tar stream, an OCI
//! image.

mod oci;
mod tar;
mod unpack;
#[cfg(feature = "file-systems")]
mod vfs;

pub use self::oci::oci_layout;
pub use self::tar::tar;
pub use self::unpack::{is_archive, unpacked};
#[cfg(feature = "file-systems")]
pub use self::vfs::file_system;
