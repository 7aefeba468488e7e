//! Images with hashes: changed bytes are never returned, and the rest stays readable.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use image::{
    DiskCacheEntry, DiskCacheOptions, ImageFs, OpenError, Piece, PublicKey, RangeSource, Trust,
    Untrusted, Verification,
};
use sidecar::{Builder, CHUNK_SIZE, ReadaheadRange, SecretKey, VerifyError};
use tempfile::TempDir;
use vfs::{Errno, OpenFlags};
use vfs_testkit::TestNode;

use crate::bed::Bed;
use crate::compare::root;
use crate::remote::Far;

/// A cache size in bytes that holds everything.
const CACHE: u64 = 256 << 20;

fn open(source: &Arc<Far>, trust: &Trust) -> Result<ImageFs, OpenError> {
    ImageFs::from_devices(vec![source.clone()], CACHE, trust)
}

/// Returns incompressible bytes.
fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Makes an image with hashes on an extra level, with the files `big` of 9 MiB, and `a` and `b` of
/// 300,000 bytes.
fn image(options: &[&str], hot: &[ReadaheadRange], key: Option<&SecretKey>) -> Option<Vec<u8>> {
    let tree = TempDir::new().expect("a directory");
    plant(tree.path());
    let bed = Bed::make(options, tree.path());
    let bed = bed.inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
    let image = fs::read(bed.image()).expect("an image");
    let mut builder = Builder::default();
    builder.append(&image);
    let first = &image[..builder.first_chunk()];
    let (behind, mut header) = builder.finish(first, hot).expect("there is room");
    if let Some(key) = key {
        header.sign(key);
    }
    assert_eq!(header.layout().levels().len(), 2, "hashes in two levels");
    let mut image = [image, behind].concat();
    image[..1024].copy_from_slice(&header.encode());
    Some(image)
}

fn plant(root: &Path) {
    for (name, len) in [("a", 300_000), ("b", 300_000), ("big", 9 << 20)] {
        fs::write(
            root.join(name),
            noise(len, len as u64 + u64::from(name.as_bytes()[0])),
        )
        .expect("written");
    }
    fs::write(root.join("text"), "again and again\n".repeat(50_000)).expect("written");
}

fn read(root: &TestNode, name: &str) -> vfs::Result<Vec<u8>> {
    let file = root.lookup(name)?.open(OpenFlags::READ)?;
    let mut bytes = Vec::new();
    loop {
        match file.read(bytes.len() as u64, 1 << 20)? {
            read if read.is_empty() => return Ok(bytes),
            read => bytes.extend(read),
        }
    }
}

fn expected(name: &str) -> Vec<u8> {
    match name {
        "text" => "again and again\n".repeat(50_000).into(),
        "big" => noise(9 << 20, (9 << 20) + u64::from(b'b')),
        name => noise(300_000, 300_000 + u64::from(name.as_bytes()[0])),
    }
}

const NAMES: [&str; 4] = ["a", "b", "big", "text"];

#[test]
fn all_is_shown_as_long_as_nothing_is_changed() {
    for options in [&[][..], &["-zlz4"], &["-zlz4hc", "-C65536"]] {
        let Some(image) = image(options, &[], None) else {
            return;
        };
        let fs = open(&Far::new(image), &Trust::Hashes).expect("an image");
        for name in NAMES {
            assert!(
                read(&root(&fs), name) == Ok(expected(name)),
                "{options:?} {name}"
            );
        }
    }
}

