//! `--uid-map` and `--gid-map`: id maps as in a user namespace.

use std::str::FromStr;

use layers::{IdMap, IdRange};

use crate::Failure;

/// `:NAMESPACE:HOST:COUNT:`, with any separator that is no letter or digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceRange(IdRange);

impl FromStr for NamespaceRange {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceRange, String> {
        let separator = text.chars().next().filter(|c| !c.is_alphanumeric());
        let inside = separator.and_then(|separator| {
            let inside = text.strip_prefix(separator)?.strip_suffix(separator)?;
            Some(inside.replace(separator, ":"))
        });
        inside
            .and_then(|inside| inside.parse().ok())
            .map(NamespaceRange)
            .ok_or_else(|| format!("expected :NAMESPACE:HOST:COUNT:, got {text:?}"))
    }
}

/// Returns the id map of `ranges`, or the identity without ranges. A process that may not act as
/// other users can only map its own id (`only`).
pub(super) fn namespace(
    option: &str,
    ranges: &[NamespaceRange],
    only: Option<u32>,
) -> Result<IdMap, Failure> {
    let ranges: Vec<IdRange> = ranges.iter().map(|range| range.0).collect();
    match (ranges.as_slice(), only) {
        ([], _) => return Ok(IdMap::identity()),
        (_, None) => {}
        ([range], Some(own)) if range.host == own && range.count == 1 => {}
        (_, Some(own)) => {
            return Err(Failure::usage(format!(
                "{option}: expected only the id of this process, {own}, which lacks the privileges to use others"
            )));
        }
    }
    IdMap::new(ranges).map_err(|bad| Failure::usage(format!("{option}: {bad}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_stands_between_separators() {
        let range = |client, host, count| {
            Ok(NamespaceRange(IdRange {
                client,
                host,
                count,
            }))
        };
        assert_eq!(":0:100000:65536:".parse(), range(0, 100_000, 65_536));
        assert_eq!("/1/2/3/".parse(), range(1, 2, 3));
        for text in [
            "", ":", "::", "0:1:2", ":0:1:2", ":0:1:", ":0:1:2/", "00102010",
        ] {
            assert!(text.parse::<NamespaceRange>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn who_may_not_act_as_others_is_itself_alone() {
        let map = |texts: &[&str], own| {
            let ranges: Vec<_> = texts.iter().map(|text| text.parse().expect(text)).collect();
            namespace("--uid-map", &ranges, own).map_err(|failure| failure.status)
        };
        let id = |client, host, count| IdRange {
            client,
            host,
            count,
        };
        assert_eq!(map(&[], Some(7)), Ok(IdMap::identity()));
        let root = IdMap::new(vec![id(0, 7, 1)]).expect("a map");
        assert_eq!(map(&[":0:7:1:"], Some(7)), Ok(root));
        let many = IdMap::new(vec![id(0, 100_000, 9)]).expect("a map");
        assert_eq!(map(&[":0:100000:9:"], None), Ok(many));
        assert_eq!(map(&[":0:8:1:"], Some(7)), Err(2));
        assert_eq!(map(&[":0:7:2:"], Some(7)), Err(2));
        assert_eq!(map(&[":0:7:1:", ":1:8:1:"], Some(7)), Err(2));
        assert_eq!(map(&[":0:0:9:", ":1:20:1:"], None), Err(2));
    }
}
