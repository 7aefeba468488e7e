//! The rules of a map of attribute names.

use std::borrow::Cow;
use std::str::FromStr;

use vfs::{Errno, Result};

use crate::BadMap;

/// A list of rules, of which the first that matches applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    action: Action,
    scope: Scope,
    key: Vec<u8>,
    prepend: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Prefix,
    Pass,
    Refuse(Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Client,
    Server,
    All,
}

impl FromStr for Rules {
    type Err = BadMap;

    /// Parses one rule or more.
    fn from_str(text: &str) -> std::result::Result<Rules, BadMap> {
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while let Some(separator) = rest.chars().next() {
            let mut fields = Fields {
                rest: &rest[separator.len_utf8()..],
                separator,
                rule: rest,
            };
            let kind = fields.next()?;
            if kind == "map" {
                let (key, prepend) = (fields.next()?, fields.next()?);
                if !fields.rest.is_empty() {
                    return Err(BadMap(format!(
                        "expected the rule 'map' to be the last, got {:?} after it",
                        fields.rest
                    )));
                }
                rules.extend(Rule::map(key, prepend));
                break;
            }
            rules.push(fields.rule(kind)?);
            rest = fields.rest.trim_start();
        }
        if rules.is_empty() {
            return Err(BadMap("expected a rule, got none".into()));
        }
        Ok(Rules(rules))
    }
}

/// The unparsed fields of a list of rules.
struct Fields<'a> {
    rest: &'a str,
    separator: char,
    /// The text from the start of the current rule on.
    rule: &'a str,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> std::result::Result<&'a str, BadMap> {
        let (field, rest) = self.rest.split_once(self.separator).ok_or_else(|| {
            BadMap(format!(
                "expected :TYPE:SCOPE:KEY:PREPEND: or :map:KEY:PREPEND:, got {:?}",
                self.rule
            ))
        })?;
        self.rest = rest;
        Ok(field)
    }

    fn rule(&mut self, kind: &str) -> std::result::Result<Rule, BadMap> {
        let does = match kind {
            "prefix" => Action::Prefix,
            "ok" => Action::Pass,
            "bad" => Action::Refuse(Errno::EPERM),
            "unsupported" => Action::Refuse(Errno::EOPNOTSUPP),
            _ => {
                return Err(BadMap(format!(
                    "expected prefix, ok, bad, unsupported or map, got {kind:?}"
                )));
            }
        };
        let scope = match self.next()? {
            "client" => Scope::Client,
            "server" => Scope::Server,
            "all" => Scope::All,
            other => {
                return Err(BadMap(format!(
                    "expected client, server or all, got {other:?}"
                )));
            }
        };
        Ok(Rule::new(does, scope, self.next()?, self.next()?))
    }
}

impl Rule {
    fn new(does: Action, scope: Scope, key: &str, prepend: &str) -> Rule {
        Rule {
            action: does,
            scope,
            key: key.into(),
            prepend: prepend.into(),
        }
    }

    /// Returns the rules that `map` abbreviates: the prefix; then, unless `key` is empty, a rule
    /// that refuses names that would bypass it from either side; then the rest.
    fn map(key: &str, prepend: &str) -> impl Iterator<Item = Rule> {
        let refuse = Action::Refuse(Errno::EPERM);
        let (around, rest) = match key {
            "" => (None, refuse),
            _ => (
                Some(Rule::new(refuse, Scope::All, prepend, key)),
                Action::Pass,
            ),
        };
        [Rule::new(Action::Prefix, Scope::All, key, prepend)]
            .into_iter()
            .chain(around)
            .chain([Rule::new(rest, Scope::All, "", "")])
    }
}

