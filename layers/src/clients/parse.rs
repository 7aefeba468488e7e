//! Parser of client lists.

use std::fmt;
use std::str::FromStr;

use vfs::{BadLocation, Location};

use super::{Clients, Entry};
use crate::squash::SquashMode;

/// The error of an invalid list: the expected syntax, and the text found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadList(String);

impl fmt::Display for BadList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadList {}

/// The maximum number of locations in `replicas=`, and of hosts in one of them.
const MAX_REPLICAS: usize = 16;

/// Parses one or more `CLIENT(OPTION,…)`, separated by blanks, as after the path in a line of
/// exports(5).
impl FromStr for Clients {
    type Err = BadList;

    fn from_str(text: &str) -> Result<Clients, BadList> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut before = None;
        for word in text.split_whitespace() {
            // exports(5) takes options after a blank for those of all clients, which is hardly ever
            // meant.
            if word.starts_with('(') {
                let client = before.unwrap_or("*");
                return Err(BadList(format!(
                    "expected a client right before '(', such as {client}{word}; '*{word}' is for \
                     all clients"
                )));
            }
            before = Some(word);
            let entry = entry(word).map_err(BadList)?;
            if entries.iter().any(|other| other.pattern == entry.pattern) {
                return Err(BadList(format!("'{}' occurs twice", entry.pattern)));
            }
            entries.push(entry);
        }
        match entries.len() {
            0 => Err(BadList("expected CLIENT(OPTIONS), got none".into())),
            1..=Clients::MAX_ENTRIES => Ok(Clients::new(entries)),
            many => Err(BadList(format!(
                "expected at most {} clients, got {many}",
                Clients::MAX_ENTRIES
            ))),
        }
    }
}

fn entry(word: &str) -> Result<Entry, String> {
    let (pattern, options) = match word.split_once('(') {
        None => (word, ""),
        Some((pattern, rest)) => {
            let options = rest.strip_suffix(')');
            (
                pattern,
                options.ok_or_else(|| format!("expected CLIENT(OPTIONS), got '{word}'"))?,
            )
        }
    };
    let mut entry = Entry::new(pattern.parse()?);
    let (mut root, mut all) = (true, false);
    for option in options.split(',').filter(|_| !options.is_empty()) {
        match option {
            "ro" => entry.read_only = true,
            "rw" => entry.read_only = false,
            "root_squash" => root = true,
            "no_root_squash" => root = false,
            "all_squash" => all = true,
            "no_all_squash" => all = false,
            "secure" => entry.secure = true,
            "insecure" => entry.secure = false,
            _ => match option.strip_prefix("replicas=") {
                Some(list) => entry.replicas = replicas(list)?,
                None => number(&mut entry, option)?,
            },
        }
    }
    entry.squash.mode = match (all, root) {
        (true, _) => SquashMode::All,
        (false, true) => SquashMode::Root,
        (false, false) => SquashMode::None,
    };
    Ok(entry)
}