#[test]
fn what_is_changed_cannot_be_read_and_all_else_can() {
    for options in [&[][..], &["-zlz4"]] {
        let Some(image) = image(options, &[], None) else {
            return;
        };
        // Bytes within `a`, which is stored uncompressed.
        let part = &expected("a")[100_000..100_064];
        let at = image.windows(64).position(|bytes| bytes == part);
        let at = at.expect("it is there");
        for flip in [0x80, 1] {
            let mut image = image.clone();
            image[at] ^= flip;
            let fs = open(&Far::new(image), &Trust::Hashes).expect("an image");
            for name in ["b", "big", "text"] {
                assert!(read(&root(&fs), name) == Ok(expected(name)), "{name}");
            }
            assert_eq!(read(&root(&fs), "a"), Err(Errno::EIO));
            // The bytes before and after are readable, repeatedly.
            for _ in 0..2 {
                let file = root(&fs)
                    .lookup("a")
                    .expect("there")
                    .open(OpenFlags::READ)
                    .expect("opened");
                assert_eq!(file.read(100_000, 64), Err(Errno::EIO));
                for at in [0, 200_000] {
                    let want = &expected("a")[at..at + 50_000];
                    assert!(file.read(at as u64, 50_000).as_deref() == Ok(want));
                }
            }
        }
    }
}

/// Opens an image through the disk cache in `dir`.
fn open_cached(dir: &Path, far: &Arc<Far>, trust: &Trust) -> Result<ImageFs, OpenError> {
    let options = DiskCacheOptions::new(dir.to_owned(), None);
    let entry = DiskCacheEntry::open(&options, "image").expect("opened");
    let cached = entry.over(far.clone(), b"etag", "image").expect("ready");
    ImageFs::from_devices(vec![Arc::new(cached)], CACHE, trust)
}

