//! Golden bytes of every message in each of its dialects, truncations, and round trips.

use proptest::prelude::*;

mod golden;

use golden::{FID, TAG, replies, requests};

use super::*;

/// Returns the message with these `fields` (type, tag and the rest, in hexadecimal), preceded by
/// its size.
fn golden(fields: &str) -> Vec<u8> {
    let digits: Vec<u8> = fields
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    let fields = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("two hex digits")
    });
    let size = (digits.len() / 2 + 4) as u32;
    size.to_le_bytes().into_iter().chain(fields).collect()
}

/// Yields `bytes` cut to each shorter length, and with one byte too many, with a matching size.
fn damaged(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let lens = (0..bytes.len()).chain([bytes.len() + 1]);
    lens.map(|len| {
        let mut cut: Vec<u8> = bytes.iter().copied().chain([0]).take(len).collect();
        if let Some(size) = cut.first_chunk_mut() {
            *size = (len as u32).to_le_bytes();
        }
        cut
    })
}

#[test]
fn requests_have_their_golden_bytes_and_no_others() {
    for (message, dialects, hex) in requests() {
        let bytes = golden(&hex);
        for &dialect in dialects {
            let mut encoded = Vec::new();
            message.encode(dialect, TAG, &mut encoded);
            assert_eq!(encoded, bytes, "{message:?} {dialect}");
            assert_eq!(message.size(dialect), bytes.len());
            assert_eq!(Tmessage::decode(dialect, &bytes), Ok((TAG, message)));
            for cut in damaged(&bytes) {
                if matches!(message, Tmessage::Fsync { .. }) && cut.len() == HEADER + 4 {
                    continue;
                }
                let refused = Tmessage::decode(dialect, &cut);
                assert!(refused.is_err(), "{} of {message:?}", cut.len());
            }
        }
    }
}

#[test]
fn replies_have_their_golden_bytes_and_no_others() {
    for (message, dialects, hex) in replies() {
        let bytes = golden(&hex);
        for &dialect in dialects {
            let mut encoded = Vec::new();
            message.encode(dialect, TAG, &mut encoded);
            assert_eq!(encoded, bytes, "{message:?} {dialect}");
            assert_eq!(message.size(dialect), bytes.len());
            assert_eq!(Rmessage::decode(dialect, &bytes), Ok((TAG, message)));
            for cut in damaged(&bytes) {
                let refused = Rmessage::decode(dialect, &cut);
                assert!(refused.is_err(), "{} of {message:?}", cut.len());
            }
        }
    }
}

#[test]
fn every_message_of_every_dialect_has_golden_bytes() {
    for &kind in Kind::ALL {
        for dialect in Dialect::ALL {
            let has = |dialects: &[Dialect]| dialects.contains(&dialect);
            let is_error = matches!(kind, Kind::Error | Kind::Lerror);
            let request = requests().iter().any(|r| r.0.kind() == kind && has(r.1));
            assert_eq!(
                request,
                kind.is_in(dialect) && !is_error,
                "T{}",
                kind.name()
            );
            let reply = replies().iter().any(|r| r.0.kind() == kind && has(r.1));
            assert_eq!(reply, kind.is_in(dialect), "R{}", kind.name());
        }
    }
}

#[test]
fn a_message_of_another_dialect_is_refused_by_its_number() {
    for (_, dialects, hex) in requests() {
        for dialect in Dialect::ALL {
            let bytes = golden(&hex);
            if !Kind::of(bytes[4]).is_some_and(|kind| kind.is_in(dialect)) {
                let refused = Tmessage::decode(dialect, &bytes);
                assert_eq!(refused, Err(DecodeError::Number(bytes[4])), "{dialects:?}");
            }
        }
    }
}

#[test]
fn an_fsync_without_its_word_is_of_all() {
    let message = Tmessage::decode(Dialect::Linux, &[11, 0, 0, 0, 50, 1, 0, 5, 0, 0, 0]);
    let fsync = Tmessage::Fsync {
        fid: Fid(5),
        datasync: Datasync(0),
    };
    assert_eq!(message, Ok((Tag(1), fsync)));
}

#[test]
fn heads_are_those_of_the_whole_messages() {
    let write = Tmessage::Write {
        fid: FID,
        offset: 5,
        data: Data(b"xyz"),
    };
    let mut whole = Vec::new();
    let payload = write.encode_head(Dialect::Linux, TAG, &mut whole);
    assert_eq!(payload, b"xyz");
    assert_eq!(whole, write_head(TAG, FID, 5, 3));
    for (kind, reply) in [
        (Kind::Read, Rmessage::Read { data: Data(b"xyz") }),
        (Kind::Readdir, Rmessage::Readdir { data: Data(b"xyz") }),
    ] {
        let mut whole = Vec::new();
        assert_eq!(reply.encode_head(Dialect::Linux, TAG, &mut whole), b"xyz");
        assert_eq!(whole, data_head(kind, TAG, 3));
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        kind in 0..Kind::ALL.len(),
        dialect in 0..3usize,
        random in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let (kind, dialect) = (Kind::ALL[kind], Dialect::ALL[dialect]);
        prop_assume!(kind.is_in(dialect));
        let mut bytes = Vec::new();
        if let Some(request) = Tmessage::sample(kind, &mut sample::Entropy(&random)) {
            request.encode(dialect, TAG, &mut bytes);
            prop_assert_eq!(bytes.len(), request.size(dialect));
            let (tag, decoded) = Tmessage::decode(dialect, &bytes).expect("our own");
            prop_assert_eq!(tag, TAG);
            let mut again = Vec::new();
            decoded.encode(dialect, TAG, &mut again);
            prop_assert_eq!(&again, &bytes);
            if dialect == Dialect::Unix {
                prop_assert_eq!(decoded, request);
            }
        }
        bytes.clear();
        let reply = Rmessage::sample(kind, &mut sample::Entropy(&random));
        reply.encode(dialect, TAG, &mut bytes);
        prop_assert_eq!(bytes.len(), reply.size(dialect));
        let (_, decoded) = Rmessage::decode(dialect, &bytes).expect("our own");
        let mut again = Vec::new();
        decoded.encode(dialect, TAG, &mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn random_fields_are_decoded_or_refused(
        number: u8,
        dialect in 0..3usize,
        fields in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let size = (HEADER + fields.len()) as u32;
        let header = Header { size, number, tag: TAG };
        let bytes: Vec<u8> = header.encode().into_iter().chain(fields).collect();
        let dialect = Dialect::ALL[dialect];
        if let Ok((tag, request)) = Tmessage::decode(dialect, &bytes) {
            let mut again = Vec::new();
            request.encode(dialect, tag, &mut again);
            // Only Tfsync's absent word re-encodes as a longer message.
            if number != Kind::Fsync.request() && number != Kind::Walk.request() {
                prop_assert_eq!(again, bytes);
            }
        } else if let Ok((tag, reply)) = Rmessage::decode(dialect, &bytes)
            && number != Kind::Walk.reply()
        {
            let mut again = Vec::new();
            reply.encode(dialect, tag, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
