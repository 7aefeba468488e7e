//! Text of strangers on a terminal.

/// Returns `text` with control characters as `?`: a terminal would obey them, and lines be forged.
pub fn printable(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.collect()
}

/// Returns a JSON text with all control characters as escapes: JSON itself demands that only of
/// those below U+0020, but terminals also obey U+009B.
pub fn printable_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}c\u{7f}ä"), "a?[2Jb??c?ä");
        assert_eq!(
            printable_json("{\"ä\u{9b}\u{7f}\"}\n"),
            "{\"ä\\u009b\\u007f\"}\n"
        );
    }
}
