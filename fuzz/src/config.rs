//! `barge.toml`: it is accepted, or refused with messages; and the rules that hide paths.

use layers::hide::{PathList, Pattern, Rules};

/// Reads a file.
pub fn file(data: &[u8]) {
    if let Err(messages) = barge::fuzzing::config(data) {
        for line in messages.lines() {
            assert!(line.starts_with("barge.toml:"), "{line}");
        }
    }
    let lines = String::from_utf8_lossy(data);
    let patterns: Vec<Pattern> = lines.lines().filter_map(|line| line.parse().ok()).collect();
    let list = PathList::parse(data, b"/srv").ok();
    let paths = [&b"home/me/.ssh"[..], data];
    for path in paths {
        Rules::new(patterns.clone(), list.clone()).hides(path);
    }
}
