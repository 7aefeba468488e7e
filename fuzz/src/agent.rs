//! The channel of agents: lines are within their bound, and messages are refused or read back as
//! written.

use agent::protocol::{Lines, MAX_LINE, encode, parse_from_agent, parse_from_server};

/// Reads lines. The first byte chooses the size of the pieces in which the rest arrives.
pub fn lines(data: &[u8]) {
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let mut lines = Lines::default();
    for piece in data.chunks(usize::from(*size).max(1)) {
        lines.push(piece);
        while let Ok(Some(line)) = lines.next_line() {
            assert!(line.len() < MAX_LINE && !line.contains(&b'\n'));
            message(&line);
        }
    }
}

fn message(line: &[u8]) {
    let without_newline = |line: Vec<u8>| line[..line.len() - 1].to_vec();
    if let Ok(message) = parse_from_agent(line) {
        let written = without_newline(encode(&message));
        assert_eq!(parse_from_agent(&written), Ok(message));
    }
    if let Ok(message) = parse_from_server(line) {
        let written = without_newline(encode(&message));
        assert_eq!(parse_from_server(&written), Ok(message));
    }
}
