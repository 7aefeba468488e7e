//! Filters of containerd's List calls (its package `pkg/filters`): selectors
//! `FIELD[.FIELD…][OPERATOR VALUE]`, separated by commas, which must all match. Of several filters
//! one must match.
//!
//! Fields are `kind`, `name`, `parent` and `labels.NAME`, as for containerd's own snapshotters;
//! operators are `==`, `!=` and `~=` (a regular expression). Fields and values may be quoted with
//! `"`, the value of `~=` also with `/` or `|`.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

use crate::api::{Info, Kind};
use crate::error::{Error, Result};

/// Largest number of filters of a call, and of bytes of each. containerd sends one of about 200
/// bytes.
const MAX_FILTERS: usize = 64;
const MAX_FILTER_LENGTH: usize = 8192;

/// Largest compiled size of a regular expression in bytes.
const MAX_REGEX_SIZE: usize = 1 << 20;

/// Filters, of which one must match; without any, all snapshots match.
pub(crate) struct Filters(Vec<Vec<Selector>>);

struct Selector {
    field: Vec<String>,
    condition: Condition,
}

enum Condition {
    Present,
    Equal(String),
    NotEqual(String),
    Matches(Regex),
}

impl Filters {
    /// Parses filters. Returns `InvalidArgument` for those that are not valid.
    pub(crate) fn parse(filters: &[String]) -> Result<Filters> {
        if filters.len() > MAX_FILTERS {
            return Err(Error::invalid(format!("more than {MAX_FILTERS} filters")));
        }
        let parse = |filter: &String| {
            let parsed = match filter.len() {
                0 => Ok(Vec::new()),
                1..=MAX_FILTER_LENGTH => Parser(filter.chars().peekable()).selectors(),
                _ => Err(format!("more than {MAX_FILTER_LENGTH} bytes")),
            };
            parsed.map_err(|why| Error::invalid(format!("filter '{filter}': {why}")))
        };
        filters
            .iter()
            .map(parse)
            .collect::<Result<_>>()
            .map(Filters)
    }

    /// Returns whether a snapshot matches.
    pub(crate) fn matches(&self, info: &Info) -> bool {
        let matches = |selectors: &Vec<Selector>| selectors.iter().all(|one| one.matches(info));
        self.0.is_empty() || self.0.iter().any(matches)
    }
}

impl Selector {
    fn matches(&self, info: &Info) -> bool {
        let value = value(info, &self.field);
        match &self.condition {
            Condition::Present => value.is_some(),
            Condition::Equal(expected) => value == Some(expected),
            Condition::NotEqual(expected) => value.unwrap_or_default() != expected,
            Condition::Matches(regex) => regex.is_match(value.unwrap_or_default()),
        }
    }
}

/// Returns the value of a field, or `None` if the snapshot has none.
fn value<'a>(info: &'a Info, field: &[String]) -> Option<&'a str> {
    match field.first()?.as_str() {
        "kind" => match info.kind() {
            Kind::Active => Some("active"),
            Kind::View => Some("view"),
            Kind::Committed => Some("committed"),
            Kind::Unknown => None,
        },
        "name" => Some(&info.name),
        "parent" => Some(&info.parent),
        "labels" => info.labels.get(&field[1..].join(".")).map(String::as_str),
        _ => None,
    }
}

struct Parser<'a>(Peekable<Chars<'a>>);

type Parsed<T> = std::result::Result<T, String>;

