//! Messages of `containerd.services.snapshots.v1` and `containerd.types.Mount`. Numbers and types
//! are those of containerd's `api/services/snapshots/v1/snapshots.proto` and
//! `api/types/mount.proto` (1.12.0); requests of the same shape share a type.

use std::collections::BTreeMap;

use prost_types::{FieldMask, Timestamp};

/// Labels of a snapshot.
pub type Labels = BTreeMap<String, String>;

/// `PrepareSnapshotRequest` and `ViewSnapshotRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Key of the new snapshot.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Name of a committed snapshot, or empty.
    #[prost(string, tag = "3")]
    pub parent: String,
    /// Labels of the new snapshot.
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: Labels,
}

/// `PrepareSnapshotResponse`, `ViewSnapshotResponse` and `MountsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MountsResponse {
    /// Mounts to make in this order, each on the same directory.
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<Mount>,
}

/// `containerd.types.Mount`: arguments of mount(2).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// File system type.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Device or directory.
    #[prost(string, tag = "2")]
    pub source: String,
    /// Directory below the caller's mount point, or empty.
    #[prost(string, tag = "3")]
    pub target: String,
    /// Options as in fstab(5).
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// `MountsRequest`, `RemoveSnapshotRequest`, `StatSnapshotRequest` and `UsageRequest`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct KeyRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Key or name of a snapshot.
    #[prost(string, tag = "2")]
    pub key: String,
}

/// `CommitSnapshotRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Name of the committed snapshot.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Key of the active snapshot.
    #[prost(string, tag = "3")]
    pub key: String,
    /// Labels that replace those of the active snapshot.
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: Labels,
    /// Parent for a snapshot without one, or empty.
    #[prost(string, tag = "5")]
    pub parent: String,
}

/// Kind of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// No valid kind.
    Unknown = 0,
    /// A read-only view of a committed snapshot.
    View = 1,
    /// A writable snapshot.
    Active = 2,
    /// An immutable snapshot, which may have children.
    Committed = 3,
}

/// `Info`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Info {
    /// Key or name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Name of the parent, or empty.
    #[prost(string, tag = "2")]
    pub parent: String,
    /// [`Kind`].
    #[prost(enumeration = "Kind", tag = "3")]
    pub kind: i32,
    /// Time of creation; of a committed snapshot, time of the commit.
    #[prost(message, optional, tag = "4")]
    pub created_at: Option<Timestamp>,
    /// Time of the last update.
    #[prost(message, optional, tag = "5")]
    pub updated_at: Option<Timestamp>,
    /// Labels.
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: Labels,
}

/// `StatSnapshotResponse` and `UpdateSnapshotResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoResponse {
    /// The snapshot.
    #[prost(message, optional, tag = "1")]
    pub info: Option<Info>,
}

/// `UpdateSnapshotRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Name of the snapshot, and its new labels.
    #[prost(message, optional, tag = "2")]
    pub info: Option<Info>,
    /// Fields to change: `labels` or `labels.NAME`; without any, all labels.
    #[prost(message, optional, tag = "3")]
    pub update_mask: Option<FieldMask>,
}

/// `ListSnapshotsRequest`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ListRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Filters, of which one has to match.
    #[prost(string, repeated, tag = "2")]
    pub filters: Vec<String>,
}

/// `ListSnapshotsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListResponse {
    /// Some of the snapshots.
    #[prost(message, repeated, tag = "1")]
    pub info: Vec<Info>,
}

/// `UsageResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct UsageResponse {
    /// Bytes on disk.
    #[prost(int64, tag = "1")]
    pub size: i64,
    /// Number of inodes.
    #[prost(int64, tag = "2")]
    pub inodes: i64,
}

/// `CleanupRequest`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct CleanupRequest {
    /// The snapshotter's name in containerd.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
}

/// `google.protobuf.Empty`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Empty {}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// The bytes that containerd sends for a small request.
    #[test]
    fn golden_bytes() {
        let request = CreateRequest {
            snapshotter: "b".into(),
            key: "k".into(),
            parent: "p".into(),
            labels: [("l".into(), "v".into())].into(),
        };
        let bytes = b"\x0a\x01b\x12\x01k\x1a\x01p\x22\x06\x0a\x01l\x12\x01v";
        assert_eq!(request.encode_to_vec(), bytes);
        assert_eq!(CreateRequest::decode(&bytes[..]), Ok(request));
        let info = Info {
            name: "n".into(),
            kind: Kind::Committed.into(),
            created_at: Some(Timestamp {
                seconds: 1,
                nanos: 2,
            }),
            ..Info::default()
        };
        assert_eq!(
            info.encode_to_vec(),
            b"\x0a\x01n\x18\x03\x22\x04\x08\x01\x10\x02"
        );
        let usage = UsageResponse {
            size: 300,
            inodes: 1,
        };
        assert_eq!(usage.encode_to_vec(), b"\x08\xac\x02\x10\x01");
    }

    #[test]
    fn truncated_messages_are_errors() {
        let request = UpdateRequest {
            info: Some(Info {
                name: "name".into(),
                ..Info::default()
            }),
            update_mask: Some(FieldMask {
                paths: vec!["labels.a".into()],
            }),
            ..UpdateRequest::default()
        };
        let bytes = request.encode_to_vec();
        let without_mask = UpdateRequest {
            update_mask: None,
            ..request
        };
        for end in 1..bytes.len() {
            let cut = UpdateRequest::decode(&bytes[..end]);
            // Only a cut between two fields leaves a message.
            let is_whole = end == without_mask.encoded_len();
            let expected = is_whole.then_some(&without_mask);
            assert_eq!(cut.as_ref().ok(), expected, "{end} bytes");
        }
    }
}