fn read_all(fs: &ImageFs) -> vfs::Result<bool> {
    for name in NAMES {
        if read(&root(fs), name)? != expected(name) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[test]
fn a_wrong_reply_is_not_kept_in_the_disk_cache() {
    let secret = key(1);
    let Some(bytes) = image(&["-zlz4"], &[], Some(&secret)) else {
        return;
    };
    let trust = Trust::Keys(vec![secret.public()]);
    let len = bytes.len() as u64;
    let far = Far::new(bytes);
    // The header, its signature, the superblock, a chunk in the middle, hashes, and the manifest.
    let places = [0, 100, 1030, len / 2, len - 20_000, len - 10];
    for (at, replies) in places.into_iter().flat_map(|at| [(at, 1), (at, 4)]) {
        let dir = TempDir::new().expect("a directory");
        far.reply_wrongly(at, replies);
        let opened = open_cached(dir.path(), &far, &trust);
        if let Ok(fs) = &opened {
            let read = read_all(fs);
            match replies {
                1 => assert_eq!(read, Ok(true), "{at}: one wrong reply"),
                _ => assert!(matches!(read, Ok(true) | Err(Errno::EIO)), "{at}: {read:?}"),
            }
        } else {
            assert!(replies > 1, "{at}: one wrong reply");
        }
        drop(opened);
        far.reply_wrongly(at, 0);
        let fs = open_cached(dir.path(), &far, &trust).expect("the server is right again");
        assert_eq!(read_all(&fs), Ok(true), "{at}: the server is right again");
        assert_eq!(verify(dir.path()).damaged, 0, "{at}");
    }
}

#[test]
fn a_wrong_reply_of_a_chunk_fails_its_reads_only_until_the_server_is_right() {
    let Some(bytes) = image(&[], &[], None) else {
        return;
    };
    let part = &expected("a")[100_000..100_064];
    let at = bytes.windows(64).position(|bytes| bytes == part);
    let at = at.expect("the file is not compressed") as u64;
    let dir = TempDir::new().expect("a directory");
    let far = Far::new(bytes);
    let fs = open_cached(dir.path(), &far, &Trust::Hashes).expect("an image");
    far.reply_wrongly(at, u32::MAX);
    for _ in 0..2 {
        assert_eq!(read(&root(&fs), "a"), Err(Errno::EIO));
        assert!(read(&root(&fs), "b") == Ok(expected("b")));
    }
    far.reply_wrongly(at, 0);
    assert!(read(&root(&fs), "a") == Ok(expected("a")));
}

/// Without hashes, a wrong reply is noticed where the image cannot be opened or decoded.
#[test]
fn a_wrong_reply_that_is_no_image_is_not_kept_in_the_disk_cache() {
    let tree = TempDir::new().expect("a directory");
    plant(tree.path());
    let Ok(bed) = Bed::make(&["-zlz4"], tree.path()) else {
        eprintln!("skipped: there is no mkfs.erofs");
        return;
    };
    let bytes = fs::read(bed.image()).expect("an image");
    let far = Far::new(bytes.clone());
    for at in [1024, 1030] {
        let dir = TempDir::new().expect("a directory");
        far.reply_wrongly(at, 1);
        let fs = open_cached(dir.path(), &far, &Trust::Hashes).expect("read again");
        assert_eq!(read_all(&fs), Ok(true), "{at}");
    }
}

/// Each wrong chunk was read again alone, and then once more with its neighbours, so that a server
/// that was wrong throughout was waited for about 200 times.
#[test]
fn a_server_that_is_wrong_about_many_chunks_is_asked_twice() {
    let Some(bytes) = image(&[], &[], None) else {
        return;
    };
    let part = &expected("big")[..64];
    let at = bytes.windows(64).position(|bytes| bytes == part);
    let at = at.expect("the file is not compressed") as u64;
    let far = Far::new(bytes);
    let fs = open(&far, &Trust::Hashes).expect("an image");
    let file = root(&fs).lookup("big").expect("there");
    let file = file.open(OpenFlags::READ).expect("opened");
    let middle = at + (4 << 20);
    far.reply_wrongly_within(middle..at + (9 << 20), u32::MAX);
    far.reads();
    // Hashes and chunks, and the wrong ones once more.
    assert_eq!(file.read(5 << 20, 1 << 20), Err(Errno::EIO));
    let reads = far.reads();
    assert!(reads.len() <= 4, "{reads:?}");
    // Chunks beside the wrong ones are read.
    let good = (middle - middle % CHUNK_SIZE - at) as usize;
    let want = &expected("big")[good - 100_000..good];
    assert!(file.read(good as u64 - 100_000, 100_000).as_deref() == Ok(want));
}

/// Each read of a cluster that could not be decoded threw everything away that was cached.
#[test]
fn a_cluster_that_cannot_be_decoded_leaves_the_cache_of_others_alone() {
    let tree = TempDir::new().expect("a directory");
    plant(tree.path());
    let Ok(bed) = Bed::make(&["-zlz4"], tree.path()) else {
        eprintln!("skipped: there is no mkfs.erofs");
        return;
    };
    let bytes = fs::read(bed.image()).expect("an image");
    let text = b"again and ";
    let at = bytes.windows(text.len()).position(|bytes| bytes == text);
    let at = at.expect("the first cluster begins with it") as u64;
    let dir = TempDir::new().expect("a directory");
    let far = Far::new(bytes);
    // Zeros in front of the encoded bytes, and the length of the first literal.
    far.reply_wrongly_within(at - 2..at, u32::MAX);
    let fs = open_cached(dir.path(), &far, &Trust::Hashes).expect("an image");
    for name in ["a", "b", "big"] {
        assert!(read(&root(&fs), name) == Ok(expected(name)));
    }
    let before = fs.cache_stats();
    for _ in 0..3 {
        assert!(read(&root(&fs), "text") == Err(Errno::EIO));
        let after = fs.cache_stats();
        assert!(after.bytes >= before.bytes, "{before:?} {after:?}");
    }
    let before = fs.cache_stats();
    assert!(read(&root(&fs), "big") == Ok(expected("big")));
    assert_eq!(fs.cache_stats().misses, before.misses);
    far.reply_wrongly(0, 0);
    assert!(read(&root(&fs), "text") == Ok(expected("text")));
}

fn verify(dir: &Path) -> Verification {
    let options = DiskCacheOptions::new(dir.to_owned(), None);
    let name = options.images().expect("listed").remove(0).name;
    options.verify(&name).expect("verified")
}

#[test]
fn verification_of_the_cache_finds_what_does_not_match_the_hashes() {
    let Some(bytes) = image(&[], &[], None) else {
        return;
    };
    let len = bytes.len() as u64;
    let far = Far::new(bytes);
    // The cache stores what nobody has verified yet.
    for at in [5 * CHUNK_SIZE, len / 2, len - 40_000] {
        let dir = TempDir::new().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().to_owned(), None);
        far.reply_wrongly(at, 1);
        let entry = DiskCacheEntry::open(&options, "image").expect("opened");
        let cached = entry.over(far.clone(), b"etag", "image").expect("ready");
        let mut buffer = vec![0; len as usize];
        let (offset, buffer) = (0, &mut buffer[..]);
        cached.read(&mut [Piece { offset, buffer }]).expect("read");
        drop(cached);
        assert!(verify(dir.path()).damaged > 0, "{at}");
        assert_eq!(verify(dir.path()).damaged, 0, "{at}: it was forgotten");
    }
}

#[test]
fn hashes_are_held_against_hashes() {
    let Some(image) = image(&[], &[], None) else {
        return;
    };
    let header = sidecar::Header::parse(image.first_chunk().expect("long"), image.len() as u64);
    let header = header.expect("sound").expect("there");
    let level = header.layout().chunk(1, 0);
    let mut changed = image.clone();
    changed[level.start as usize] ^= 1;
    let fs = open(&Far::new(changed), &Trust::Hashes);
    assert!(fs.is_err(), "the superblock's own hash cannot be believed");
    for at in header.manifest_range() {
        let mut changed = image.clone();
        changed[at as usize] ^= 1;
        let opened = open(&Far::new(changed), &Trust::Hashes).err();
        assert!(
            matches!(
                opened,
                Some(OpenError::Untrusted(Untrusted::Invalid(
                    VerifyError::Corrupt(_)
                )))
            ),
            "{opened:?}"
        );
    }
}

#[test]
fn only_what_somebody_trusted_has_signed_is_opened() {
    let [one, other] = [1, 2].map(key);
    let Some(signed) = image(&[], &[], Some(&one)) else {
        return;
    };
    let Some(unsigned) = image(&[], &[], None) else {
        return;
    };
    let trust = |keys: &[PublicKey]| Trust::Keys(keys.to_vec());
    let both = trust(&[other.public(), one.public()]);
    let fs = open(&Far::new(signed.clone()), &both).expect("trusted");
    assert!(read(&root(&fs), "b") == Ok(expected("b")));
    let why = |image: &[u8], trust: &Trust| match open(&Far::new(image.to_vec()), trust) {
        Err(OpenError::Untrusted(Untrusted::Invalid(why))) => why,
        other => panic!("{:?}", other.err()),
    };
    assert_eq!(
        why(&signed, &trust(&[other.public()])),
        VerifyError::UntrustedKey
    );
    assert_eq!(why(&unsigned, &both), VerifyError::NotSigned);
    let mut forged = signed.clone();
    forged[88] ^= 1;
    assert_eq!(why(&forged, &both), VerifyError::BadSignature);
    // Other contents under the signed header.
    let mut forged = signed;
    forged[1024 + 40] ^= 1;
    assert!(
        open(&Far::new(forged), &both).is_err(),
        "the superblock is not what was signed"
    );
}

fn key(seed: u8) -> SecretKey {
    let secret = [
        "MC4CAQAwBQYDK2VwBCIEIDm34jEZWTyBUJQMb0ZEdSQmtpb6FHlhFkOS6vpJ0Vuh",
        "MC4CAQAwBQYDK2VwBCIEIDm34jEZWTyBUJQMb0ZEdSQmtpb6FHlhFkOS6vpJ0Vui",
    ][usize::from(seed - 1)];
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n");
    SecretKey::from_pem(&pem).expect("a key")
}

#[test]
fn two_reads_open_an_image_with_hashes() {
    for options in [&[][..], &["-zlz4"]] {
        let Some(image) = image(options, &[], None) else {
            return;
        };
        let len = image.len() as u64;
        let source = Far::new(image);
        let fs = open(&source, &Trust::Hashes).expect("an image");
        root(&fs).attr();
        let reads = source.reads();
        assert_eq!(reads.len(), 2, "{reads:?} of {len}");
        let bytes: u64 = reads.iter().map(|(_, len)| len).sum();
        assert!(bytes <= 13 * CHUNK_SIZE, "{reads:?} of {len}");
    }
}

#[test]
fn what_is_hot_is_read_ahead_in_few_pieces_and_never_again() {
    let hot = [
        ReadaheadRange { first: 0, count: 3 },
        ReadaheadRange {
            first: 100,
            count: 150,
        },
    ];
    let Some(image) = image(&[], &hot, None) else {
        return;
    };
    let source = Far::new(image);
    let fs = open(&source, &Trust::Hashes).expect("an image");
    source.reads();
    let thread = fs.read_ahead().expect("there is a list");
    thread.join().expect("no panic");
    let reads = source.reads();
    // Reads of 1 MiB each, and a chunk of hashes.
    assert!(reads.len() <= 6, "{reads:?}");
    let bytes: u64 = reads.iter().map(|(_, len)| len).sum();
    assert!(bytes <= (3 + 150 + 1) * CHUNK_SIZE, "{reads:?}");
    assert!(read(&root(&fs), "big") == Ok(expected("big")));
    let again = source.reads();
    let hot = 100 * CHUNK_SIZE..250 * CHUNK_SIZE;
    let overlaps = |&(at, len): &(u64, u64)| at < hot.end && at + len > hot.start;
    assert!(!again.iter().any(overlaps), "{again:?}");
}

#[test]
fn what_is_far_away_is_read_ahead_by_several_and_once() {
    let range = |(first, count)| ReadaheadRange { first, count };
    let hot = [(0, 3), (60, 200), (300, 1), (302, 200)].map(range);
    let Some(image) = image(&[], &hot, None) else {
        return;
    };
    let source = Far::with_run(image, 80 * CHUNK_SIZE);
    let fs = open(&source, &Trust::Hashes).expect("an image");
    source.reads();
    let thread = fs.read_ahead().expect("there is a list");
    thread.join().expect("no panic");
    let reads = source.reads();
    let mut chunks: Vec<_> = (reads.iter())
        .flat_map(|(at, len)| at / CHUNK_SIZE..(at + len).div_ceil(CHUNK_SIZE))
        .filter(|chunk| *chunk < 502)
        .collect();
    chunks.sort_unstable();
    let wanted = |chunk: &u64| {
        hot.iter()
            .any(|hot| hot.range().contains(&(chunk * CHUNK_SIZE)))
    };
    // The first chunks were read when the image was opened.
    let expected: Vec<_> = (3..502).filter(wanted).collect();
    chunks.retain(|chunk| *chunk >= 3);
    assert_eq!(chunks, expected, "{reads:?}");
}

#[test]
fn no_more_is_read_ahead_than_half_of_the_cache() {
    let hot = [ReadaheadRange {
        first: 0,
        count: 500,
    }];
    let Some(image) = image(&[], &hot, None) else {
        return;
    };
    let source = Far::new(image);
    let cache = 64 * CHUNK_SIZE;
    let fs = ImageFs::from_devices(vec![source.clone()], cache, &Trust::Hashes).expect("an image");
    let thread = fs.read_ahead().expect("there is a list");
    thread.join().expect("no panic");
    assert!(
        fs.cache_stats().bytes <= cache / 2 + 4 * CHUNK_SIZE,
        "{:?}",
        fs.cache_stats()
    );
    assert!(read(&root(&fs), "big") == Ok(expected("big")));
    assert!(fs.cache_stats().bytes <= cache);
}
