//! The control socket: a line is a request, or gets an error reply.

/// Reads a line.
pub fn line(data: &[u8]) {
    if let Err(reply) = barge::fuzzing::control(data) {
        let reply: serde_json::Value = serde_json::from_slice(&reply).expect("a reply is JSON");
        assert!(reply["error"]["code"].is_string(), "{reply}");
        assert!(reply["error"]["message"].is_string(), "{reply}");
    }
}
