//! RQUOTA: the quota of a share, which is the same for all its users and groups.
//!
//! Deliberately absent: changes of limits (`Q_EPERM`), and the quotas that the host's file system
//! has for each user.

use vfs::StatFs;

use super::{CallError, RequestContext};
use crate::rpc::CallRejection;
use crate::rquota::{Found, IdArgs, Procedure, Quota, Status, UserArgs};

/// Serves a call of RQUOTA.
pub(super) fn serve(
    request: &mut RequestContext<'_>,
    version: u32,
    procedure: u32,
) -> Result<(), CallError> {
    let procedure = Procedure::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    match procedure {
        Procedure::Null => Ok(()),
        Procedure::GetQuota | Procedure::GetActiveQuota if version == 1 => {
            request.serve(|request, of: UserArgs<'_>| request.quota(of.path))
        }
        Procedure::GetQuota | Procedure::GetActiveQuota => {
            request.serve(|request, of: IdArgs<'_>| request.quota(of.path))
        }
        Procedure::SetQuota | Procedure::SetActiveQuota => {
            request.answer(&Found::None(Status::Eperm));
            Ok(())
        }
    }
}

impl RequestContext<'_> {
    /// Returns the quota of the share at `path`.
    fn quota(&self, path: &[u8]) -> Result<Found, CallError> {
        match self.find_exported(path, |cx, directory| directory.statfs(cx)) {
            Ok(stat) => Ok(quota_of(&stat).map_or(Found::None(Status::NoQuota), Found::Quota)),
            Err(errno) => match CallError::retry(errno) {
                Some(retry) => Err(retry),
                None => Ok(Found::None(Status::Eperm)),
            },
        }
    }
}

/// Returns the quota that `stat` shows, if there is one.
fn quota_of(stat: &StatFs) -> Option<Quota> {
    if stat.quota == vfs::Limited::default() {
        return None;
    }
    let bytes = |blocks: u64| blocks.saturating_mul(stat.bsize.into());
    let (limit, free) = (bytes(stat.blocks), bytes(stat.bfree));
    // As large as the counts need: they have 32 bits, and some clients take them as signed.
    let mut block_size = 1024;
    while limit / u64::from(block_size) > i32::MAX as u64 {
        block_size *= 2;
    }
    let blocks = |bytes: u64| (bytes / u64::from(block_size)) as u32;
    let files = |count: u64| count.min(i32::MAX as u64) as u32;
    Some(Quota {
        block_size,
        active: true,
        block_limit: if stat.quota.blocks { blocks(limit) } else { 0 },
        block_soft_limit: 0,
        blocks: blocks(limit.saturating_sub(free)),
        file_limit: if stat.quota.files {
            files(stat.files)
        } else {
            0
        },
        file_soft_limit: 0,
        files: files(stat.files.saturating_sub(stat.ffree)),
        block_time_left: 0,
        file_time_left: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fit_into_their_fields() {
        let stat = StatFs {
            bsize: 4096,
            blocks: 1 << 40,
            bfree: 1 << 39,
            files: 1 << 40,
            ffree: 0,
            quota: vfs::Limited {
                blocks: true,
                files: false,
            },
            ..StatFs::default()
        };
        let quota = quota_of(&stat).expect("a quota");
        assert_eq!(quota.block_size, 4 << 20);
        assert_eq!(quota.block_limit, 1 << 30);
        assert_eq!(quota.blocks, 1 << 29);
        assert_eq!((quota.file_limit, quota.files), (0, i32::MAX as u32));
        assert_eq!(quota_of(&StatFs::default()), None);
    }
}
