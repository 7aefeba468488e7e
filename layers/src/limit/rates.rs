//! Rates and their syntax on command lines and in files.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// Limits per second: `ops=1000,bytes=100M,burst=100ms`, or `none`.
///
/// `ops` is a number of operations, `bytes` a size with an optional suffix K, M, G or T (powers of
/// 1024). `burst` is the time whose tokens are saved up while they are not used, in `ms` or `s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Operations per second; `None` is unlimited.
    pub ops: Option<NonZeroU64>,
    /// Bytes read and written per second; `None` is unlimited.
    pub bytes: Option<NonZeroU64>,
    /// The time whose tokens are saved up.
    pub burst: Duration,
}

/// The error of invalid [`Rates`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRates(String);

impl Rates {
    /// No limits.
    pub const UNLIMITED: Rates = Rates {
        ops: None,
        bytes: None,
        burst: Rates::DEFAULT_BURST,
    };

    /// The default burst: short enough that a measurement of seconds shows the rate.
    pub const DEFAULT_BURST: Duration = Duration::from_millis(100);

    /// The minimum burst: a thread may be late by some milliseconds.
    pub const MIN_BURST: Duration = Duration::from_millis(10);

    /// The maximum burst.
    pub const MAX_BURST: Duration = Duration::from_secs(3600);

    /// The maximum of operations per second.
    pub const MAX_OPS: u64 = 1_000_000_000;

    /// The maximum of bytes per second.
    pub const MAX_BYTES: u64 = 1 << 50;

    /// Returns whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.ops.is_none() && self.bytes.is_none()
    }
}

impl Default for Rates {
    fn default() -> Rates {
        Rates::UNLIMITED
    }
}

impl FromStr for Rates {
    type Err = BadRates;

    fn from_str(text: &str) -> Result<Rates, BadRates> {
        if text == "none" {
            return Ok(Rates::UNLIMITED);
        }
        let (mut ops, mut bytes, mut burst) = (None, None, None);
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let set = match name {
                "ops" => replace(&mut ops, parse_ops(value)?),
                "bytes" => replace(&mut bytes, parse_bytes(value)?),
                "burst" => replace(&mut burst, parse_burst(value)?),
                _ => {
                    return Err(BadRates(format!(
                        "expected ops=N, bytes=SIZE, burst=TIME or none, got '{part}'"
                    )));
                }
            };
            if !set {
                return Err(BadRates(format!("expected one {name}=, got two")));
            }
        }
        if ops.is_none() && bytes.is_none() {
            return Err(BadRates(format!(
                "expected ops=N or bytes=SIZE, got '{text}'"
            )));
        }
        Ok(Rates {
            ops,
            bytes,
            burst: burst.unwrap_or(Rates::DEFAULT_BURST),
        })
    }
}

/// Sets `to`. Returns false if it was set.
fn replace<T>(to: &mut Option<T>, value: T) -> bool {
    to.replace(value).is_none()
}

fn parse_ops(text: &str) -> Result<NonZeroU64, BadRates> {
    let ops = text
        .parse()
        .ok()
        .filter(|ops| (1..=Rates::MAX_OPS).contains(ops));
    ops.and_then(NonZeroU64::new).ok_or_else(|| {
        BadRates(format!(
            "ops: expected a number from 1 to {}, got '{text}'",
            Rates::MAX_OPS
        ))
    })
}

/// The suffixes of sizes, with their units.
const UNITS: [(char, u64); 4] = [
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

fn parse_bytes(text: &str) -> Result<NonZeroU64, BadRates> {
    let unit = UNITS.iter().find_map(|(suffix, unit)| {
        let number = text.strip_suffix([*suffix, suffix.to_ascii_lowercase()])?;
        Some((number, *unit))
    });
    let (number, unit) = unit.unwrap_or((text, 1));
    let bytes = number.parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| *bytes <= Rates::MAX_BYTES);
    bytes.and_then(NonZeroU64::new).ok_or_else(|| {
        BadRates(format!(
            "bytes: expected a size from 1 to 1024T, such as 100M, got '{text}'"
        ))
    })
}

fn parse_burst(text: &str) -> Result<Duration, BadRates> {
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => {
            let number = text.strip_suffix('s').unwrap_or(text);
            number.parse().ok().map(Duration::from_secs)
        }
    };
    let allowed = Rates::MIN_BURST..=Rates::MAX_BURST;
    parsed
        .filter(|burst| allowed.contains(burst))
        .ok_or_else(|| {
            BadRates(format!(
                "burst: expected a time from 10ms to 3600s, such as 500ms, got '{text}'"
            ))
        })
}

/// Formats them as they are parsed.
impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("none");
        }
        let mut comma = "";
        if let Some(ops) = self.ops {
            write!(f, "ops={ops}")?;
            comma = ",";
        }
        if let Some(bytes) = self.bytes {
            let fits = |(_, unit): &&(char, u64)| bytes.get().is_multiple_of(*unit);
            match UNITS.iter().rev().find(fits) {
                Some((suffix, unit)) => write!(f, "{comma}bytes={}{suffix}", bytes.get() / unit)?,
                None => write!(f, "{comma}bytes={bytes}")?,
            }
        }
        if self.burst == Rates::DEFAULT_BURST {
            return Ok(());
        }
        match self.burst.subsec_millis() {
            0 => write!(f, ",burst={}s", self.burst.as_secs()),
            _ => write!(f, ",burst={}ms", self.burst.as_millis()),
        }
    }
}

impl fmt::Display for BadRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRates {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_formatted_as_they_are_parsed() {
        for text in [
            "none",
            "ops=1",
            "bytes=100M",
            "ops=1000,bytes=1025",
            "ops=1000000000,bytes=1024T,burst=3600s",
            "bytes=3K,burst=1500ms",
        ] {
            let rates: Rates = text.parse().expect(text);
            assert_eq!(rates.to_string(), text);
        }
        let rates: Rates = "bytes=1024k,burst=100ms".parse().expect("valid");
        assert_eq!(rates.to_string(), "bytes=1M");
    }

    #[test]
    fn other_rates_are_refused_with_the_expected_ones() {
        for (text, expected) in [
            ("", "expected ops=N, bytes=SIZE"),
            ("ops", "ops: expected a number from 1"),
            ("ops=0", "got '0'"),
            ("ops=1000000001", "from 1 to 1000000000"),
            ("ops=1k", "got '1k'"),
            ("ops=-1", "got '-1'"),
            ("bytes=0", "bytes: expected a size from 1"),
            ("bytes=1025T", "got '1025T'"),
            ("bytes=99999999999999999999", "bytes: expected"),
            ("bytes=18446744073709551615G", "bytes: expected"),
            ("bytes=1.5M", "got '1.5M'"),
            ("burst=1s", "expected ops=N or bytes=SIZE"),
            ("ops=1,burst=9ms", "burst: expected a time from 10ms"),
            ("ops=1,burst=3601s", "got '3601s'"),
            ("ops=1,burst=18446744073709551615s", "burst: expected"),
            ("ops=1,ops=2", "expected one ops=, got two"),
            ("iops=1", "got 'iops=1'"),
            ("ops=1,none", "got 'none'"),
        ] {
            let error = text.parse::<Rates>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
