//! The sidecar: golden bytes for other implementations, detection of all damage, and keys and
//! signatures of OpenSSL.

mod whole;

use proptest::prelude::*;
use sidecar::{
    Builder, CHUNK_SIZE, HASH_SIZE, HEADER_SIZE, HashLayout, Header, PublicKey, ReadaheadRange,
    SecretKey, VerifyError,
};

/// Made by `openssl genpkey -algorithm ed25519` for this test alone.
const SECRET: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJO7DdYzQZ0QzTIGpf7wttQxR00YBxnXGTANp+ptkzOC
-----END PRIVATE KEY-----
";
/// Made by `openssl pkey -pubout` from it.
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAtOkpU/MERIAXyUCbjPh3knhIscP79uKhNFXmlkunVmw=
-----END PUBLIC KEY-----
";
/// Another key.
const OTHER: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAqtAAni3VZ4feHMQRC/pVz8b3qLZKeV1WGRhhN6cxA7U=
-----END PUBLIC KEY-----
";

fn secret() -> SecretKey {
    SecretKey::from_pem(SECRET).expect("a key")
}

/// Returns bytes without a pattern.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns `image` with its sidecar, as stored in a file.
fn sealed(image: &[u8], hot: &[ReadaheadRange], key: Option<&SecretKey>) -> Vec<u8> {
    let mut builder = Builder::default();
    // Appends pieces of increasing sizes.
    let mut rest = image;
    let mut size = 1;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        builder.append(now);
        (rest, size) = (later, size * 3);
    }
    let first = image[..builder.first_chunk()].to_vec();
    let (behind, mut header) = builder.finish(&first, hot).expect("there is room");
    if let Some(key) = key {
        header.sign(key);
    }
    let mut file = [image, &behind].concat();
    file[..HEADER_SIZE].copy_from_slice(&header.encode());
    file
}

fn verify(file: &[u8], keys: &[PublicKey]) -> Result<Option<()>, VerifyError> {
    whole::verify(file, Some(keys))
}

#[test]
fn it_is_what_is_described() {
    let image = bytes(CHUNK_SIZE as usize + 4096);
    let hot = [
        ReadaheadRange { first: 1, count: 1 },
        ReadaheadRange { first: 0, count: 2 },
    ];
    let file = sealed(&image, &hot, Some(&secret()));
    assert_eq!(&file[..8], b"\x8abarge\r\n");
    assert_eq!(
        &file[8..24],
        [&[1, 0, 0, 0, 2, 0, 0, 0][..], &[0, 0x50, 0, 0, 0, 0, 0, 0]].concat()
    );
    let key = PublicKey::from_pem(PUBLIC).expect("a key").to_string();
    let shown: String = file[56..88]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(shown, key);
    assert_eq!(file[152..1016], [0; 864]);
    assert_eq!(&file[1016..1024], b"\x8abarge\r\n");
    assert_eq!(file[1024..image.len()], image[1024..]);
    let manifest = &file[image.len()..];
    assert_eq!(manifest.len(), 2 * HASH_SIZE + 16);
    let mut first = image[..CHUNK_SIZE as usize].to_vec();
    first[..HEADER_SIZE].fill(0);
    assert_eq!(manifest[..32], blake3::hash(&first).as_bytes()[..]);
    assert_eq!(
        manifest[32..64],
        blake3::hash(&image[CHUNK_SIZE as usize..]).as_bytes()[..]
    );
    assert_eq!(
        manifest[64..],
        [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]
    );
    let context = "barge 2026-11-22 sidecar of an image: root of header and manifest";
    let mut root = blake3::Hasher::new_derive_key(context);
    root.update(&file[..24]).update(manifest);
    assert_eq!(file[24..56], root.finalize().as_bytes()[..]);
    // The hash of the whole file.
    let golden = "fc80cfbab57971289429324e27736d168807271ddb9697e718330f2f5a874236";
    assert_eq!(blake3::hash(&file).to_hex().as_str(), golden);
}

