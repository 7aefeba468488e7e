//! The rules that say which paths of a tree are hidden.

use std::collections::HashMap;
use std::str::FromStr;

/// The maximum length in bytes of a pattern: that of a path (`PATH_MAX`).
const MAX_PATTERN: usize = 4096;

/// The maximum number of parts of all listed paths.
const MAX_LISTED_PARTS: usize = 8 << 20;

/// A pattern of `--hide`. Without `/` it matches names in all directories; with one, paths from the
/// root, also of directories above the matching name: all below them is hidden.
///
/// `*` matches any bytes of a name, `?` one, `[a-z]` and `[!a-z]` one of a set, `\` quotes the next
/// one, and `**` as a part of a path any number of directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The parts of the path; one that matches everywhere has a single part.
    parts: Vec<Vec<u8>>,
    is_anchored: bool,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let refuse = |expected: &str| Err(format!("expected {expected}, got '{text}'"));
        if text.len() > MAX_PATTERN {
            return Err(format!("expected at most {MAX_PATTERN} bytes"));
        }
        let path = text.strip_prefix('/').unwrap_or(text);
        let parts: Vec<Vec<u8>> = path.split('/').map(|part| part.into()).collect();
        let is_name = |part: &Vec<u8>| !matches!(&part[..], b"" | b"." | b"..");
        if !parts.iter().all(is_name) {
            return refuse("a pattern such as '*.key' or '/home/*/.ssh'");
        }
        if parts.last().is_some_and(|part| part == b"**") {
            return refuse("a name after '**'");
        }
        if !parts.iter().all(|part| is_complete(part)) {
            return refuse("a ']' for each '[', and a character after '\\'");
        }
        Ok(Pattern {
            is_anchored: text.contains('/'),
            parts,
        })
    }
}

/// The paths that are shown, if not all are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathList {
    /// The root is the first.
    nodes: Vec<ListNode>,
    /// Whether the root itself is listed, and so everything.
    shows_all: bool,
    /// A hash of the text.
    digest: [u8; 32],
}

/// A directory above listed paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListNode {
    /// The next directory for each name, or `None` for a listed one.
    children: HashMap<Box<[u8]>, Option<u32>>,
}

impl PathList {
    /// Parses a list of paths from the root of the tree, one on each line, with or without a
    /// leading `/`. Paths that begin with `prefix` may have it. The error says what was expected.
    pub fn parse(text: &[u8], prefix: &[u8]) -> Result<PathList, String> {
        let mut list = PathList {
            nodes: vec![ListNode::default()],
            shows_all: false,
            digest: *blake3::hash(text).as_bytes(),
        };
        let mut parts = 0;
        for line in text.split(|&byte| byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let path = match line.strip_prefix(prefix) {
                Some(rest) if rest.is_empty() || rest[0] == b'/' || prefix.is_empty() => rest,
                _ => line,
            };
            let names = path.split(|&byte| byte == b'/');
            let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
            if names.iter().any(|name| *name == b".." || name.contains(&0)) {
                let shown = String::from_utf8_lossy(line);
                return Err(format!(
                    "expected a path without '..', got '{}'",
                    shown.escape_debug()
                ));
            }
            parts += names.len();
            if parts > MAX_LISTED_PARTS {
                return Err(format!(
                    "expected paths of at most {MAX_LISTED_PARTS} parts in all"
                ));
            }
            list.insert(&names);
        }
        Ok(list)
    }

    fn insert(&mut self, names: &[&[u8]]) {
        let Some((last, above)) = names.split_last() else {
            self.shows_all = true;
            return;
        };
        let mut at = 0;
        for name in above {
            let next = self.nodes.len() as u32;
            let child = self.nodes[at].children.entry((*name).into());
            match *child.or_insert(Some(next)) {
                // Everything below is listed.
                None => return,
                Some(child) => {
                    if child == next {
                        self.nodes.push(ListNode::default());
                    }
                    at = child as usize;
                }
            }
        }
        self.nodes[at].children.insert((*last).into(), None);
    }
}

/// All rules of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    patterns: Vec<Pattern>,
    /// The parts of each pattern without differences of case.
    folded: Vec<Vec<Vec<u8>>>,
    only: Option<PathList>,
}

/// The rules that apply within a directory, apart from those that apply everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Patterns, and the part of each that a name has to match next.
    patterns: Vec<(u32, u32)>,
    /// The directory of the list, if it does not show everything here.
    listed: Option<u32>,
}

impl Rules {
    /// Returns the rules that hide what `patterns` match, and show only what `only` lists.
    pub fn new(patterns: Vec<Pattern>, only: Option<PathList>) -> Rules {
        let fold_all = |pattern: &Pattern| pattern.parts.iter().map(|part| fold(part)).collect();
        Rules {
            folded: patterns.iter().map(fold_all).collect(),
            patterns,
            only: only.filter(|only| !only.shows_all),
        }
    }

