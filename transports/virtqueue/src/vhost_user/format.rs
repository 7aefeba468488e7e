//! The bytes of a suspended device.
//!
//! ```text
//! "barge-vu" | version u32
//! features u64 | acked features u64 | acked protocol features u64 | bits u8
//!     bit 0: the monitor has requested the features
//!     bit 1: offset u64, size u64 of the dirty log
//!     bit 2: queues u16, size u16 of the records of requests in flight
//!     bit 3: it is a kept device, whose queues were not stopped: the positions of those that run,
//!         and their requests without a reply, are in the records
//! count u32 | regions: guest address u64, monitor's address u64, size u64, file offset u64
//! count u32 | queues: size u16, next available index u16, bits u8, and
//!     bit 0: descriptor table u64, available ring u64, used ring u64, at the monitor's addresses
//!     bit 1: guest address u64 of the used ring for the dirty log
//!     bit 2: it has a kick event; bit 3: it has a call event
//!     bit 4: it is enabled; bit 5: it runs
//!     count u16 | requests that were put back: head descriptors u16, with bit 15 if the request
//!         may have been begun before the queue ran the last time
//! "end\n"
//! ```
//! Numbers are little-endian. *features* are those of the device, and *acked features* those of the
//! connection: a reset clears only the former. The descriptors that belong to these bytes are, in
//! this order: the connected socket, the file of each region, that of the dirty log, that of the
//! records of requests in flight, and the kick and the call event of each queue.
//!
//! A reader trusts nothing: counts are bounded, memory grows with the bytes that arrive, and the
//! numbers are checked where they are used, as those in the monitor's messages.

use std::io::{self, ErrorKind};

use wire::StreamReader;

use crate::in_flight::{Dimensions, Unanswered};

use super::{Addresses, MAX_QUEUE_SIZE, MAX_REGIONS};

const MAGIC: &[u8; 8] = b"barge-vu";
const VERSION: u32 = 1;
const END: &[u8; 4] = b"end\n";

/// Bits of a device.
const REQUESTED: u8 = 1;
const LOG: u8 = 1 << 1;
const IN_FLIGHT: u8 = 1 << 2;
const KEPT: u8 = 1 << 3;

/// The bit of a request that is repeated.
const REPEATED: u16 = 1 << 15;

/// Bits of a queue.
const ADDRESSES: u8 = 1;
const LOG_USED: u8 = 1 << 1;
const KICK: u8 = 1 << 2;
const CALL: u8 = 1 << 3;
const ENABLED: u8 = 1 << 4;
const RUNS: u8 = 1 << 5;

/// The state of a suspended or kept device, without its descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedDevice {
    /// The features of the device.
    pub(super) features: u64,
    /// The features that the monitor acknowledged last.
    pub(super) acked_features: u64,
    pub(super) acked_protocol_features: u64,
    /// Whether the monitor has requested the features.
    pub(super) features_requested: bool,
    /// The offset and the size of the dirty log in its file, in bytes.
    pub(super) log: Option<(u64, u64)>,
    /// The records of requests in flight.
    pub(super) in_flight: Option<Dimensions>,
    /// Whether it is kept: the positions of queues that run are in the records, which exist.
    pub(super) is_kept: bool,
    pub(super) regions: Vec<SavedRegion>,
    pub(super) queues: Vec<SavedQueue>,
}

/// A region of the guest's memory; addresses, size and offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedRegion {
    pub(super) guest: u64,
    pub(super) monitor: u64,
    pub(super) size: u64,
    pub(super) offset: u64,
}

/// A queue that is stopped, or one of a kept device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedQueue {
    pub(super) size: u16,
    pub(super) next_avail: u16,
    pub(super) addresses: Option<Addresses>,
    /// See [`super::QueueSetup::log_used`].
    pub(super) log_used: Option<u64>,
    pub(super) has_kick: bool,
    pub(super) has_call: bool,
    pub(super) enabled: bool,
    /// Whether it ran until the device was suspended, or runs.
    pub(super) runs: bool,
    /// The requests that were put back.
    pub(super) put_back: Vec<Unanswered>,
}

