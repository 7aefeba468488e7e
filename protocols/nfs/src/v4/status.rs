//! The status of an operation.

use vfs::Errno;
use wire::xdr_enum;

xdr_enum! {
    /// `nfsstat4` (RFC 8881 section 15, RFC 7862 section 11, RFC 8276 section 8.5).
    #[allow(missing_docs)]
    pub enum Status {
        Ok = 0,
        Perm = 1,
        Noent = 2,
        Io = 5,
        Nxio = 6,
        Access = 13,
        Exist = 17,
        Xdev = 18,
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
        Badhandle = 10001,
        BadCookie = 10003,
        Notsupp = 10004,
        Toosmall = 10005,
        Serverfault = 10006,
        Badtype = 10007,
        Delay = 10008,
        Same = 10009,
        Denied = 10010,
        Expired = 10011,
        Locked = 10012,
        Grace = 10013,
        Fhexpired = 10014,
        ShareDenied = 10015,
        Wrongsec = 10016,
        ClidInuse = 10017,
        Resource = 10018,
        Moved = 10019,
        Nofilehandle = 10020,
        MinorVersMismatch = 10021,
        StaleClientid = 10022,
        StaleStateid = 10023,
        OldStateid = 10024,
        BadStateid = 10025,
        BadSeqid = 10026,
        NotSame = 10027,
        LockRange = 10028,
        Symlink = 10029,
        Restorefh = 10030,
        LeaseMoved = 10031,
        Attrnotsupp = 10032,
        NoGrace = 10033,
        ReclaimBad = 10034,
        ReclaimConflict = 10035,
        Badxdr = 10036,
        LocksHeld = 10037,
        Openmode = 10038,
        Badowner = 10039,
        Badchar = 10040,
        Badname = 10041,
        BadRange = 10042,
        LockNotsupp = 10043,
        OpIllegal = 10044,
        Deadlock = 10045,
        FileOpen = 10046,
        AdminRevoked = 10047,
        CbPathDown = 10048,
        Badiomode = 10049,
        Badlayout = 10050,
        BadSessionDigest = 10051,
        Badsession = 10052,
        Badslot = 10053,
        CompleteAlready = 10054,
        ConnNotBoundToSession = 10055,
        DelegAlreadyWanted = 10056,
        BackChanBusy = 10057,
        Layouttrylater = 10058,
        Layoutunavailable = 10059,
        NomatchingLayout = 10060,
        Recallconflict = 10061,
        UnknownLayouttype = 10062,
        SeqMisordered = 10063,
        SequencePos = 10064,
        ReqTooBig = 10065,
        RepTooBig = 10066,
        RepTooBigToCache = 10067,
        RetryUncachedRep = 10068,
        UnsafeCompound = 10069,
        TooManyOps = 10070,
        OpNotInSession = 10071,
        HashAlgUnsupp = 10072,
        ClientidBusy = 10074,
        PnfsIoHole = 10075,
        SeqFalseRetry = 10076,
        BadHighSlot = 10077,
        Deadsession = 10078,
        EncrAlgUnsupp = 10079,
        PnfsNoLayout = 10080,
        NotOnlyOp = 10081,
        WrongCred = 10082,
        WrongType = 10083,
        DirdelegUnavail = 10084,
        RejectDeleg = 10085,
        Returnconflict = 10086,
        DelegRevoked = 10087,
        PartnerNotsupp = 10088,
        PartnerNoAuth = 10089,
        UnionNotsupp = 10090,
        OffloadDenied = 10091,
        WrongLfs = 10092,
        Badlabel = 10093,
        OffloadNoReqs = 10094,
        Noxattr = 10095,
        Xattr2big = 10096,
    }
}

impl Status {
    /// Returns whether the seqid of a v4.0 owner advances with this status. RFC 7530 section 9.1.7
    /// lists the exceptions.
    pub fn advances_seqid(self) -> bool {
        !matches!(
            self,
            Status::StaleClientid
                | Status::StaleStateid
                | Status::BadStateid
                | Status::BadSeqid
                | Status::Badxdr
                | Status::Resource
                | Status::Nofilehandle
                | Status::Moved
        )
    }
}

impl From<Errno> for Status {
    /// Returns the status that reports an error of the source. Must not be called with
    /// `WOULD_BLOCK` or `PARKED`, which are not errors.
    fn from(errno: Errno) -> Status {
        debug_assert!(![Errno::WOULD_BLOCK, Errno::PARKED].contains(&errno));
        match errno {
            Errno::EPERM => Status::Perm,
            Errno::ENOENT => Status::Noent,
            Errno::ENXIO => Status::Nxio,
            Errno::EACCES => Status::Access,
            Errno::EEXIST => Status::Exist,
            Errno::EXDEV => Status::Xdev,
            Errno::ENOTDIR => Status::Notdir,
            Errno::EISDIR => Status::Isdir,
            Errno::EINVAL => Status::Inval,
            Errno::EFBIG => Status::Fbig,
            Errno::ENOSPC => Status::Nospc,
            Errno::EROFS => Status::Rofs,
            Errno::EMLINK => Status::Mlink,
            Errno::ENAMETOOLONG => Status::Nametoolong,
            Errno::ENOTEMPTY => Status::Notempty,
            Errno::EDQUOT => Status::Dquot,
            Errno::ESTALE => Status::Stale,
            Errno::EOPNOTSUPP | Errno::ENOSYS => Status::Notsupp,
            Errno::ELOOP => Status::Symlink,
            Errno::ETXTBSY | Errno::EBUSY => Status::FileOpen,
            Errno::ENODATA => Status::Noxattr,
            Errno::E2BIG | Errno::ERANGE => Status::Xattr2big,
            Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE => {
                Status::Delay
            }
            Errno::EDEADLK => Status::Deadlock,
            Errno::ENOLCK => Status::Resource,
            _ => Status::Io,
        }
    }
}