    /// Returns whether nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty() && self.only.is_none()
    }

    /// Returns whether a path from the root is hidden.
    pub fn hides(&self, path: &[u8]) -> bool {
        let mut place = self.root();
        let mut names = path.split(|&byte| byte == b'/');
        names.any(|name| match self.child(&place, name) {
            Some(below) => {
                place = below;
                false
            }
            None => true,
        })
    }

    /// Returns a hash of the rules.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for pattern in &self.patterns {
            hasher.update(format!("{pattern:?}").as_bytes());
        }
        if let Some(only) = &self.only {
            hasher.update(&only.digest);
        }
        *hasher.finalize().as_bytes()
    }

    /// Returns whether all directories have the same place.
    pub(super) fn are_uniform(&self) -> bool {
        self.only.is_none() && !self.patterns.iter().any(|pattern| pattern.is_anchored)
    }

    pub(super) fn root(&self) -> Place {
        let mut place = Place {
            patterns: Vec::new(),
            listed: self.only.as_ref().map(|_| 0),
        };
        for (number, pattern) in self.patterns.iter().enumerate() {
            if pattern.is_anchored {
                self.add(&mut place, number as u32, 0);
            }
        }
        place
    }

    /// Returns the place of the directory `name`, or nothing if `name` is hidden.
    pub(super) fn child(&self, place: &Place, name: &[u8]) -> Option<Place> {
        self.child_by(place, name, |number, at| {
            matches(&self.patterns[number].parts[at], name)
        })
    }

    /// Does the same for a directory that ignores the case of names.
    pub(super) fn child_ignoring_case(&self, place: &Place, name: &[u8]) -> Option<Place> {
        let folded = fold(name);
        self.child_by(place, name, |number, at| {
            matches(&self.folded[number][at], &folded)
                || matches(&self.patterns[number].parts[at], name)
        })
    }

    /// Returns whether a rule might apply to `name` in a directory that equates names by rules that
    /// are not known here: of case, of normal forms of Unicode, of characters without a width.
    pub(super) fn may_apply(&self, place: &Place, name: &[u8]) -> bool {
        let everywhere = self.patterns.iter().filter(|pattern| !pattern.is_anchored);
        let mut everywhere = everywhere.map(|pattern| &pattern.parts[0]);
        let here = |&(number, at): &(u32, u32)| &self.patterns[number as usize].parts[at as usize];
        everywhere.any(|part| may_match(part, name))
            || place
                .patterns
                .iter()
                .map(here)
                .any(|part| may_match(part, name))
    }

    /// Returns the place of the directory `name`, or nothing if `name` is hidden. `is_match`
    /// compares the name with a part of a pattern.
    fn child_by(
        &self,
        place: &Place,
        name: &[u8],
        is_match: impl Fn(usize, usize) -> bool,
    ) -> Option<Place> {
        let mut everywhere = self.patterns.iter().enumerate();
        if everywhere.any(|(number, pattern)| !pattern.is_anchored && is_match(number, 0)) {
            return None;
        }
        let mut below = Place::default();
        if let (Some(list), Some(at)) = (&self.only, place.listed) {
            below.listed = *list.nodes[at as usize].children.get(name)?;
        }
        for &(number, at) in &place.patterns {
            let parts = &self.patterns[number as usize].parts;
            let part = &parts[at as usize];
            if part == b"**" {
                self.add(&mut below, number, at);
            } else if is_match(number as usize, at as usize) {
                if at as usize + 1 == parts.len() {
                    return None;
                }
                self.add(&mut below, number, at + 1);
            }
        }
        Some(below)
    }

    /// Adds a part of a pattern to a place, and those that may take its turn.
    fn add(&self, place: &mut Place, number: u32, mut at: u32) {
        let parts = &self.patterns[number as usize].parts;
        loop {
            if !place.patterns.contains(&(number, at)) {
                place.patterns.push((number, at));
            }
            if parts[at as usize] != b"**" {
                return;
            }
            at += 1;
        }
    }
}

