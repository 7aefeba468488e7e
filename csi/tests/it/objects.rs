//! Volumes of images in object stores, over HTTP from a server in this process.

use std::fs;

use tonic::Code;

use crate::daemon::{Daemon, Scratch, may_mount};
use crate::node::{Volume, code, make_sources, map};

#[allow(dead_code, reason = "faults are for the tests of the source")]
#[path = "../../../sources/objects/tests/it/server.rs"]
mod server;

use server::{Answer, Server};

fn server(scratch: &Scratch) -> Server {
    let allowed = make_sources(scratch);
    Server::new(fs::read(format!("{allowed}/image.erofs")).expect("read"))
}

#[test]
fn an_image_in_a_bucket_is_read_with_the_secret_of_its_volume() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let server = server(&scratch);
    server.call("/bucket/image");
    let cache = scratch.dir("cache");
    let daemon = Daemon::start(&scratch, &["--cache-dir", &cache, "--cache-dir-size", "1G"]);
    let source = format!("s3://bucket/image?endpoint={}", server.base());
    let mut volume = Volume::new(&daemon, &scratch, "v", &[("source", &source)]);
    volume.secrets = map(&[
        ("AWS_ACCESS_KEY_ID", "id-1"),
        ("AWS_SECRET_ACCESS_KEY", "hush-1"),
        ("AWS_REGION", "eu-central-1"),
    ]);
    let target = scratch.text("target");
    volume.stage().expect("staged");
    volume.publish(&target, true).expect("published");
    assert_eq!(fs::read(format!("{target}/hello")).expect("read"), b"hello");
    let requests = server.requests();
    assert!(!requests.is_empty());
    for request in requests {
        assert!(
            request.path.starts_with("/bucket/image"),
            "{}",
            request.path
        );
        let authorization = request.authorization.expect("signed");
        assert!(
            authorization.contains("Credential=id-1/"),
            "{authorization}"
        );
        assert!(authorization.contains("/eu-central-1/"), "{authorization}");
    }
    assert!(fs::read_dir(&cache).expect("listed").count() > 0);
    volume.unpublish(&target).expect("unpublished");
    volume.unstage().expect("unstaged");

    // The disk cache gives nothing to a volume that the store refuses.
    server.always(Answer::Status(403, None));
    let mut other = Volume::new(&daemon, &scratch, "w", &[("source", &source)]);
    other.secrets = map(&[
        ("AWS_ACCESS_KEY_ID", "id-2"),
        ("AWS_SECRET_ACCESS_KEY", "hush-2"),
    ]);
    let refused = other.stage().expect_err("refused");
    assert_eq!(refused.code(), Code::Internal);
    assert!(!refused.message().is_empty() && !refused.message().contains("hush"));
    assert_eq!(scratch.mounts(), 0);
}

#[test]
fn an_inline_volume_reads_the_image_that_the_node_allows() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let server = server(&scratch);
    server.call("/public/image.erofs");
    let public = format!("{}/public", server.base());
    let daemon = Daemon::start(&scratch, &["--allow-inline", &public]);
    let target = scratch.text("target");
    let image = format!("{public}/image.erofs?signature=x");
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &image)]);
    volume.publish_inline(&target).expect("published");
    assert_eq!(fs::read(format!("{target}/hello")).expect("read"), b"hello");
    volume.unpublish(&target).expect("unpublished");
    assert!(!server.requests().is_empty());
    for path in ["private/image.erofs", "public/../private", "publicity"] {
        let source = format!("{}/{path}", server.base());
        let volume = Volume::new(&daemon, &scratch, "v", &[("source", &source)]);
        assert_eq!(code(volume.publish_inline(&target)), Code::PermissionDenied);
    }
    assert!(server.requests().is_empty());
}
