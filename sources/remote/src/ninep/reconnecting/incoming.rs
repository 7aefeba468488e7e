//! The message being received.

use p9::message::HEADER;
use p9::recovery::Record;

/// The message being received.
#[derive(Default)]
pub(super) struct Incoming {
    /// The number of its bytes received.
    pub(super) received: usize,
    /// The part of its beginning that the record needs.
    head: Vec<u8>,
}

impl Incoming {
    /// Passes complete replies to `record`.
    pub(super) fn note(&mut self, mut bytes: &[u8], record: &mut Record) {
        while !bytes.is_empty() {
            let missing = HEADER.saturating_sub(self.head.len());
            if missing > 0 {
                let (part, rest) = bytes.split_at(missing.min(bytes.len()));
                self.take(part, part.len());
                bytes = rest;
                continue;
            }
            let size = self.head[..4].iter().rev();
            let size = size.fold(0, |size, &byte| size << 8 | usize::from(byte));
            let wanted =
                Record::reply_bytes_needed(self.head[4], size).saturating_sub(self.head.len());
            let come = size.saturating_sub(self.received).min(bytes.len());
            let (part, rest) = bytes.split_at(come);
            self.take(&part[..wanted.min(come)], come);
            bytes = rest;
            // The user of the link detects invalid sizes.
            if self.received >= size {
                // It detects invalid replies, too.
                let _ = record.on_reply(&self.head);
                self.head.clear();
                self.received = 0;
            }
        }
        // The last message may consist of a header alone.
        if self.received == HEADER && self.head[..4] == (HEADER as u32).to_le_bytes() {
            let _ = record.on_reply(&self.head);
            self.head.clear();
            self.received = 0;
        }
    }

    fn take(&mut self, head: &[u8], seen: usize) {
        self.head.extend_from_slice(head);
        self.received += seen;
    }
}
