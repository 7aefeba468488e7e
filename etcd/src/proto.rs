//! Messages of etcd's API (etcdserverpb/rpc.proto, mvccpb/kv.proto), those that this crate uses.
//!
//! Field numbers are etcd's. Messages and fields that the crate neither sends nor reads are absent:
//! decoding skips them.

use prost::{Message, Oneof};

/// The header of a response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

/// Its keys are returned in ascending order. With a sort order (field 5), a member would read the
/// whole range for each page.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "RequestKind", tags = "1, 2, 3")]
    pub(crate) request: Option<RequestKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum RequestKind {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    /// Absent for other operations.
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeResponse>,
}

/// Compare.CompareTarget.
pub(crate) const TARGET_CREATE: i32 = 1;
pub(crate) const TARGET_MOD: i32 = 2;

/// A comparison for equality.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "Compared", tags = "5, 6")]
    pub(crate) compared: Option<Compared>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Compared {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(string, tag = "4")]
    pub(crate) error: String,
}

/// Its debug output has the password: it is never logged.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_the_bytes_of_etcds_definition() {
        let transaction = TxnRequest {
            compare: vec![Compare {
                target: TARGET_CREATE,
                key: b"k".into(),
                compared: Some(Compared::CreateRevision(7)),
            }],
            success: vec![RequestOp {
                request: Some(RequestKind::Put(PutRequest {
                    key: b"k".into(),
                    value: b"v".into(),
                    lease: 9,
                })),
            }],
            failure: vec![RequestOp {
                request: Some(RequestKind::Range(RangeRequest {
                    key: b"k".into(),
                    ..RangeRequest::default()
                })),
            }],
        };
        // compare { target: CREATE, key, create_revision }, success { request_put }, failure {
        // request_range }: tags and lengths as rpc.proto has them.
        let bytes = b"\x0a\x07\x10\x01\x1a\x01k\x28\x07\
                      \x12\x0a\x12\x08\x0a\x01k\x12\x01v\x18\x09\
                      \x1a\x05\x0a\x03\x0a\x01k";
        assert_eq!(transaction.encode_to_vec(), bytes);
    }

    #[test]
    fn a_result_without_the_entries_of_a_put_is_read() {
        // header { revision: 5 }, succeeded, responses { response_put { header } }.
        let bytes = b"\x0a\x02\x18\x05\x10\x01\x1a\x06\x12\x04\x0a\x02\x18\x05";
        let read = TxnResponse::decode(&bytes[..]).expect("a result");
        assert!(read.succeeded);
        assert_eq!(read.header.expect("a header").revision, 5);
        assert_eq!(read.responses, [ResponseOp { range: None }]);
        for len in 0..bytes.len() {
            // Truncated ones are errors, or results with less.
            let _ = TxnResponse::decode(&bytes[..len]);
        }
    }
}
