//! The contents of stateids and client IDs, and the special stateids.
//!
//! A stateid's `other` consists of the boot number, the client's number and a serial number of the
//! client; a client ID of the boot number and the client's number. A session ID is random.

use core::cmp::Ordering;

use crate::v4::{ClientId, StateId, Status};

use super::Tree;
use super::client::{Client, Minor};

/// The special stateids, which name no state (RFC 7530 section 9.1.4.3, RFC 8881 section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// All zeros: no open.
    Anonymous,
    /// All ones: no open, and READ may bypass deny modes.
    Bypass,
    /// v4.1: the current stateid, from the last operation of the compound that returned one.
    Current,
    /// v4.1: the invalid stateid.
    Invalid,
}

/// Returns whether `stateid` is special. In v4.0, [`Special::Current`] and [`Special::Invalid`] are
/// `BAD_STATEID`.
pub fn special(stateid: &StateId) -> Option<Special> {
    match (stateid.seqid, stateid.other) {
        (0, ZEROS) => Some(Special::Anonymous),
        (1, ZEROS) => Some(Special::Current),
        (_, ZEROS) => Some(Special::Invalid),
        (u32::MAX, ONES) => Some(Special::Bypass),
        (_, ONES) => Some(Special::Invalid),
        _ => None,
    }
}

const ZEROS: [u8; 12] = [0; 12];
const ONES: [u8; 12] = [0xff; 12];

/// The result of CLOSE in v4.1: a stateid of no further use (RFC 8881 section 18.2.4).
pub(super) const INVALID: StateId = StateId {
    seqid: u32::MAX,
    other: ZEROS,
};

/// The parts of a stateid's `other`.
pub(super) struct Parts {
    pub(super) boot: u32,
    pub(super) client: u32,
    pub(super) serial: u32,
}

impl Parts {
    pub(super) fn of(stateid: &StateId) -> Parts {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = stateid.other;
        Parts {
            boot: u32::from_be_bytes([a, b, c, d]),
            client: u32::from_be_bytes([e, f, g, h]),
            serial: u32::from_be_bytes([i, j, k, l]),
        }
    }
}

/// Returns the stateid of a client's state `serial`.
pub(super) fn stateid(client: ClientId, serial: u32, seqid: u32) -> StateId {
    let mut other = [0; 12];
    other[..8].copy_from_slice(&client.to_be_bytes());
    other[8..].copy_from_slice(&serial.to_be_bytes());
    StateId { seqid, other }
}

pub(super) fn client_id(boot: u32, number: u32) -> ClientId {
    u64::from(boot) << 32 | u64::from(number)
}

/// Returns the seqid after `seqid`, which is never 0 (RFC 8881 section 8.2.2).
pub(super) fn next(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

/// Checks that `given` is the state's current seqid `now` (RFC 7530 section 9.1.4.2, RFC 8881
/// section 8.2.2). Returns `OLD_STATEID` for an earlier seqid, `BAD_STATEID` for a later one.
pub(super) fn check<T: Tree>(client: &Client<T>, given: u32, now: u32) -> Result<(), Status> {
    if client.minor == Minor::V41 && given == 0 {
        return Ok(());
    }
    // Half of the range counts as earlier, as in serial number arithmetic.
    match (given.wrapping_sub(now) as i32).cmp(&0) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(Status::OldStateid),
        Ordering::Greater => Err(Status::BadStateid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8881_8_2_3_special_stateids() {
        assert_eq!(special(&StateId::ANONYMOUS), Some(Special::Anonymous));
        assert_eq!(special(&StateId::BYPASS), Some(Special::Bypass));
        assert_eq!(special(&StateId::CURRENT), Some(Special::Current));
        assert_eq!(special(&INVALID), Some(Special::Invalid));
        assert_eq!(special(&stateid(client_id(1, 1), 1, 1)), None);
    }

    #[test]
    fn a_stateid_comes_apart_again() {
        let parts = Parts::of(&stateid(client_id(7, 8), 9, 1));
        assert_eq!((parts.boot, parts.client, parts.serial), (7, 8, 9));
    }

    #[test]
    fn rfc8881_8_2_2_a_seqid_goes_around_without_zero() {
        assert_eq!(next(1), 2);
        assert_eq!(next(u32::MAX), 1);
    }
}
