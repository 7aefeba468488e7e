//! Maps of ids between clients and the host.

use std::str::FromStr;

use vfs::{Errno, Result};

use crate::BadMap;

/// A range of `count` ids: those of clients from `client` on are the host's from `host` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IdRange {
    pub client: u32,
    pub host: u32,
    pub count: u32,
}

/// The mapping of a range of ids, in one direction or both, in the syntax of virtiofsd's
/// `--translate-uid`:
///
/// | | |
/// |---|---|
/// | `map:CLIENT:HOST:COUNT` | maps client ids to host ids, and host ids to client ids |
/// | `guest:CLIENT:HOST:COUNT` | maps client ids to host ids |
/// | `host:HOST:CLIENT:COUNT` | maps host ids to client ids |
/// | `squash-guest:CLIENT:HOST:COUNT` | maps all these client ids to one host id |
/// | `squash-host:HOST:CLIENT:COUNT` | maps all these host ids to one client id |
/// | `forbid-guest:CLIENT:COUNT` | refuses these client ids with `EPERM` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    to_host: Option<RangeMapping>,
    to_client: Option<RangeMapping>,
}

/// A map of ids in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap {
    to_host: DirectionMap,
    to_client: DirectionMap,
}

/// One of the two directions: pieces that do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectionMap {
    pieces: Vec<RangeMapping>,
    /// Whether ids in no piece map to themselves; otherwise they have no image.
    maps_others: bool,
}

/// The mapping of `count` ids from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RangeMapping {
    from: u32,
    count: u32,
    to: MapTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapTarget {
    /// As many ids, from this one on.
    Range(u32),
    Single(u32),
    Forbidden,
}

impl FromStr for IdRange {
    type Err = BadMap;

    /// Parses `CLIENT:HOST:COUNT`.
    fn from_str(text: &str) -> std::result::Result<IdRange, BadMap> {
        match numbers(text)[..] {
            [Some(client), Some(host), Some(count)] => Ok(IdRange {
                client,
                host,
                count,
            }),
            _ => Err(BadMap(format!("expected CLIENT:HOST:COUNT, got {text:?}"))),
        }
    }
}

impl FromStr for Translation {
    type Err = BadMap;

    fn from_str(text: &str) -> std::result::Result<Translation, BadMap> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let numbers = numbers(rest);
        let (to_host, to_client) = match (kind, &numbers[..]) {
            ("forbid-guest", &[Some(from), Some(count)]) => (
                Some(RangeMapping::new(from, MapTarget::Forbidden, count)),
                None,
            ),
            (_, &[Some(from), Some(to), Some(count)]) => {
                let range = Some(RangeMapping::new(from, MapTarget::Range(to), count));
                let squash = Some(RangeMapping::new(from, MapTarget::Single(to), count));
                match kind {
                    "map" => (
                        range,
                        Some(RangeMapping::new(to, MapTarget::Range(from), count)),
                    ),
                    "guest" => (range, None),
                    "host" => (None, range),
                    "squash-guest" => (squash, None),
                    "squash-host" => (None, squash),
                    _ => (None, None),
                }
            }
            _ => (None, None),
        };
        if to_host.or(to_client).is_none() {
            return Err(BadMap(format!(
                "expected TYPE:FROM:TO:COUNT of type map, guest, host, squash-guest or squash-host, \
                 or forbid-guest:FROM:COUNT, got {text:?}"
            )));
        }
        Ok(Translation { to_host, to_client })
    }
}

/// Splits `text` at colons and parses each field, `None` where it is not a 32-bit number.
fn numbers(text: &str) -> Vec<Option<u32>> {
    text.split(':').map(|number| number.parse().ok()).collect()
}

impl IdMap {
    /// Returns the map of every id to itself.
    pub fn identity() -> IdMap {
        IdMap::empty(true)
    }

    /// Creates a map of these ranges, in both directions. Each must have at least one id, and only
    /// ids below 2^32 - 1 (which is invalid); ranges must not overlap. Ids outside all ranges have
    /// no image.
    pub fn new(ranges: Vec<IdRange>) -> std::result::Result<IdMap, BadMap> {
        let mut map = IdMap::empty(false);
        for IdRange {
            client,
            host,
            count,
        } in ranges
        {
            map.to_host
                .add(RangeMapping::new(client, MapTarget::Range(host), count))?;
            map.to_client
                .add(RangeMapping::new(host, MapTarget::Range(client), count))?;
        }
        Ok(map)
    }

    /// Creates a map of these translations, under [`IdMap::new`]'s conditions for each direction.
    /// Other ids map to themselves.
    pub fn translate(translations: &[Translation]) -> std::result::Result<IdMap, BadMap> {
        let mut map = IdMap::identity();
        for translation in translations {
            if let Some(piece) = translation.to_host {
                map.to_host.add(piece)?;
            }
            if let Some(piece) = translation.to_client {
                map.to_client.add(piece)?;
            }
        }
        Ok(map)
    }

    fn empty(others: bool) -> IdMap {
        let way = DirectionMap {
            pieces: Vec::new(),
            maps_others: others,
        };
        IdMap {
            to_host: way.clone(),
            to_client: way,
        }
    }

    /// Returns the host's id for a client's: `EOVERFLOW` if no range contains it, `EPERM` if it is
    /// forbidden.
    pub fn to_host(&self, id: u32) -> Result<u32> {
        self.to_host.map(id)
    }

    /// Returns the client's id for the host's, with the same errors.
    pub(super) fn to_client(&self, id: u32) -> Result<u32> {
        self.to_client.map(id)
    }
}

impl RangeMapping {
    fn new(from: u32, to: MapTarget, count: u32) -> RangeMapping {
        RangeMapping { from, count, to }
    }
}