impl Parser<'_> {
    fn selectors(&mut self) -> Parsed<Vec<Selector>> {
        let mut selectors = vec![self.selector()?];
        loop {
            match self.next_token() {
                None => return Ok(selectors),
                Some(',') => {
                    self.0.next();
                    selectors.push(self.selector()?);
                }
                Some(other) => return Err(format!("expected ',', got '{other}'")),
            }
        }
    }

    fn selector(&mut self) -> Parsed<Selector> {
        let mut field = vec![self.field()?];
        while self.0.next_if_eq(&'.').is_some() {
            field.push(self.field()?);
        }
        let condition = match self.next_token() {
            None | Some(',') => Condition::Present,
            Some(_) => self.condition()?,
        };
        Ok(Selector { field, condition })
    }

    fn condition(&mut self) -> Parsed<Condition> {
        let operator = self.take_while(|c| "=!~".contains(c));
        match operator.as_str() {
            "==" => Ok(Condition::Equal(self.value("\"")?)),
            "!=" => Ok(Condition::NotEqual(self.value("\"")?)),
            "~=" => {
                let pattern = self.value("\"/|")?;
                let mut builder = RegexBuilder::new(&pattern);
                let regex = builder.size_limit(MAX_REGEX_SIZE).build();
                let regex = regex.map_err(|_| format!("invalid regular expression '{pattern}'"))?;
                Ok(Condition::Matches(regex))
            }
            other => Err(format!("expected ==, != or ~=, got '{other}'")),
        }
    }

    fn field(&mut self) -> Parsed<String> {
        if self.next_token() == Some('"') {
            return self.quoted();
        }
        let field = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        match field.is_empty() {
            true => Err("expected a field".into()),
            false => Ok(field),
        }
    }

    /// Parses a value, which may be within one of `quotes`.
    fn value(&mut self, quotes: &str) -> Parsed<String> {
        match self.next_token() {
            Some(quote) if quotes.contains(quote) => self.quoted(),
            Some('/' | '|') => Err("expected \" as the quote".into()),
            _ => {
                let value = self.take_while(|c| c != ',' && !c.is_whitespace() && !c.is_control());
                match value.is_empty() {
                    true => Err("expected a value".into()),
                    false => Ok(value),
                }
            }
        }
    }

    /// Parses text within the quote that comes next, with escapes as in Go.
    fn quoted(&mut self) -> Parsed<String> {
        let unterminated = || "expected a closing quote".to_string();
        let quote = self.0.next().ok_or_else(unterminated)?;
        let mut bytes = Vec::new();
        loop {
            match self.0.next().ok_or_else(unterminated)? {
                c if c == quote => break,
                '\n' => return Err(unterminated()),
                '\\' => self.escape(quote, &mut bytes)?,
                c => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        String::from_utf8(bytes).map_err(|_| "expected UTF-8".into())
    }

    fn escape(&mut self, quote: char, bytes: &mut Vec<u8>) -> Parsed<()> {
        let invalid = || "invalid escape".to_string();
        let c = self.0.next().ok_or_else(invalid)?;
        let byte = match c {
            'a' => 7,
            'b' => 8,
            't' => b'\t',
            'n' => b'\n',
            'v' => 11,
            'f' => 12,
            'r' => b'\r',
            '\\' => b'\\',
            'x' => self.digits(16, 2, 0)? as u8,
            'u' | 'U' => {
                let code = self.digits(16, if c == 'u' { 4 } else { 8 }, 0)?;
                let c = char::from_u32(code).ok_or_else(invalid)?;
                bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
                return Ok(());
            }
            '0'..='7' => {
                let first = c.to_digit(8).unwrap_or_default();
                u8::try_from(self.digits(8, 2, first)?).map_err(|_| invalid())?
            }
            c if c == quote && c.is_ascii() => c as u8,
            _ => return Err(invalid()),
        };
        bytes.push(byte);
        Ok(())
    }

    /// Parses `count` digits, of at most 32 bits, after a first one.
    fn digits(&mut self, radix: u32, count: usize, first: u32) -> Parsed<u32> {
        (0..count).try_fold(first, |number, _| {
            let digit = self.0.next().and_then(|c| c.to_digit(radix));
            let digit = digit.ok_or("invalid escape")?;
            Ok(number.wrapping_mul(radix).wrapping_add(digit))
        })
    }

    /// Skips white space and returns the next character.
    fn next_token(&mut self) -> Option<char> {
        while self.0.next_if(|c| c.is_whitespace()).is_some() {}
        self.0.peek().copied()
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        std::iter::from_fn(|| self.0.next_if(|&c| is_part(c))).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info() -> Info {
        Info {
            name: "k8s.io/3/a \"b\"".into(),
            parent: "p".into(),
            kind: Kind::Committed.into(),
            labels: [
                ("foo", "bar"),
                ("containerd.io/snapshot.ref", "sha256:ab"),
                ("ü", "x,y"),
            ]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
            ..Info::default()
        }
    }

    fn matches(filter: &str) -> bool {
        Filters::parse(&[filter.into()]).unwrap().matches(&info())
    }

    #[test]
    fn filters_match_as_in_containerd() {
        for filter in [
            "",
            "kind==committed",
            "kind!=active",
            "name==\"k8s.io/3/a \\\"b\\\"\"",
            "name~=^k8s",
            "name ~= /a \"b/",
            "name~=|k8s[.]io/3|",
            "parent==p,labels.foo==bar",
            "labels.foo",
            "labels.none!=bar",
            "none!=bar",
            "labels.\"containerd.io/snapshot.ref\"==sha256:ab,parent==\"p\"",
            "labels.\"\\u00fc\"==\"x,y\"",
            "labels.\"\\xc3\\xbc\"==\"x\\054y\"",
        ] {
            assert!(matches(filter), "{filter}");
        }
        for filter in [
            "kind==view",
            "labels.none",
            "none",
            "labels",
            "parent==q,labels.foo",
        ] {
            assert!(!matches(filter), "{filter}");
        }
        let two = ["parent==q".to_string(), "labels.foo".to_string()];
        assert!(Filters::parse(&two).unwrap().matches(&info()));
    }

    #[test]
    fn invalid_filters_are_refused() {
        for filter in [
            "==a",
            "name=",
            "name=a",
            "name===a",
            "name==",
            "a.",
            ".a",
            "name==\"a",
            "name==/a/",
            "a,",
            "a b",
            "name~=(",
            "name==\"\\q\"",
            "name==\"\\xff\"",
            "name==\"\\400\"",
            "name~=a{1000}{1000}{1000}",
        ] {
            let parsed = Filters::parse(&[filter.into()]);
            let kind = parsed.err().map(|error| error.kind);
            assert_eq!(
                kind,
                Some(crate::error::ErrorKind::InvalidArgument),
                "{filter}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(filter in "[a-z.,=!~\"/|\\\\ 0-9\n]{0,40}") {
            if let Ok(filters) = Filters::parse(&[filter]) {
                filters.matches(&info());
            }
        }

        #[test]
        fn quoted_values_are_equal(value in "[a-z,. ]{1,20}") {
            let filter = format!("name=={value:?}");
            let info = Info { name: value, ..Info::default() };
            prop_assert!(Filters::parse(&[filter]).unwrap().matches(&info));
        }
    }
}