impl SavedDevice {
    /// Returns the number of its descriptors.
    pub(super) fn descriptors(&self) -> usize {
        let of_queue =
            |queue: &SavedQueue| usize::from(queue.has_kick) + usize::from(queue.has_call);
        let queues: usize = self.queues.iter().map(of_queue).sum();
        let files = usize::from(self.log.is_some()) + usize::from(self.in_flight.is_some());
        1 + self.regions.len() + files + queues
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer(MAGIC.to_vec());
        to.u32(VERSION);
        for features in [
            self.features,
            self.acked_features,
            self.acked_protocol_features,
        ] {
            to.u64(features);
        }
        to.bits([
            (REQUESTED, self.features_requested),
            (LOG, self.log.is_some()),
            (IN_FLIGHT, self.in_flight.is_some()),
            (KEPT, self.is_kept),
        ]);
        if let Some((offset, size)) = self.log {
            to.u64(offset);
            to.u64(size);
        }
        if let Some(Dimensions { queues, size }) = self.in_flight {
            to.u16(queues);
            to.u16(size);
        }
        to.u32(self.regions.len() as u32);
        for region in &self.regions {
            let SavedRegion {
                guest,
                monitor,
                size,
                offset,
            } = *region;
            for number in [guest, monitor, size, offset] {
                to.u64(number);
            }
        }
        to.u32(self.queues.len() as u32);
        for queue in &self.queues {
            to.queue(queue);
        }
        to.0.extend(END);
        to.0
    }

    /// Parses the state of a device with at most `most` queues.
    ///
    /// Returns `UnexpectedEof` if it is truncated, and `InvalidData` if it has another version, too
    /// many regions, queues or requests, unknown bits, or bytes after its end.
    pub(super) fn parse(bytes: &[u8], most: usize) -> io::Result<SavedDevice> {
        let mut from = Reader(StreamReader::new(bytes));
        if &from.0.array::<8>()? != MAGIC {
            return Err(invalid("the state of a vhost-user device of barge"));
        }
        match from.0.u32()? {
            VERSION => {}
            other => return Err(invalid(&format!("version {VERSION}, got {other}"))),
        }
        let mut device = SavedDevice {
            features: from.0.u64()?,
            acked_features: from.0.u64()?,
            acked_protocol_features: from.0.u64()?,
            ..SavedDevice::default()
        };
        let bits = from.bits(REQUESTED | LOG | IN_FLIGHT | KEPT)?;
        device.features_requested = bits & REQUESTED != 0;
        if bits & LOG != 0 {
            device.log = Some((from.0.u64()?, from.0.u64()?));
        }
        if bits & IN_FLIGHT != 0 {
            let (queues, size) = (from.0.u16()?, from.0.u16()?);
            let dimensions = Dimensions::checked(queues, size, most);
            let expected = || invalid("records of requests of this device");
            device.in_flight = Some(dimensions.ok_or_else(expected)?);
        }
        device.is_kept = bits & KEPT != 0;
        if device.is_kept && device.in_flight.is_none() {
            return Err(invalid("records of requests of a kept device"));
        }
        for _ in 0..from.count(MAX_REGIONS, "regions")? {
            device.regions.push(SavedRegion {
                guest: from.0.u64()?,
                monitor: from.0.u64()?,
                size: from.0.u64()?,
                offset: from.0.u64()?,
            });
        }
        for _ in 0..from.count(most, "queues")? {
            device.queues.push(from.queue()?);
        }
        match (&from.0.array()?, *from.0.stream()) {
            (END, []) => Ok(device),
            _ => Err(invalid("the end of the state")),
        }
    }
}

/// Writes a state.
struct Writer(Vec<u8>);

