//! Values of virtiofs options, with virtiofsd's names.

use clap::ValueEnum;
use fuse::numbers::InitFlags;

/// The place of a guest's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Locks {
    /// Among the processes of each guest, as with virtiofsd
    Guest,
    /// Also among guests, other protocols and programs on the host
    Shared,
}

/// The caching policy of a guest, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// No caching
    Never,
    /// Names and attributes for a day, no data
    Metadata,
    /// Names and attributes for a second, data while a file is open
    Auto,
    /// Everything for a day; safe only if no other client or program changes the share
    Always,
}

impl From<Cache> for fuse::server::Cache {
    fn from(cache: Cache) -> fuse::server::Cache {
        match cache {
            Cache::Never => fuse::server::Cache::Never,
            Cache::Metadata => fuse::server::Cache::Metadata,
            Cache::Auto => fuse::server::Cache::Auto,
            Cache::Always => fuse::server::Cache::Always,
        }
    }
}

/// How a guest's files are found again after a live migration, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MigrationMode {
    /// By their paths, which the source finds when the guest is stopped
    FindPaths,
    /// By their file handles: both ends share the same directory of the same file system
    FileHandles,
}

impl From<MigrationMode> for fuse::server::MigrationMode {
    fn from(mode: MigrationMode) -> fuse::server::MigrationMode {
        match mode {
            MigrationMode::FindPaths => fuse::server::MigrationMode::FindPaths,
            MigrationMode::FileHandles => fuse::server::MigrationMode::FileHandles,
        }
    }
}

/// The reaction to files that cannot be migrated, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MigrationOnError {
    /// The migration fails, and the guest continues where it was
    Abort,
    /// The guest gets errors for these files
    GuestError,
}

impl From<MigrationOnError> for fuse::server::MigrationOnError {
    fn from(action: MigrationOnError) -> fuse::server::MigrationOnError {
        match action {
            MigrationOnError::Abort => fuse::server::MigrationOnError::Abort,
            MigrationOnError::GuestError => fuse::server::MigrationOnError::GuestError,
        }
    }
}

/// When the device offers a feature, with virtiofsd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Negotiate {
    /// Do not offer it
    Never,
    /// Offer it to clients that support it
    Auto,
    /// Offer it, and refuse clients that do not support it
    Always,
}

impl Negotiate {
    /// Returns whether the feature is offered.
    pub(in crate::serve) fn is_offered(self) -> bool {
        self != Negotiate::Never
    }

    /// Returns the INIT flags without which the client is refused.
    pub(in crate::serve) fn required(self, flags: InitFlags) -> InitFlags {
        match self {
            Negotiate::Always => flags,
            Negotiate::Never | Negotiate::Auto => InitFlags::empty(),
        }
    }
}

/// The INIT flags of POSIX ACLs.
pub(in crate::serve) const POSIX_ACL: InitFlags = InitFlags::POSIX_ACL
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::SETXATTR_EXT);