/// Parses `/PATH@HOST[+HOST…][:/PATH@HOST…]`.
fn replicas(list: &str) -> Result<Vec<Location>, String> {
    // A colon within an address is not followed by a slash.
    let mut rest = Some(list);
    let mut found = Vec::new();
    while let Some(text) = rest {
        let (location, after) = match text.find(":/") {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let location: Location = location.parse().map_err(|BadLocation| {
            format!("expected replicas=/PATH@HOST[+HOST...][:/PATH@HOST...], got 'replicas={list}'")
        })?;
        if found.len() == MAX_REPLICAS || location.hosts.len() > MAX_REPLICAS {
            return Err(format!(
                "replicas=: expected at most {MAX_REPLICAS} locations with {MAX_REPLICAS} hosts each"
            ));
        }
        found.push(location);
        rest = after;
    }
    Ok(found)
}

fn number(entry: &mut Entry, option: &str) -> Result<(), String> {
    let (field, id) = match option.split_once('=') {
        Some(("anonuid", id)) => (&mut entry.squash.uid, id),
        Some(("anongid", id)) => (&mut entry.squash.gid, id),
        // Options for behaviour that is fixed here.
        None if ["sync", "no_subtree_check"].contains(&option) => return Ok(()),
        _ => {
            return Err(format!(
                "expected ro, rw, root_squash, no_root_squash, all_squash, secure, insecure, anonuid=UID, anongid=GID or replicas=/PATH@HOST, got '{option}'"
            ));
        }
    };
    *field = id
        .parse()
        .map_err(|_| format!("expected a number, got '{option}'"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::squash::{NOBODY, Squash};

    fn parse(text: &str) -> Result<Clients, BadList> {
        text.parse()
    }

    #[test]
    fn what_counts_first_stands_first_and_the_rest_is_as_exports_has_it() {
        let list = parse(
            "*(ro) 10.0.0.0/8(rw,sync) 10.1.0.0/16(rw,no_root_squash)\t localhost 10.1.1.1(all_squash,anonuid=7,anongid=8)",
        );
        let list = list.expect("a list");
        let squash = |mode, uid, gid| Squash { mode, uid, gid };
        let seen: Vec<_> = list
            .entries()
            .iter()
            .map(|entry| (entry.pattern.to_string(), entry.read_only, entry.squash))
            .collect();
        let expected = [
            ("localhost", true, squash(SquashMode::Root, NOBODY, NOBODY)),
            ("10.1.1.1", true, squash(SquashMode::All, 7, 8)),
            (
                "10.1.0.0/16",
                false,
                squash(SquashMode::None, NOBODY, NOBODY),
            ),
            (
                "10.0.0.0/8",
                false,
                squash(SquashMode::Root, NOBODY, NOBODY),
            ),
            ("*", true, squash(SquashMode::Root, NOBODY, NOBODY)),
        ];
        assert_eq!(
            seen,
            expected.map(|(name, ro, squash)| (name.to_owned(), ro, squash))
        );
    }

    #[test]
    fn ports_below_1024_are_asked_for_unless_the_list_says_insecure() {
        let list = parse("10.0.0.1 10.0.0.2(secure) 10.0.0.3(insecure) 10.0.0.4(insecure,secure)");
        let list = list.expect("a list");
        let secure: Vec<_> = list.entries().iter().map(|entry| entry.secure).collect();
        assert_eq!(secure, [true, true, false, true]);
    }

    #[test]
    fn replicas_are_paths_on_one_or_more_servers() {
        let list = parse("*(ro,replicas=/a@h1+fd00::2:/b@10.0.0.3)").expect("a list");
        let replicas: Vec<_> = list.entries()[0]
            .replicas
            .iter()
            .map(Location::to_string)
            .collect();
        assert_eq!(replicas, ["/a@h1+fd00::2", "/b@10.0.0.3"]);
        let many = |host: &str| format!("*(replicas={host})");
        let text = many(&vec!["/a@h"; MAX_REPLICAS].join(":"));
        assert!(parse(&text).is_ok());
        parse(&many(&vec!["/a@h"; MAX_REPLICAS + 1].join(":"))).expect_err("too many");
    }

    #[test]
    fn a_blank_before_options_is_refused_rather_than_taken_for_all_clients() {
        let why = parse("10.0.0.0/24 (rw)").expect_err("the options of nobody");
        assert_eq!(
            why.to_string(),
            "expected a client right before '(', such as 10.0.0.0/24(rw); '*(rw)' is for all clients"
        );
    }

    #[test]
    fn what_is_no_list_says_what_was_expected() {
        let many: Vec<String> = (0..=Clients::MAX_ENTRIES)
            .map(|i| format!("10.0.{}.{}", i / 256, i % 256))
            .collect();
        for text in [
            "",
            " ",
            "host(rw)",
            "*(rw",
            "*(rw)x",
            "*(rx)",
            "*(anonuid)",
            "*(anonuid=x)",
            "*(anonuid=-1)",
            "*(sec=krb5)",
            "*(replicas=)",
            "*(replicas=/a@)",
            "*(replicas=a@b)",
            "*(replicas=/a@b:/c)",
            "* (rw)",
            "(rw)",
            "10.0.0.0/24 (rw)",
            "10.0.0.0/24\t(rw)",
            "10.0.0.0/24\n(rw)",
            "10.0.0.0/24(ro) (rw)",
            "10.0.0.0/24(rw, no_root_squash)",
            "10.0.0.0/24( rw)",
            "10.0.0.0/24(rw )",
            "10.0.0.0/24(rw,,no_root_squash)",
            "10.0.0.0/24(rw,)",
            "10.0.0.0/24(rw)10.0.1.0/24(ro)",
            "-rw 10.0.0.0/24",
            "* *",
            &many.join(" "),
        ] {
            let why = parse(text).expect_err(text).to_string();
            assert!(
                why.contains("expected") || why.contains("twice"),
                "{text}: {why}"
            );
        }
    }
}