impl Writer {
    fn queue(&mut self, queue: &SavedQueue) {
        self.u16(queue.size);
        self.u16(queue.next_avail);
        self.bits([
            (ADDRESSES, queue.addresses.is_some()),
            (LOG_USED, queue.log_used.is_some()),
            (KICK, queue.has_kick),
            (CALL, queue.has_call),
            (ENABLED, queue.enabled),
            (RUNS, queue.runs),
        ]);
        if let Some(at) = queue.addresses {
            for address in [at.descriptors, at.available, at.used] {
                self.u64(address);
            }
        }
        if let Some(address) = queue.log_used {
            self.u64(address);
        }
        self.u16(queue.put_back.len() as u16);
        for &Unanswered { head, is_repeated } in &queue.put_back {
            self.u16(head | if is_repeated { REPEATED } else { 0 });
        }
    }

    fn bits<const COUNT: usize>(&mut self, bits: [(u8, bool); COUNT]) {
        let set = bits.into_iter().filter(|&(_, is_set)| is_set);
        self.0.push(set.fold(0, |all, (bit, _)| all | bit));
    }

    fn u16(&mut self, number: u16) {
        self.0.extend(number.to_le_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }
}

/// Reads a state.
struct Reader<'a>(StreamReader<&'a [u8]>);

impl Reader<'_> {
    fn queue(&mut self) -> io::Result<SavedQueue> {
        let (size, next_avail) = (self.0.u16()?, self.0.u16()?);
        if size != 0 && !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(invalid(&format!("the size of a queue, got {size}")));
        }
        let bits = self.bits(ADDRESSES | LOG_USED | KICK | CALL | ENABLED | RUNS)?;
        let addresses = match bits & ADDRESSES {
            0 => None,
            _ => Some(Addresses {
                descriptors: self.0.u64()?,
                available: self.0.u64()?,
                used: self.0.u64()?,
            }),
        };
        let log_used = match bits & LOG_USED {
            0 => None,
            _ => Some(self.0.u64()?),
        };
        let count = self.0.u16()?;
        if count > MAX_QUEUE_SIZE {
            return Err(invalid("fewer requests that were put back"));
        }
        let request = |bits: u16| Unanswered {
            head: bits & !REPEATED,
            is_repeated: bits & REPEATED != 0,
        };
        let put_back: Vec<_> = (0..count)
            .map(|_| self.0.u16().map(request))
            .collect::<io::Result<_>>()?;
        Ok(SavedQueue {
            size,
            next_avail,
            addresses,
            log_used,
            has_kick: bits & KICK != 0,
            has_call: bits & CALL != 0,
            enabled: bits & ENABLED != 0,
            runs: bits & RUNS != 0,
            put_back,
        })
    }

    /// Reads a number of entries. Returns an error if it is more than `most`.
    fn count(&mut self, most: usize, entries: &str) -> io::Result<usize> {
        let count = self.0.u32()?;
        let fits = usize::try_from(count).ok().filter(|&count| count <= most);
        fits.ok_or_else(|| invalid(&format!("at most {most} {entries}, got {count}")))
    }

    fn bits(&mut self, known: u8) -> io::Result<u8> {
        let [bits] = self.0.array()?;
        match bits & !known {
            0 => Ok(bits),
            _ => Err(invalid("known bits")),
        }
    }
}