impl Rules {
    /// Returns the source's name for a client's `name`.
    pub(super) fn to_source<'a>(&self, name: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        // As Linux does for an empty name, which a prefix would make valid.
        if name.is_empty() {
            return Err(Errno::ERANGE);
        }
        let matches = |rule: &&Rule| rule.scope != Scope::Server && name.starts_with(&rule.key);
        let rule = self.0.iter().find(matches).ok_or(Errno::EPERM)?;
        match rule.action {
            Action::Prefix => Ok(Cow::Owned([&rule.prepend, name].concat())),
            Action::Pass => Ok(Cow::Borrowed(name)),
            Action::Refuse(errno) => Err(errno),
        }
    }

    /// Returns the name that clients see in a listing for the source's `name`, if any.
    pub(super) fn to_client<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let matches = |rule: &&Rule| rule.scope != Scope::Client && name.starts_with(&rule.prepend);
        let rule = self.0.iter().find(matches)?;
        match rule.action {
            Action::Prefix => Some(&name[rule.prepend.len()..]).filter(|name| !name.is_empty()),
            Action::Pass => Some(name),
            Action::Refuse(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(text: &str) -> Rules {
        text.parse().unwrap_or_else(|bad| panic!("{text}: {bad}"))
    }

    fn below(map: &Rules, name: &str) -> Result<String> {
        let name = map.to_source(name.as_bytes())?;
        Ok(String::from_utf8(name.into_owned()).expect("text"))
    }

    fn above<'a>(map: &Rules, name: &'a str) -> Option<&'a str> {
        let name = map.to_client(name.as_bytes())?;
        Some(str::from_utf8(name).expect("text"))
    }

    #[test]
    fn prefix_is_put_before_names_and_taken_from_listings() {
        let both = map(":prefix:all:trusted.:user.virtiofs.:");
        let inward = map(":prefix:client:trusted.:user.virtiofs.:");
        let outward = map(":prefix:server::user.virtiofs.:");
        let mapped = "user.virtiofs.trusted.x";
        for map in [&both, &inward] {
            assert_eq!(below(map, "trusted.x").as_deref(), Ok(mapped));
            assert_eq!(below(map, "user.x"), Err(Errno::EPERM));
        }
        for map in [&both, &outward] {
            assert_eq!(above(map, mapped), Some("trusted.x"));
            assert_eq!(above(map, "user.x"), None);
        }
        assert_eq!(above(&inward, mapped), None);
        assert_eq!(below(&outward, "trusted.x"), Err(Errno::EPERM));
        assert_eq!(above(&both, "user.virtiofs."), None, "no name is left");
    }

    #[test]
    fn ok_leaves_names() {
        let map = map(":ok:client:user.:: :ok:server::security.:");
        assert_eq!(below(&map, "user.x").as_deref(), Ok("user.x"));
        assert_eq!(below(&map, "security.x"), Err(Errno::EPERM));
        assert_eq!(above(&map, "security.x"), Some("security.x"));
        assert_eq!(above(&map, "user.x"), None);
    }

    #[test]
    fn bad_and_unsupported_refuse_and_hide() {
        for (kind, errno) in [("bad", Errno::EPERM), ("unsupported", Errno::EOPNOTSUPP)] {
            let map = map(&format!("/{kind}/all/security./security./ /ok/all///"));
            assert_eq!(below(&map, "security.selinux"), Err(errno));
            assert_eq!(above(&map, "security.selinux"), None);
            assert_eq!(below(&map, "user.x").as_deref(), Ok("user.x"));
            assert_eq!(above(&map, "user.x"), Some("user.x"));
        }
        let one_way = map(":bad:server::security.::ok:all:::");
        assert_eq!(above(&one_way, "security.x"), None);
        assert_eq!(below(&one_way, "security.x").as_deref(), Ok("security.x"));
    }

    #[test]
    fn map_stands_for_the_rules_of_the_manual() {
        assert_eq!(
            map(":map::user.virtiofs.:"),
            map(":prefix:all::user.virtiofs.::bad:all:::")
        );
        let some = map("/map/trusted./user.virtiofs./");
        let spelt = map("/prefix/all/trusted./user.virtiofs./
                         /bad/server//trusted./
                         /bad/client/user.virtiofs.//
                         /ok/all///");
        for name in ["trusted.x", "user.virtiofs.trusted.x", "user.x", "system.x"] {
            assert_eq!(below(&some, name), below(&spelt, name), "{name}");
            assert_eq!(above(&some, name), above(&spelt, name), "{name}");
        }
        assert_eq!(below(&some, "user.virtiofs.trusted.x"), Err(Errno::EPERM));
        assert_eq!(above(&some, "trusted.x"), None);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let map = map(":ok:all:user.a:user.a: |bad|all|user.|user.| :ok:all:::");
        assert_eq!(below(&map, "user.a").as_deref(), Ok("user.a"));
        assert_eq!(below(&map, "user.b"), Err(Errno::EPERM));
        assert_eq!(below(&map, "").err(), Some(Errno::ERANGE));
    }

    #[test]
    fn what_is_no_map_says_what_was_expected() {
        for (text, expected) in [
            ("", "expected a rule, got none"),
            (" \n", "expected a rule, got none"),
            (":prefix:client:hi", "expected :TYPE:SCOPE:KEY:PREPEND:"),
            (":prefix:all:a:b", "expected :TYPE:SCOPE:KEY:PREPEND:"),
            (":map:a:b", "expected :TYPE:SCOPE:KEY:PREPEND:"),
            (
                ":maybe:all:::",
                "expected prefix, ok, bad, unsupported or map",
            ),
            ("/ok/both///", "expected client, server or all"),
            (
                ":map:a:b::map:c:d:",
                "expected the rule 'map' to be the last",
            ),
            (
                ":map:a:b: :ok:all:::",
                "expected the rule 'map' to be the last",
            ),
        ] {
            let bad = text.parse::<Rules>().expect_err(text).to_string();
            assert!(bad.starts_with(expected), "{text:?}: {bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_map_or_is_refused(text in "[:/ a-z.]{0,60}|\\PC{0,40}", name in ".{0,20}") {
            if let Ok(map) = text.parse::<Rules>() {
                let _ = map.to_source(name.as_bytes());
                let _ = map.to_client(name.as_bytes());
            }
        }

        #[test]
        fn what_a_map_rule_takes_in_comes_out_again(
            key in "(user|trusted|security)\\.|",
            name in "(user|trusted|security)\\.[a-z]{1,9}",
        ) {
            let map = map(&format!(":map:{key}:user.virtiofs.:"));
            match map.to_source(name.as_bytes()) {
                Ok(below) => prop_assert_eq!(map.to_client(&below), Some(name.as_bytes())),
                Err(errno) => prop_assert_eq!(errno, Errno::EPERM),
            }
        }
    }
}
