//! Inputs that build a plan: a file system, a tar stream, an OCI image.

mod oci;
mod tar;
mod unpack;
mod vfs;

pub use self::oci::oci_layout;
pub use self::tar::tar;
pub use self::unpack::{is_archive, unpacked};
pub use self::vfs::file_system;