/// Returns a name, or a part of a pattern, without differences of case.
fn fold(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        // Upper case first: several lower-case letters may have the same one.
        Ok(text) => {
            let upper = text.chars().flat_map(char::to_uppercase);
            upper
                .flat_map(char::to_lowercase)
                .collect::<String>()
                .into()
        }
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Returns whether a part of a pattern might match a name if case is ignored, and if each character
/// that is not ASCII might equal any text. The time is bounded by the product of their lengths.
fn may_match(part: &[u8], name: &[u8]) -> bool {
    // `None` is any text.
    let literal = |byte: u8| byte.is_ascii().then(|| byte.to_ascii_lowercase());
    let mut elements = Vec::new();
    let mut rest = part;
    while let Some((element, after)) = next(rest) {
        elements.push(match element {
            Element::Byte(byte) => literal(byte),
            Element::Any | Element::Set { .. } | Element::Run => None,
        });
        rest = after.unwrap_or_default();
    }
    let name: Vec<_> = name.iter().map(|&byte| literal(byte)).collect();
    // Whether the elements so far may match the first bytes of the name, for each number of bytes.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for at in 0..name.len() {
        reached[at + 1] = reached[at] && name[at].is_none();
    }
    for element in elements {
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            // Any text of the pattern may be empty, and any text of the name may contain this.
            let before = at.checked_sub(1);
            next[at] = (element.is_none() && reached[at])
                || before.is_some_and(|before| match (element, name[before]) {
                    (_, None) => reached[at] || reached[before] || next[before],
                    (None, _) => next[before] || reached[before],
                    (Some(expected), Some(found)) => expected == found && reached[before],
                });
        }
        reached = next;
    }
    reached[name.len()]
}

/// Returns whether each `[` of a part has its `]`, and each `\` a character after it.
fn is_complete(mut part: &[u8]) -> bool {
    while let Some((_, rest)) = next(part) {
        match rest {
            Some(rest) => part = rest,
            None => return false,
        }
    }
    true
}

/// An element of a pattern.
enum Element<'a> {
    Byte(u8),
    Any,
    Set { set: &'a [u8], negated: bool },
    Run,
}

/// Returns the first element of a pattern and the rest, which is missing if the element is
/// incomplete.
fn next(part: &[u8]) -> Option<(Element<'_>, Option<&[u8]>)> {
    let (&first, rest) = part.split_first()?;
    Some(match (first, rest) {
        (b'*', _) => (Element::Run, Some(rest)),
        (b'?', _) => (Element::Any, Some(rest)),
        (b'\\', _) => match rest.split_first() {
            Some((&byte, rest)) => (Element::Byte(byte), Some(rest)),
            None => (Element::Byte(b'\\'), None),
        },
        (b'[', _) => {
            let negated = matches!(rest.first(), Some(b'!' | b'^'));
            let set = &rest[usize::from(negated)..];
            // A ']' that is first belongs to the set.
            match set.iter().skip(1).position(|&byte| byte == b']') {
                Some(end) => {
                    let (set, rest) = set.split_at(end + 1);
                    (Element::Set { set, negated }, Some(&rest[1..]))
                }
                None => (Element::Byte(b'['), None),
            }
        }
        (byte, _) => (Element::Byte(byte), Some(rest)),
    })
}

/// Returns whether a part of a pattern matches a name. The time is bounded by the product of their
/// lengths.
fn matches(part: &[u8], name: &[u8]) -> bool {
    let (mut part, mut name) = (part, name);
    // The rest after the last run, and the name from where the run may take one byte more.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let fits = match (next(part), name.split_first()) {
            (None, None) => return true,
            (Some((Element::Run, rest)), _) => {
                part = rest.unwrap_or_default();
                retry = Some((part, name));
                continue;
            }
            (Some((element, Some(rest))), Some((&byte, left))) if element.matches(byte) => {
                Some((rest, left))
            }
            _ => None,
        };
        match (fits, retry) {
            (Some((rest, left)), _) => (part, name) = (rest, left),
            (None, Some((after, from))) => {
                let Some((_, left)) = from.split_first() else {
                    return false;
                };
                retry = Some((after, left));
                (part, name) = (after, left);
            }
            (None, None) => return false,
        }
    }
}

