//! The report as text.

use super::{Finding, Report};

/// Formats a line for each finding, and one below it for the remedy if it is missing.
pub(super) fn text(report: &Report, colour: bool) -> String {
    let paint = |code: &str, text: &str| match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let Report {
        version, kernel, ..
    } = report;
    let mut text = format!("barge {version}, Linux {kernel}\n");
    let names = report
        .findings
        .iter()
        .map(|finding| finding.name.chars().count());
    let width = names.max().unwrap_or(0);
    let mut group = "";
    for finding in &report.findings {
        if finding.group != group {
            group = finding.group;
            text.push_str(&format!("\n{}\n", paint("1", group)));
        }
        let Finding { name, means, .. } = finding;
        let mark = match finding.found {
            true => paint("32", "yes"),
            false => paint("33", "no "),
        };
        text.push_str(&format!("  {mark}  {name:width$}  {means}\n"));
        if let Some(bring) = &finding.bring {
            text.push_str(&format!("       {:width$}  -> {bring}\n", ""));
        }
    }
    text.push_str(match report.works {
        true => "\nbarge can serve directories on this host: barge serve\n",
        false => "\nbarge cannot serve directories on this host: see the first lines\n",
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let finding = |name, found, bring: Option<&str>| Finding {
            group: "serving",
            name,
            found,
            means: "this or that".into(),
            bring: bring.map(str::to_owned),
        };
        Report {
            version: "1",
            kernel: "6.1".into(),
            works: true,
            findings: vec![
                finding("a", true, None),
                finding("long", false, Some("do it")),
            ],
        }
    }

    #[test]
    fn columns_stand_below_each_other() {
        assert_eq!(
            text(&report(), false),
            "barge 1, Linux 6.1\n\nserving\n\
             \x20 yes  a     this or that\n\
             \x20 no   long  this or that\n\
             \x20            -> do it\n\
             \nbarge can serve directories on this host: barge serve\n"
        );
    }

    #[test]
    fn colour_is_asked_for() {
        assert!(text(&report(), true).contains("\x1b[32myes\x1b[0m"));
        assert!(!text(&report(), false).contains('\x1b'));
    }
}
