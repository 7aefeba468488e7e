//! The names of calls in statistics and logs: the procedure, or for a v4 COMPOUND its main
//! operation.

use std::sync::LazyLock;

use vfs::{Call, Errno};
use wire::{Buffered, Put, Vocabulary};

use crate::rpc::program;
use crate::v3::{AclProcedure, Procedure};
use crate::v4::{OPERATIONS, Status};
use crate::{mount, nlm, nsm, portmap, rquota};

/// The call names of a program, the first of which has the number `base`.
struct Program {
    numbers: (u32, u32),
    prefix: &'static str,
    base: u16,
    procedures: u32,
    name: fn(u32) -> Option<String>,
}

/// The number of v4 COMPOUND; the v4 operations follow it, by operation number.
const COMPOUND: u16 = 32;

/// The other programs' numbers follow those of the v4 operations, one for each procedure.
const PROGRAMS: [Program; 8] = [
    Program {
        numbers: (program::NFS, 3),
        prefix: "NFS3_",
        base: 0,
        procedures: 22,
        name: |number| Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::NFS, 4),
        prefix: "NFS4_",
        base: COMPOUND,
        procedures: OPERATIONS.len() as u32,
        name: |number| OPERATIONS.get(number as usize).map(|&name| name.into()),
    },
    Program {
        numbers: (program::MOUNT, 3),
        prefix: "MOUNT_",
        base: 128,
        procedures: 6,
        name: |number| mount::Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::NFS_ACL, 3),
        prefix: "NFSACL_",
        base: 136,
        procedures: 3,
        name: |number| AclProcedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::NSM, 1),
        prefix: "NSM_",
        base: 140,
        procedures: 8,
        name: |number| nsm::Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::PORTMAP, 2),
        prefix: "PMAP_",
        base: 148,
        procedures: 6,
        name: |number| portmap::Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::NLM, 4),
        prefix: "NLM_",
        base: 160,
        procedures: 24,
        name: |number| nlm::Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
    Program {
        numbers: (program::RQUOTA, 2),
        prefix: "RQUOTA_",
        base: 184,
        procedures: 5,
        name: |number| rquota::Procedure::from_number(number).map(|it| format!("{it:?}")),
    },
];

/// Returns the number of the name of a procedure; for v4, that of a COMPOUND whose main operation
/// is not known yet.
pub(super) fn procedure(program: u32, version: u32, procedure: u32) -> u16 {
    let found = PROGRAMS.iter().find(|known| match known.numbers {
        // Versions with the same procedure numbers.
        (of @ (program::PORTMAP | program::RQUOTA), _) => program == of,
        numbers => numbers == (program, version),
    });
    match found {
        Some(Program { base: COMPOUND, .. }) => COMPOUND,
        Some(found) if procedure < found.procedures => found.base + procedure as u16,
        _ => u16::MAX,
    }
}

/// Returns the number of the name of a v4 operation.
pub(super) fn operation(number: u32) -> u16 {
    COMPOUND + number as u16
}

pub(super) static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let last = PROGRAMS
        .iter()
        .map(|known| u32::from(known.base) + known.procedures);
    let mut words = vec![String::new(); last.max().unwrap_or(0) as usize];
    for known in &PROGRAMS {
        for number in 0..known.procedures {
            if let Some(name) = (known.name)(number) {
                let name = format!("{}{}", known.prefix, name.to_ascii_uppercase());
                words[usize::from(known.base) + number as usize] = name;
            }
        }
    }
    Vocabulary {
        protocol: "nfs",
        operations: words,
        error: error_name,
    }
});

/// Forwards results, and records the status at their beginning.
pub(super) struct StatusRecorder<'a> {
    pub(super) to: Buffered<'a>,
    /// The call whose status is still to be recorded; `None` if it has been, or if the results
    /// begin with something else.
    pub(super) call: Option<&'a Call>,
}

impl Put for StatusRecorder<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(call) = self.call.take()
            && let Some(status) = bytes.first_chunk()
        {
            call.note_error(u32::from_be_bytes(*status) as u16);
        }
        self.to.put(bytes);
    }
}

/// Returns the name of a status: that of the errno if there is one, as in the other protocols.
fn error_name(number: u16) -> String {
    let Some(status) = Status::from_number(number.into()) else {
        return Vocabulary::errno(number);
    };
    let errno = match status {
        Status::Nametoolong => Errno::ENAMETOOLONG,
        Status::Notempty => Errno::ENOTEMPTY,
        Status::Dquot => Errno::EDQUOT,
        Status::Stale => Errno::ESTALE,
        _ if number < 35 => Errno::from_raw(number.into()),
        _ => return format!("NFSERR_{}", format!("{status:?}").to_ascii_uppercase()),
    };
    format!("{errno:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_specifications() {
        let name_of = |program, version, number| {
            let index = usize::from(procedure(program, version, number));
            VOCABULARY.operations.get(index).map(String::as_str)
        };
        assert_eq!(name_of(program::NFS, 3, 6), Some("NFS3_READ"));
        assert_eq!(name_of(program::NFS, 3, 21), Some("NFS3_COMMIT"));
        assert_eq!(name_of(program::NFS, 4, 1), Some("NFS4_COMPOUND"));
        assert_eq!(name_of(program::MOUNT, 3, 1), Some("MOUNT_MNT"));
        assert_eq!(name_of(program::PORTMAP, 4, 3), Some("PMAP_GETPORT"));
        assert_eq!(name_of(program::RQUOTA, 1, 1), Some("RQUOTA_GETQUOTA"));
        assert_eq!(name_of(program::NFS, 3, 99), None);
        let of = |number| VOCABULARY.operations[usize::from(operation(number))].as_str();
        assert_eq!(
            (of(25), of(68), of(75)),
            ("NFS4_READ", "NFS4_READ_PLUS", "NFS4_REMOVEXATTR")
        );
    }

    #[test]
    fn no_two_programs_share_numbers() {
        let mut end = 0;
        for known in &PROGRAMS {
            assert!(known.base >= end, "{}", known.prefix);
            end = known.base + known.procedures as u16;
        }
    }

    #[test]
    fn what_is_an_errno_is_called_so() {
        let names = [2, 70, 10008, 10025].map(error_name);
        assert_eq!(
            names,
            ["ENOENT", "ESTALE", "NFSERR_DELAY", "NFSERR_BADSTATEID"]
        );
    }
}