impl Element<'_> {
    fn matches(&self, byte: u8) -> bool {
        match *self {
            Element::Byte(expected) => byte == expected,
            Element::Any => true,
            Element::Run => false,
            Element::Set { mut set, negated } => {
                let mut found = false;
                while let [first, rest @ ..] = set {
                    match rest {
                        [b'-', last, rest @ ..] => {
                            found |= (*first..=*last).contains(&byte);
                            set = rest;
                        }
                        _ => {
                            found |= *first == byte;
                            set = rest;
                        }
                    }
                }
                found != negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_hidden(rules: &Rules, path: &str) -> bool {
        rules.hides(path.as_bytes())
    }

    #[test]
    fn a_part_matches_names() {
        for (part, name, expected) in [
            ("*.key", "a.key", true),
            ("*.key", ".key", true),
            ("*.key", "a.keys", false),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXbYb", false),
            ("?", "", false),
            ("??", "ab", true),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[!a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(
                matches(part.as_bytes(), name.as_bytes()),
                expected,
                "{part} {name}"
            );
        }
        // Runs do not multiply.
        let many = "*a".repeat(100);
        assert!(!matches(many.as_bytes(), "a".repeat(99).as_bytes()));
        assert!(matches(many.as_bytes(), "a".repeat(250).as_bytes()));
    }

    #[test]
    fn a_name_that_a_source_might_equate_with_a_hidden_one_is_recognised() {
        for (part, name, expected) in [
            ("*.key", "SECRET.KEY", true),
            ("*.key", "secret.txt", false),
            ("*.key", "secret.\u{212a}ey", true),
            ("secret", "sec\u{ad}ret", true),
            ("secret", "\u{17f}ecret", true),
            ("secret", "\u{17f}ecrets", false),
            ("cl\u{e9}", "cle\u{301}", true),
            ("cle\u{301}", "cl\u{e9}", true),
            ("cle\u{301}", "CL\u{c9}", true),
            ("cl\u{e9}", "cli", true),
            ("cl\u{e9}", "kli", false),
            ("[a-c]x", "BX", true),
            ("a", "", false),
            ("*", "", true),
        ] {
            let found = may_match(part.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{part} {name}");
        }
        let rules = Rules::new(vec![pattern("Geheim-\u{dc}*"), pattern("/home/.ssh")], None);
        let root = rules.root();
        let hides = |name: &str| rules.child_ignoring_case(&root, name.as_bytes()).is_none();
        assert!(hides("geheim-\u{fc}ber") && hides("GEHEIM-\u{dc}"));
        assert!(!hides("geheim-u") && !hides("home"));
        let home = rules.child_ignoring_case(&root, b"HOME").expect("shown");
        assert!(rules.child(&home, b".ssh").is_none());
        assert!(rules.child_ignoring_case(&home, b".SSH").is_none());
    }

    #[test]
    fn patterns_hide_names_everywhere_or_paths_from_the_root() {
        let patterns = [".git", "/etc/shadow*", "home/*/.ssh", "/a/**/b", "**/c/d"];
        let rules = Rules::new(patterns.iter().map(|text| pattern(text)).collect(), None);
        for (path, expected) in [
            (".git", true),
            ("x/y/.git/config", true),
            (".github", false),
            ("etc/shadow-", true),
            ("x/etc/shadow", false),
            ("home/me/.ssh/id", true),
            ("home/.ssh", false),
            ("a/b", true),
            ("a/x/y/b/z", true),
            ("b", false),
            ("c/d", true),
            ("x/c/d", true),
            ("d", false),
        ] {
            assert_eq!(is_hidden(&rules, path), expected, "{path}");
        }
        assert!(!rules.are_uniform());
        assert!(Rules::new(vec![pattern("*.o")], None).are_uniform());
    }

    #[test]
    fn a_list_shows_its_paths_what_is_below_and_the_way_to_them() {
        let list = b"/nix/store/abc\nnix/store/def/bin\n/nix/store/def\nx/y\n\n";
        let list = PathList::parse(list, b"").expect("a list");
        let rules = Rules::new(vec![pattern("secret")], Some(list));
        for (path, expected) in [
            ("nix", false),
            ("nix/store", false),
            ("nix/store/abc/deep/er", false),
            ("nix/store/abc/secret", true),
            ("nix/store/def/lib", false),
            ("nix/store/xyz", true),
            ("nix/var", true),
            ("x/z", true),
            ("y", true),
        ] {
            assert_eq!(is_hidden(&rules, path), expected, "{path}");
        }
        let prefixed = PathList::parse(b"/srv/a\n/srv2/b\n", b"/srv").expect("a list");
        let rules = Rules::new(Vec::new(), Some(prefixed));
        assert!(!is_hidden(&rules, "a") && !is_hidden(&rules, "srv2/b"));
        assert!(is_hidden(&rules, "b"));
        let all = PathList::parse(b"a/b\n/\n", b"").expect("a list");
        assert!(Rules::new(Vec::new(), Some(all)).is_empty());
        // An empty list hides all.
        let empty = PathList::parse(b"", b"").expect("a list");
        assert!(is_hidden(&Rules::new(Vec::new(), Some(empty)), "a"));
        assert!(PathList::parse(b"a/../b", b"").is_err());
    }

    #[test]
    fn a_pattern_that_cannot_match_is_refused() {
        for text in [
            "", "/", "a//b", "a/", "./a", "a/..", "[a", "a\\", "a/**", "**",
        ] {
            let error = text.parse::<Pattern>().expect_err(text);
            assert!(error.starts_with("expected"), "{error}");
        }
        assert!("a".repeat(5000).parse::<Pattern>().is_err());
    }
}
