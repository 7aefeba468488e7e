//! The status of a procedure.

use vfs::Errno;
use wire::xdr_enum;

xdr_enum! {
    /// `nfsstat3` (section 2.6).
    #[allow(missing_docs)]
    pub enum Status {
        Ok = 0,
        Perm = 1,
        Noent = 2,
        Io = 5,
        Nxio = 6,
        Acces = 13,
        Exist = 17,
        Xdev = 18,
        Nodev = 19,
        Notdir = 20,
        Isdir = 21,
        Inval = 22,
        Fbig = 27,
        Nospc = 28,
        Rofs = 30,
        Mlink = 31,
        Nametoolong = 63,
        Notempty = 66,
        Dquot = 69,
        Stale = 70,
        Remote = 71,
        Badhandle = 10001,
        NotSync = 10002,
        BadCookie = 10003,
        Notsupp = 10004,
        Toosmall = 10005,
        Serverfault = 10006,
        Badtype = 10007,
        /// The request takes long: retry later with a new call.
        Jukebox = 10008,
    }
}

impl From<Errno> for Status {
    /// Returns the status that reports an error of the source. Must not be called with
    /// `WOULD_BLOCK` or `PARKED`, which are not errors.
    fn from(errno: Errno) -> Status {
        debug_assert!(!errno.is_signal());
        match errno {
            Errno::EPERM => Status::Perm,
            Errno::ENOENT => Status::Noent,
            Errno::ENXIO => Status::Nxio,
            Errno::EACCES | Errno::ETXTBSY => Status::Acces,
            Errno::EEXIST => Status::Exist,
            Errno::EXDEV => Status::Xdev,
            Errno::ENODEV => Status::Nodev,
            Errno::ENOTDIR => Status::Notdir,
            Errno::EISDIR => Status::Isdir,
            // ELOOP: the node to open is a symbolic link, which the client must follow.
            Errno::EINVAL | Errno::ELOOP => Status::Inval,
            Errno::EFBIG => Status::Fbig,
            Errno::ENOSPC => Status::Nospc,
            Errno::EROFS => Status::Rofs,
            Errno::EMLINK => Status::Mlink,
            Errno::ENAMETOOLONG => Status::Nametoolong,
            Errno::ENOTEMPTY => Status::Notempty,
            Errno::EDQUOT => Status::Dquot,
            Errno::ESTALE => Status::Stale,
            Errno::EOPNOTSUPP | Errno::ENOSYS => Status::Notsupp,
            Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE => {
                Status::Jukebox
            }
            _ => Status::Io,
        }
    }
}
