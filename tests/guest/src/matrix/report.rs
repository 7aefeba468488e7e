//! The results as a Markdown table, and its insertion into a document.

use super::{Column, Verdict};

/// Returns the results as a Markdown table with a row for each script and a column for each pair.
pub(super) fn table(columns: &[Column]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|column| &column.cells) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut text = String::from("| |");
    for column in columns {
        text += &format!(" {} {} |", column.kernel, column.mount);
    }
    text += "\n|---|";
    text += &"---|".repeat(columns.len());
    text += "\n| boot |";
    for column in columns {
        text += &format!(" {:.0} s |", column.boot.as_secs_f32());
    }
    for name in names {
        text += &format!("\n| {name} |");
        for column in columns {
            let cell = match column.cells.iter().find(|(other, _)| *other == name) {
                Some((_, Verdict::Passed(took))) => format!("{:.0} s", took.as_secs_f32()),
                Some((_, Verdict::Failed(_))) => "**failed**".into(),
                Some((_, Verdict::Skipped)) => "skipped".into(),
                None => String::new(),
            };
            text += &format!(" {cell} |");
        }
    }
    text + "\n"
}

const SECTION_START: &str = "<!-- matrix: written by barge-guest matrix --report -->\n";
const SECTION_END: &str = "<!-- matrix end -->\n";

/// Replaces the results section of a document, or appends one.
pub(super) fn with_section(document: &str, table: &str) -> String {
    let (before, after) = match (document.find(SECTION_START), document.find(SECTION_END)) {
        (Some(start), Some(end)) if start < end => {
            (&document[..start], &document[end + SECTION_END.len()..])
        }
        _ => (document, ""),
    };
    format!("{before}{SECTION_START}{table}{SECTION_END}{after}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_report_is_replaced_where_it_was() {
        let first = with_section("# Title\n", "| a |\n");
        assert_eq!(
            first,
            format!("# Title\n{SECTION_START}| a |\n{SECTION_END}")
        );
        let second = with_section(&format!("{first}\nmore\n"), "| b |\n");
        assert_eq!(
            second,
            format!("# Title\n{SECTION_START}| b |\n{SECTION_END}\nmore\n")
        );
    }

    #[test]
    fn a_table_has_a_row_for_each_script() {
        let cells = vec![
            ("git", Verdict::Passed(Duration::from_secs(3))),
            ("fio", Verdict::Failed("status 1".into())),
        ];
        let column = Column {
            kernel: "6.1".into(),
            mount: "none",
            boot: Duration::from_secs(7),
            cells,
        };
        assert_eq!(
            table(&[column]),
            "| | 6.1 none |\n|---|---|\n| boot | 7 s |\n| git | 3 s |\n| fio | **failed** |\n"
        );
    }
}
