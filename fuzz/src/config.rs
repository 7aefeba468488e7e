//! `barge.toml`: it is accepted, or refused with messages.

/// Reads a file.
pub fn file(data: &[u8]) {
    if let Err(messages) = barge::fuzzing::config(data) {
        for line in messages.lines() {
            assert!(line.starts_with("barge.toml:"), "{line}");
        }
    }
}