/// Returns the error of a state that cannot be resumed.
pub(super) fn invalid(expected: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("state of a suspended device: expected {expected}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> SavedDevice {
        SavedDevice {
            features: 1 << 32,
            acked_features: 1 << 32 | 1,
            acked_protocol_features: 9,
            features_requested: true,
            log: Some((4096, 512)),
            in_flight: None,
            is_kept: false,
            regions: vec![SavedRegion {
                guest: 0x1000,
                monitor: 0x5000,
                size: 0x2000,
                offset: 0x3000,
            }],
            queues: vec![
                SavedQueue {
                    size: 256,
                    next_avail: 7,
                    addresses: Some(Addresses {
                        descriptors: 0x5000,
                        available: 0x6000,
                        used: 0x6800,
                    }),
                    log_used: Some(0x2800),
                    has_kick: true,
                    has_call: true,
                    enabled: true,
                    runs: true,
                    put_back: vec![Unanswered::new(3), Unanswered::repeated(258)],
                },
                SavedQueue::default(),
            ],
        }
    }

    /// The offsets of the count of regions and of that of queues, and of the first queue.
    const REGIONS: usize = 53;
    const QUEUES: usize = REGIONS + 4 + 32;
    const QUEUE: usize = QUEUES + 4;

    fn golden() -> Vec<u8> {
        [
            &b"barge-vu\x01\0\0\0"[..],
            b"\0\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\x03",
            b"\0\x10\0\0\0\0\0\0\0\x02\0\0\0\0\0\0",
            b"\x01\0\0\0",
            b"\0\x10\0\0\0\0\0\0\0\x50\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\x30\0\0\0\0\0\0",
            b"\x02\0\0\0",
            b"\0\x01\x07\0\x3f",
            b"\0\x50\0\0\0\0\0\0\0\x60\0\0\0\0\0\0\0\x68\0\0\0\0\0\0",
            b"\0\x28\0\0\0\0\0\0\x02\0\x03\0\x02\x81",
            b"\0\0\0\0\0\0\0",
            b"end\n",
        ]
        .concat()
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(device().encode(), golden());
        assert_eq!(SavedDevice::parse(&golden(), 2).expect("whole"), device());
        assert_eq!(device().descriptors(), 5);
        let none = SavedDevice::default();
        assert_eq!(SavedDevice::parse(&none.encode(), 0).expect("whole"), none);
        assert_eq!(none.descriptors(), 1);
    }

    #[test]
    fn records_of_requests_in_flight_are_of_this_devices_queues() {
        let with = |queues, size| SavedDevice {
            in_flight: Some(Dimensions { queues, size }),
            ..device()
        };
        let saved = with(2, 256);
        assert_eq!(
            SavedDevice::parse(&saved.encode(), 2).expect("whole"),
            saved
        );
        assert_eq!(saved.descriptors(), 6);
        let kept = |saved| SavedDevice {
            is_kept: true,
            ..saved
        };
        let parse = |saved: &SavedDevice| SavedDevice::parse(&saved.encode(), 2);
        assert_eq!(parse(&kept(saved.clone())).expect("whole"), kept(saved));
        parse(&kept(device())).expect_err("it has no records");
        for (queues, size) in [(3, 256), (0, 256), (2, 0), (2, 1025)] {
            let parsed = SavedDevice::parse(&with(queues, size).encode(), 2);
            parsed.expect_err("refused");
        }
    }

    #[test]
    fn a_truncated_state_is_refused() {
        let bytes = golden();
        for len in 0..bytes.len() {
            let error = SavedDevice::parse(&bytes[..len], 2).expect_err("truncated");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let refused = |bytes: &[u8], most: usize| {
            let error = SavedDevice::parse(bytes, most).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        };
        let with = |at: usize, change: &[u8]| {
            let mut bytes = golden();
            bytes[at..at + change.len()].copy_from_slice(change);
            bytes
        };
        refused(&golden(), 1);
        refused(&[&golden()[..], b"\0"].concat(), 2);
        for (at, change) in [
            (0, &b"barge-fs"[..]),
            (8, b"\x02\0\0\0"),
            // Bits of the device, and of a queue.
            (36, b"\x10"),
            (QUEUE + 4, b"\x7f"),
            (REGIONS, b"\xfe\x01\0\0"),
            (REGIONS, b"\xff\xff\xff\xff"),
            (QUEUES, b"\x03\0\0\0"),
            (QUEUES, b"\xff\xff\xff\xff"),
            // Sizes of queues: not a power of two, and too large.
            (QUEUE, b"\x03\0"),
            (QUEUE, b"\0\x08"),
            // Requests that were put back.
            (QUEUE + 37, b"\x01\x04"),
        ] {
            refused(&with(at, change), 2);
        }
        let end = golden().len() - 4;
        refused(&with(end, b"END\n"), 2);
    }
}
