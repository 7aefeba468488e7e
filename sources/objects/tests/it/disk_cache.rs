//! Objects read through the disk cache.

use std::sync::Arc;

use image::{DiskCacheOptions, RangeSource};
use objects::{Object, Url};

use crate::faults::{object_of, read, tuning};
use crate::server::{Answer, Server};

fn open(url: &str, dir: &std::path::Path) -> std::io::Result<Arc<dyn RangeSource>> {
    let mut url: Url = url.parse().expect("a URL");
    url.image_mut()
        .set_disk_cache(&DiskCacheOptions::new(dir.to_owned(), None));
    Object::open(&url, tuning())
}

#[test]
fn a_restart_fetches_nothing_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = object_of(3 << 20);
    let server = Server::new(bytes.clone());
    for start in 0..3 {
        let image = open(&server.url(), dir.path()).expect("opened");
        read(&*image, &bytes, &[(0, 100_000), (2 << 20, 50_000)]).expect("read");
        let requests = server.requests();
        let stats = image.stats();
        let cache = stats.disk_cache.expect("a disk cache");
        let remote = stats.remote.expect("a server");
        // Segments of 16 KiB: 0 to 6, and 128 to 131.
        let expected = if start == 0 { (0, 11, 2) } else { (11, 0, 0) };
        let counted = (cache.hits, cache.misses, remote.latencies.count());
        assert_eq!(counted, expected);
        assert_eq!((cache.bytes, remote.errors), (11 << 14, 0));
        assert!(cache.limit > cache.bytes && cache.evicted == 0);
        assert_eq!(remote.received > 0, start == 0);
        if start == 0 {
            assert_eq!(requests.len(), 3);
            continue;
        }
        // One request, with a response without the bytes.
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].if_none_match.as_deref(), Some("\"first\""));
    }
    // A new object under the same name is another image.
    let other = object_of(3_000_000).split_off(1000);
    server.replace(other.clone(), "second");
    let image = open(&server.url(), dir.path()).expect("opened");
    read(&*image, &other, &[(0, 100_000), (2 << 20, 50_000)]).expect("read");
}

#[test]
fn blocks_are_released_on_request_unless_another_user_has_the_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = object_of(1 << 20);
    let server = Server::new(bytes.clone());
    let image = open(&server.url(), dir.path()).expect("opened");
    let ranges = [(0, 100_000), (500_000, 200_000)];
    read(&*image, &bytes, &ranges).expect("read");
    let stored = || image.stats().disk_cache.expect("a disk cache").bytes;
    let before = stored();
    assert!(before >= 300_000);
    let other = open(&server.url(), dir.path()).expect("opened");
    assert_eq!((image.evict(), stored()), (0, before));
    drop(other);
    let held = image.file(0, 4096).expect("on disk");
    assert_eq!((image.evict(), stored()), (0, before), "while it is read");
    drop(held);
    assert_eq!((image.evict(), stored()), (before, 0));
    assert_eq!(image.evict(), 0);
    server.requests();
    read(&*image, &bytes, &ranges).expect("read again");
    assert!(!server.requests().is_empty() && stored() == before);
    // A release on request does not mean that the cache is too small.
    assert_eq!(image.stats().disk_cache.expect("a disk cache").evicted, 0);
}

#[test]
fn two_queries_are_two_images_where_only_times_tell() {
    let dir = tempfile::tempdir().expect("a directory");
    let (bytes, other) = (object_of(100_000), object_of(100_001).split_off(1));
    let server = Server::new(bytes.clone());
    server.tell(None, false, true);
    for _ in 0..2 {
        let image = open(&format!("{}?v=1", server.url()), dir.path()).expect("opened");
        read(&*image, &bytes, &[(0, 100_000)]).expect("read");
    }
    // One request each time, since without an ETag it cannot be conditional.
    assert_eq!(server.requests().len(), 3);
    server.replace(other.clone(), "second");
    server.tell(None, false, true);
    let image = open(&format!("{}?v=2", server.url()), dir.path()).expect("opened");
    read(&*image, &other, &[(0, 100_000)]).expect("read");
}

#[test]
fn a_store_that_cannot_be_reached_is_not_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = object_of(3 << 20);
    let server = Server::new(bytes.clone());
    let image = open(&server.url(), dir.path()).expect("opened");
    read(&*image, &bytes, &[(0, 100_000)]).expect("read");
    drop(image);
    server.always(Answer::Reset);
    let image = open(&server.url(), dir.path()).expect("opened");
    assert_eq!(image.len(), 3 << 20);
    read(&*image, &bytes, &[(0, 100_000)]).expect("read");
    assert!(read(&*image, &bytes, &[(1 << 20, 1)]).is_err());
    // A response of the server takes precedence.
    drop(image);
    server.always(Answer::Status(403, None));
    assert!(open(&server.url(), dir.path()).is_err());
}

#[test]
fn what_is_no_object_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::new(object_of(1000));
    assert!(open(&format!("{}/more", server.url()), dir.path()).is_err());
    let left = std::fs::read_dir(dir.path()).expect("listed").count();
    assert_eq!(left, 0);
}

#[test]
fn several_users_share_what_one_has_fetched() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = object_of(4 << 20);
    let server = Server::new(bytes.clone());
    let first = open(&server.url(), dir.path()).expect("opened");
    read(&*first, &bytes, &[(500_000, 1000)]).expect("read");
    let second = open(&server.url(), dir.path()).expect("opened");
    server.requests();
    read(&*second, &bytes, &[(500_000, 1000)]).expect("read");
    assert_eq!(server.requests().len(), 0);
    // Of two at the same time, one fetches and the other one waits.
    let pieces: Vec<_> = (0..64).map(|piece| (piece << 16, 1 << 16)).collect();
    std::thread::scope(|scope| {
        for image in [&first, &second, &first, &second] {
            let (pieces, bytes) = (&pieces, &bytes);
            scope.spawn(move || {
                for piece in pieces {
                    read(&**image, bytes, &[*piece]).expect("read");
                }
            });
        }
    });
    let requests = server.requests();
    let fetched = requests.iter().filter_map(|request| request.range.clone());
    let fetched: u64 = fetched.map(|range| range.end - range.start).sum();
    assert!(fetched <= 4 << 20, "{fetched}");
}

#[test]
fn another_version_waits_for_its_users_to_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = object_of(1 << 20);
    let server = Server::new(bytes.clone());
    let first = open(&server.url(), dir.path()).expect("opened");
    read(&*first, &bytes, &[(500_000, 1000)]).expect("read");
    let other = object_of((1 << 20) + 7).split_off(7);
    server.replace(other.clone(), "second");
    // It is read without the cache, since the old one is in use.
    let second = open(&server.url(), dir.path()).expect("opened");
    read(&*second, &other, &[(500_000, 1000)]).expect("read");
    read(&*first, &bytes, &[(500_000, 1000)]).expect("on disk");
    drop((first, second));
    let third = open(&server.url(), dir.path()).expect("opened");
    for _ in 0..2 {
        read(&*third, &other, &[(500_000, 1000)]).expect("read");
    }
}