#[test]
fn a_signature_is_of_one_image_and_one_key() {
    let (public, image) = (secret().public(), bytes(100_000));
    assert_eq!(PublicKey::from_pem(PUBLIC), Ok(public));
    let other = PublicKey::from_pem(OTHER).expect("a key");
    let file = sealed(&image, &[], Some(&secret()));
    assert_eq!(
        file,
        sealed(&image, &[], Some(&secret())),
        "the same each time"
    );
    assert_eq!(verify(&file, &[other, public]), Ok(Some(())));
    assert_eq!(verify(&file, &[other]), Err(VerifyError::UntrustedKey));
    assert_eq!(verify(&file, &[]), Err(VerifyError::UntrustedKey));
    let unsigned = sealed(&image, &[], None);
    assert_eq!(verify(&unsigned, &[public]), Err(VerifyError::NotSigned));
    // The signature of another image.
    let mut moved = sealed(&image[1..], &[], Some(&secret()));
    moved[88..152].copy_from_slice(&file[88..152]);
    assert_eq!(verify(&moved, &[public]), Err(VerifyError::BadSignature));
    for (text, what) in [("", "public"), (SECRET, "public"), (PUBLIC, "private")] {
        let told = match what {
            "public" => PublicKey::from_pem(text).expect_err("no key"),
            _ => SecretKey::from_pem(text).err().expect("no key"),
        };
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn every_flipped_bit_of_a_header_is_found() {
    let public = secret().public();
    let file = sealed(
        &bytes(20_000),
        &[ReadaheadRange { first: 0, count: 1 }],
        Some(&secret()),
    );
    for bit in 0..HEADER_SIZE * 8 {
        let mut file = file.clone();
        file[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&file, &[public]).is_err(), "bit {bit}");
    }
}

#[test]
fn every_beginning_is_refused() {
    let public = secret().public();
    let file = sealed(&bytes(40_000), &[], Some(&secret()));
    for len in HEADER_SIZE..file.len() {
        assert!(verify(&file[..len], &[public]).is_err(), "{len}");
    }
    // Bytes after the sidecar are ignored: a disk may be larger.
    assert_eq!(
        verify(&[&file[..], b"rest"].concat(), &[public]),
        Ok(Some(()))
    );
}

#[test]
fn levels_are_as_many_as_are_needed() {
    const MIB: u64 = 1 << 20;
    for (image, levels, top) in [
        (4096, 1, 1),
        (8 * MIB, 1, 512),
        (8 * MIB + 1, 2, 2),
        (4096 * MIB, 2, 512),
        (4097 * MIB, 3, 2),
        (1 << 60, 6, 2),
    ] {
        let shape = HashLayout::of(image).expect("there is room");
        assert_eq!(
            (shape.levels().len(), shape.top_hashes()),
            (levels, top),
            "{image}"
        );
        for pair in shape.levels().windows(2) {
            assert!(pair[1].start.is_multiple_of(CHUNK_SIZE) && pair[1].start >= pair[0].end);
        }
    }
    assert_eq!(HashLayout::of(u64::MAX), None);
}

#[test]
fn what_is_before_other_images_is_no_header() {
    for file in [vec![0; 5000], bytes(5000), vec![]] {
        assert_eq!(verify(&file, &[]), Ok(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_is_changed_is_found(
        len in prop_oneof![1025usize..70_000, 8_380_000usize..8_600_000],
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let public = secret().public();
        let mut file = sealed(&bytes(len), &[ReadaheadRange { first: 0, count: 1 }], Some(&secret()));
        prop_assert_eq!(verify(&file, &[public]), Ok(Some(())));
        let at = at.index(file.len());
        let between = (len as u64..(len as u64).next_multiple_of(CHUNK_SIZE)).contains(&(at as u64));
        file[at] ^= flip;
        // Zeros between two levels are never read.
        prop_assert_eq!(verify(&file, &[public]).is_err(), !between || len <= 8 << 20);
    }

    #[test]
    fn any_header_is_refused_or_within_its_bounds(
        numbers in any::<(u32, u64)>(),
        version in 0u32..3,
        len in any::<u64>(),
    ) {
        let mut head = [0; HEADER_SIZE];
        head[..8].copy_from_slice(b"\x8abarge\r\n");
        head[1016..].copy_from_slice(b"\x8abarge\r\n");
        head[8..12].copy_from_slice(&version.to_le_bytes());
        head[12..16].copy_from_slice(&numbers.0.to_le_bytes());
        head[16..24].copy_from_slice(&numbers.1.to_le_bytes());
        if let Ok(Some(header)) = Header::parse(&head, len) {
            let manifest = header.manifest_range();
            prop_assert!(manifest.end <= len && manifest.end - manifest.start <= CHUNK_SIZE + (8 << 16));
            prop_assert_eq!(header.encode(), head);
        }
    }
}
