//! Decoding of 9P messages in every dialect, as requests and as replies.

use p9::message::HEADER;
use p9::{Dialect, Names, Qids, Rmessage, Tmessage};

/// Decodes consecutive messages, each with the length of its size field or of the rest.
pub fn stream(mut data: &[u8]) {
    while let Some(size) = data.first_chunk().map(|size| u32::from_le_bytes(*size)) {
        let len = (size as usize).clamp(1, data.len());
        let (raw, rest) = data.split_at(len);
        message(raw);
        if raw.len() >= HEADER && size as usize != raw.len() {
            let mut fitting = raw.to_vec();
            fitting[..4].copy_from_slice(&(raw.len() as u32).to_le_bytes());
            message(&fitting);
        }
        data = rest;
    }
    message(data);
}

fn message(bytes: &[u8]) {
    for dialect in Dialect::ALL {
        match Tmessage::decode(dialect, bytes) {
            Ok((tag, request)) if is_encodable(&request) => {
                let mut again = Vec::new();
                request.encode(dialect, tag, &mut again);
                assert_eq!(again.len(), request.size(dialect), "{dialect} {request:?}");
                // Older clients omit Tfsync's word; our encoder does not.
                if !matches!(request, Tmessage::Fsync { .. }) || bytes.len() == again.len() {
                    assert_eq!(again, bytes, "{dialect} {request:?}");
                }
            }
            Ok(_) => {}
            Err(refused) => drop(refused.to_string()),
        }
        match Rmessage::decode(dialect, bytes) {
            Ok((_, Rmessage::Walk { qids })) if qids.len() > Qids::MAX => {}
            Ok((tag, reply)) => {
                let mut again = Vec::new();
                reply.encode(dialect, tag, &mut again);
                assert_eq!(again.len(), reply.size(dialect), "{dialect} {reply:?}");
                assert_eq!(again, bytes, "{dialect} {reply:?}");
            }
            Err(refused) => drop(refused.to_string()),
        }
    }
}

/// Returns whether a request can be encoded. A list with too many names is decoded, for the server
/// to refuse, but never encoded.
fn is_encodable(request: &Tmessage<'_>) -> bool {
    !matches!(request, Tmessage::Walk { names, .. } if names.len() > Names::MAX)
}