impl DirectionMap {
    fn add(&mut self, piece: RangeMapping) -> std::result::Result<(), BadMap> {
        let RangeMapping { from, count, to } = piece;
        let target = match to {
            MapTarget::Range(to) => to.checked_add(count),
            MapTarget::Single(to) => to.checked_add(1),
            MapTarget::Forbidden => Some(0),
        };
        let (Some(end), Some(_), 1..) = (from.checked_add(count), target, count) else {
            return Err(BadMap(format!(
                "expected at least one id, all below 4294967295, got a range of {count} from {from}"
            )));
        };
        for other in &self.pieces {
            if from < other.from + other.count && other.from < end {
                return Err(BadMap(format!(
                    "expected disjoint ranges, got id {} in two",
                    from.max(other.from)
                )));
            }
        }
        self.pieces.push(piece);
        Ok(())
    }

    fn map(&self, id: u32) -> Result<u32> {
        let has = |piece: &&RangeMapping| id.wrapping_sub(piece.from) < piece.count;
        match self.pieces.iter().find(has) {
            Some(piece) => match piece.to {
                MapTarget::Range(to) => Ok(to + (id - piece.from)),
                MapTarget::Single(to) => Ok(to),
                MapTarget::Forbidden => Err(Errno::EPERM),
            },
            None if self.maps_others && id != u32::MAX => Ok(id),
            None => Err(Errno::EOVERFLOW),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Result<u32> = Err(Errno::EOVERFLOW);

    fn parse<T: FromStr<Err = BadMap>>(text: &str) -> std::result::Result<T, String> {
        text.parse().map_err(|bad: BadMap| bad.to_string())
    }

    fn map(texts: &[&str]) -> std::result::Result<IdMap, BadMap> {
        IdMap::new(texts.iter().map(|text| parse(text).expect(text)).collect())
    }

    fn translate(texts: &[&str]) -> std::result::Result<IdMap, BadMap> {
        let rules: Vec<_> = texts.iter().map(|text| parse(text).expect(text)).collect();
        IdMap::translate(&rules)
    }

    #[test]
    fn a_range_reads_as_written() {
        let range = IdRange {
            client: 0,
            host: 100_000,
            count: 65_536,
        };
        assert_eq!(parse("0:100000:65536"), Ok(range));
        for text in ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", "1:2:4294967296"] {
            let error = parse::<IdRange>(text).expect_err("no range");
            assert_eq!(error, format!("expected CLIENT:HOST:COUNT, got {text:?}"));
        }
    }

    #[test]
    fn ranges_do_not_overlap_or_overflow() {
        assert!(map(&["0:0:1", "1:100001:65535"]).is_ok());
        assert!(map(&["0:0:4294967295"]).is_ok());
        for bad in [
            &["0:0:0"][..],
            &["1:0:4294967295"],
            &["0:1:4294967295"],
            &["0:0:10", "9:100:1"],
            &["0:0:10", "100:9:1"],
        ] {
            assert!(map(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_outside_all_ranges_have_no_image() {
        let map = map(&["10:1000:5"]).expect("a map");
        assert_eq!(map.to_host(10), Ok(1000));
        assert_eq!(map.to_host(14), Ok(1004));
        assert_eq!((map.to_host(9), map.to_host(15)), (NONE, NONE));
        assert_eq!(map.to_client(1004), Ok(14));
        assert_eq!((map.to_client(999), map.to_client(1005)), (NONE, NONE));
        assert_eq!(IdMap::identity().to_host(u32::MAX), NONE, "no id at all");
    }

    #[test]
    fn translations_are_for_a_direction_or_both() {
        for (text, inward, outward) in [
            ("map:0:1000:5", Ok(1002), Ok(2)),
            ("guest:0:1000:5", Ok(1002), Ok(1002)),
            ("host:1000:0:5", Ok(2), Ok(2)),
            ("squash-guest:0:1000:5", Ok(1000), Ok(1002)),
            ("squash-host:1000:0:5", Ok(2), Ok(0)),
            ("forbid-guest:0:5", Err(Errno::EPERM), Ok(1002)),
        ] {
            let map = translate(&[text]).expect(text);
            assert_eq!(map.to_host(2), inward, "{text}");
            assert_eq!(map.to_client(1002), outward, "{text}");
            assert_eq!(map.to_host(5), Ok(5), "{text}: others stay");
            assert_eq!(map.to_client(999), Ok(999), "{text}: others stay");
        }
    }

    #[test]
    fn translations_overlap_in_one_direction_at_most() {
        assert!(translate(&["guest:0:1000:5", "host:1000:0:5"]).is_ok());
        assert!(translate(&["squash-guest:0:1:9", "squash-guest:9:1:9"]).is_ok());
        assert!(translate(&["squash-host:0:4294967294:4294967295"]).is_ok());
        for bad in [
            &["guest:0:1000:5", "forbid-guest:4:1"][..],
            &["map:0:1000:5", "host:1004:7:1"],
            &["squash-guest:0:4294967295:1"],
            &["forbid-guest:4294967295:1"],
            &["forbid-guest:0:0"],
        ] {
            assert!(translate(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_translation_says_what_was_expected() {
        for text in [
            "",
            "both:0:1:2",
            "map",
            "guest:0:1",
            "host:0:1:2:3",
            "squash-guest:0:x:2",
            "forbid-guest:0:1:2",
        ] {
            let error = parse::<Translation>(text).expect_err(text);
            assert!(error.starts_with("expected TYPE:FROM:TO:COUNT"), "{error}");
            assert!(error.ends_with(&format!("got {text:?}")), "{error}");
        }
    }
}
