//! FSSTAT, FSINFO, PATHCONF.

use super::ProcedureResult;
use crate::server::RequestContext;
use crate::v3::{Attributes, FsInfoOk, FsStatOk, Handle, PathConfOk, Time, properties};

impl RequestContext<'_> {
    pub(super) fn fsstat(&self, object: Handle) -> ProcedureResult<FsStatOk, Option<Attributes>> {
        self.with_node(self.object(&object), |node| {
            let stat = node.statfs(&self.cx())?;
            let bytes = |blocks: u64| blocks.saturating_mul(stat.bsize.into());
            Ok(FsStatOk {
                attributes: self.attributes(node),
                total_bytes: bytes(stat.blocks),
                free_bytes: bytes(stat.bfree),
                available_bytes: bytes(stat.bavail),
                total_files: stat.files,
                free_files: stat.ffree,
                available_files: stat.ffree,
                invariant_sec: 0,
            })
        })
    }

    pub(super) fn fsinfo(&self, object: Handle) -> ProcedureResult<FsInfoOk, Option<Attributes>> {
        /// All clients' page sizes are multiples of it.
        const MULTIPLE: u32 = 4096;
        let most = self.server.options.max_io;
        self.with_node(self.object(&object), |node| {
            Ok(FsInfoOk {
                attributes: self.attributes(node),
                read_max: most,
                read_preferred: most,
                read_multiple: MULTIPLE,
                write_max: most,
                write_preferred: most,
                write_multiple: MULTIPLE,
                // Some hundred entries with the attributes and handles of READDIRPLUS.
                dir_preferred: most.min(64 << 10),
                max_file_size: i64::MAX as u64,
                time_delta: Time { sec: 0, nsec: 1 },
                properties: properties::LINK
                    | properties::SYMLINK
                    | properties::HOMOGENEOUS
                    | properties::CAN_SET_TIME,
            })
        })
    }

    pub(super) fn pathconf(
        &self,
        object: Handle,
    ) -> ProcedureResult<PathConfOk, Option<Attributes>> {
        self.with_node(self.object(&object), |node| {
            let stat = node.statfs(&self.cx())?;
            Ok(PathConfOk {
                attributes: self.attributes(node),
                link_max: stat.link_max(),
                name_max: stat.namelen,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            })
        })
    }
}
