//! Operation numbers (`nfs_opnum4`), of the operations that the server treats specially, alone or
//! in groups.

pub(super) const CLOSE: u32 = 4;
pub(super) const COMMIT: u32 = 5;
pub(super) const CREATE: u32 = 6;
pub(super) const GETATTR: u32 = 9;
pub(super) const GETFH: u32 = 10;
pub(super) const LINK: u32 = 11;
pub(super) const LOCK: u32 = 12;
pub(super) const UNLOCK: u32 = 14;
pub(super) const LOOKUP: u32 = 15;
pub(super) const LOOKUPP: u32 = 16;
pub(super) const OPEN: u32 = 18;
pub(super) const OPEN_CONFIRM: u32 = 20;
pub(super) const OPEN_DOWNGRADE: u32 = 21;
pub(super) const PUTFH: u32 = 22;
pub(super) const PUTPUBFH: u32 = 23;
pub(super) const PUTROOTFH: u32 = 24;
pub(super) const REMOVE: u32 = 28;
pub(super) const RENAME: u32 = 29;
pub(super) const RENEW: u32 = 30;
pub(super) const RESTOREFH: u32 = 31;
pub(super) const SAVEFH: u32 = 32;
pub(super) const SECINFO: u32 = 33;
pub(super) const SETATTR: u32 = 34;
pub(super) const SETCLIENTID: u32 = 35;
pub(super) const SETCLIENTID_CONFIRM: u32 = 36;
pub(super) const WRITE: u32 = 38;
pub(super) const RELEASE_LOCKOWNER: u32 = 39;
pub(super) const BACKCHANNEL_CTL: u32 = 40;
pub(super) const BIND_CONN_TO_SESSION: u32 = 41;
pub(super) const EXCHANGE_ID: u32 = 42;
pub(super) const CREATE_SESSION: u32 = 43;
pub(super) const DESTROY_SESSION: u32 = 44;
pub(super) const FREE_STATEID: u32 = 45;
pub(super) const SECINFO_NO_NAME: u32 = 52;
pub(super) const SEQUENCE: u32 = 53;
pub(super) const TEST_STATEID: u32 = 55;
pub(super) const DESTROY_CLIENTID: u32 = 57;
pub(super) const RECLAIM_COMPLETE: u32 = 58;
pub(super) const COPY: u32 = 60;
pub(super) const SETXATTR: u32 = 73;
pub(super) const REMOVEXATTR: u32 = 75;
pub(super) const ILLEGAL: u32 = 10044;
/// The last operation of each minor version.
pub(super) const LAST: [u32; 3] = [39, 58, 75];

/// The operations that set the current file handle without a lookup.
pub(super) const PUTFH_LIKE: [u32; 4] = [PUTFH, PUTPUBFH, PUTROOTFH, RESTOREFH];

/// The operations that look up a name and report `WRONGSEC` themselves.
pub(super) const LOOKUP_LIKE: [u32; 3] = [LOOKUP, LOOKUPP, OPEN];

/// The operations that reveal and change nothing of files' contents, names and attributes: they
/// need no allowed security flavor.
pub(super) const ANY_FLAVOR: [u32; 21] = [
    PUTFH,
    PUTPUBFH,
    PUTROOTFH,
    RENEW,
    RESTOREFH,
    SAVEFH,
    SECINFO,
    SETCLIENTID,
    SETCLIENTID_CONFIRM,
    RELEASE_LOCKOWNER,
    BACKCHANNEL_CTL,
    BIND_CONN_TO_SESSION,
    EXCHANGE_ID,
    CREATE_SESSION,
    DESTROY_SESSION,
    FREE_STATEID,
    SECINFO_NO_NAME,
    SEQUENCE,
    TEST_STATEID,
    DESTROY_CLIENTID,
    RECLAIM_COMPLETE,
];

/// The operations that change something and whose successful results have a body, of at most
/// [`MAX_MODIFYING_RESULT`] bytes.
pub(super) const MODIFYING: [u32; 15] = [
    CLOSE,
    COMMIT,
    CREATE,
    LINK,
    LOCK,
    UNLOCK,
    OPEN,
    OPEN_DOWNGRADE,
    REMOVE,
    RENAME,
    SETATTR,
    WRITE,
    COPY,
    SETXATTR,
    REMOVEXATTR,
];

/// OPEN's: stateid, change, flags, attributes, and a delegation with its stateid, limit and
/// permissions.
pub(super) const MAX_MODIFYING_RESULT: usize = 16 + 20 + 4 + 16 + 4 + 16 + 4 + 12 + 16;
