//! Qids of nodes.

use vfs::{Attr, Kind, NodeId};

use crate::{Qid, QidType};

/// Returns the qid version, by which a client validates its cache: the change counter, folded to 32
/// bits. Equal counters give equal versions, close ones different versions. Never 0, which tells
/// Linux not to cache.
pub fn version_of(change: u64) -> u32 {
    // 2^64 divided by the golden ratio: it carries every bit of the counter into the upper half,
    // where neighbours are far apart.
    let mixed = change.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match (mixed ^ (mixed >> 32)) as u32 {
        0 => 1,
        version => version,
    }
}

pub(super) fn qid_of(attr: &Attr) -> Qid {
    Qid {
        kind: qid_type(attr.kind),
        version: version_of(attr.change),
        path: attr.id,
    }
}

/// Returns the qid of a directory entry, without a version.
pub(super) fn entry_qid(kind: Option<Kind>, id: NodeId) -> Qid {
    Qid {
        kind: kind.map_or(QidType::empty(), qid_type),
        version: 0,
        path: id,
    }
}

fn qid_type(kind: Kind) -> QidType {
    match kind {
        Kind::Directory => QidType::DIR,
        Kind::Symlink => QidType::SYMLINK,
        Kind::File | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            QidType::empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_near_changes_differ_and_none_is_zero() {
        for step in [1, 1 << 16, 1 << 32, 4_000_000, 1_000_000_000] {
            let mut versions: Vec<u32> = (0..10_000u64).map(|n| version_of(n * step)).collect();
            assert!(versions.iter().all(|&version| version != 0));
            versions.sort_unstable();
            versions.dedup();
            // 10,000 of 2^32 collide about 0.01 times at random.
            assert!(versions.len() >= 9_999, "{step}: {}", versions.len());
        }
        assert_eq!(version_of(7), version_of(7));
    }
}
