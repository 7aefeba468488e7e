//! Volumes of images in object stores, over HTTP from a server in this process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Signal, kill_process};
use tonic::Code;

use crate::daemon::{Daemon, Scratch, barge, may_mount, processes_with};
use crate::node::{Volume, code, make_sources, map};

#[allow(dead_code, reason = "faults are for the tests of the source")]
#[path = "../../../sources/objects/tests/it/server.rs"]
mod server;

use server::{Answer, Server};
use vfs_testkit::wait_until;

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

/// A proxy that refuses all requests, and records what they ask for.
struct Proxy {
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let recorded = lines.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let first = BufReader::new(&stream).lines().next();
                if let Some(Ok(line)) = first {
                    recorded.lock().expect("whole").push(line);
                }
                let _ = (&stream).write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
            }
        });
        Proxy { port, lines }
    }

    /// Returns a program `barge` that sends everything to this proxy.
    fn barge(&self, scratch: &Scratch) -> String {
        let at = format!("http://127.0.0.1:{}", self.port);
        let variables = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"];
        let variables = variables.map(|name| format!("export {name}={at}\n"));
        let text = format!(
            "#!/bin/sh\n{}exec {} \"$@\"\n",
            variables.concat(),
            barge().display()
        );
        scratch.script("proxied", &text)
    }
}

/// The sources that the node allows to pods.
const ALLOWED: [&str; 3] = ["s3://bucket", "gs://bucket", "az://container@account"];

/// Starts a daemon that allows pods [`ALLOWED`], and sends everything to a proxy.
fn behind(proxy: &Proxy, scratch: &Scratch) -> Daemon {
    let program = proxy.barge(scratch);
    let mut arguments = vec!["--barge", &program];
    for source in &ALLOWED {
        arguments.extend(["--allow-inline", source]);
    }
    Daemon::start(scratch, &arguments)
}

/// Publishes the inline volume of a pod with these secrets.
fn publish_of_pod(
    (daemon, scratch): (&Daemon, &Scratch),
    name: &str,
    source: &str,
    secrets: &[(&str, &str)],
) -> Result<csi::proto::Empty, tonic::Status> {
    let source = format!("{source}/key");
    let mut volume = Volume::new(daemon, scratch, name, &[("source", &source)]);
    volume.secrets = map(secrets);
    volume.publish_inline(&scratch.text(&format!("target-{name}")))
}

/// The secrets of pods that say where requests go, or whose credentials they have.
const SECRETS: [&str; 19] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BASE_URL",
];

#[test]
fn a_secret_of_a_pod_that_leads_elsewhere_starts_nothing() {
    let scratch = Scratch::new();
    let proxy = Proxy::start();
    let daemon = behind(&proxy, &scratch);
    let hostile = [
        "host.example:443/#",
        "@host.example/#",
        "http://host.example",
        "169.254.169.254",
        "{\"gcs_base_url\": \"http://host.example\", \"disable_oauth\": true}",
        "x\n",
        "",
    ];
    for name in SECRETS {
        let source = match name.split('_').next() {
            Some("AWS") => ALLOWED[0],
            Some("GOOGLE") => ALLOWED[1],
            _ => ALLOWED[2],
        };
        for value in hostile {
            let refused = publish_of_pod((&daemon, &scratch), "v", source, &[(name, value)]);
            assert_eq!(code(refused), Code::InvalidArgument, "{name}={value:?}");
        }
    }
    assert!(proxy.lines.lock().expect("whole").is_empty());
}

#[test]
fn no_secret_of_a_pod_sends_a_request_to_another_host() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let proxy = Proxy::start();
    let daemon = behind(&proxy, &scratch);
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "k")];
    let login = [
        ("AZURE_STORAGE_CLIENT_ID", "id"),
        ("AZURE_STORAGE_CLIENT_SECRET", "secret"),
        ("AZURE_STORAGE_TENANT_ID", "tenant"),
    ];
    let account = [("AZURE_STORAGE_ACCOUNT_NAME", "other")];
    let cases: [(&str, &[(&str, &str)]); 6] = [
        (ALLOWED[0], &[]),
        (ALLOWED[0], &keys),
        (ALLOWED[1], &[]),
        (ALLOWED[2], &[]),
        (ALLOWED[2], &login),
        (ALLOWED[2], &account),
    ];
    thread::scope(|scope| {
        for (at, (source, secrets)) in cases.into_iter().enumerate() {
            let at_node = (&daemon, &scratch);
            scope.spawn(move || {
                let published = publish_of_pod(at_node, &format!("v{at}"), source, secrets);
                published.expect_err("the proxy refuses");
            });
        }
    });
    let lines = proxy.lines.lock().expect("whole").clone();
    // The store, or the server of Azure's tokens.
    let hosts = [
        "s3.us-east-1.amazonaws.com",
        "storage.googleapis.com",
        "account.blob.core.windows.net",
        "login.microsoftonline.com",
    ];
    let hosts = hosts.map(|host| format!("CONNECT {host}:443 HTTP/1.1"));
    for line in &lines {
        assert!(hosts.contains(line), "{line}");
    }
    for host in &hosts {
        assert!(lines.contains(host), "{host}: {lines:?}");
    }
    assert_eq!(scratch.mounts(), 0);
}

#[test]
fn a_pod_puts_nothing_into_the_volume_of_another_one() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let server = server(&scratch);
    server.call("/public/image.erofs");
    let image = format!("{}/public/image.erofs", server.base());
    let cache = scratch.dir("cache");
    let arguments = ["--allow-inline", &image, "--cache-dir", &cache];
    let daemon = Daemon::start(&scratch, &arguments);
    let mut entries = 0;
    for name in ["one", "two"] {
        let volume = Volume::new(&daemon, &scratch, name, &[("source", &image)]);
        let target = scratch.text(name);
        volume.publish_inline(&target).expect("published");
        assert_eq!(fs::read(format!("{target}/hello")).expect("read"), b"hello");
        volume.unpublish(&target).expect("unpublished");
        let requests = server.requests();
        assert!(requests[0].if_none_match.is_none(), "{name}: {requests:?}");
        let listed = fs::read_dir(&cache).expect("listed").count();
        assert!(listed > entries, "{name}: {listed} files");
        entries = listed;
    }
}

#[test]
fn a_volume_is_mounted_again_once_its_server_is_back() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let server = server(&scratch);
    server.call("/image.erofs");
    let image = format!("{}/image.erofs", server.base());
    let daemon = Daemon::start(&scratch, &[]);
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &image)]);
    volume.stage().expect("staged");
    for pid in processes_with(&volume.staging) {
        kill_process(pid, Signal::KILL).expect("it runs");
    }
    wait_until("the mount is dead", || {
        fs::read_dir(&volume.staging).is_err()
    });
    server.always(Answer::Status(403, None));
    let target = scratch.text("target");
    for _ in 0..2 {
        let failed = code(volume.publish(&target, false));
        assert_eq!(failed, Code::Internal);
        assert_eq!(scratch.mounts(), 1, "the dead mount stays");
    }
    server.always(Answer::Good);
    volume.publish(&target, false).expect("mounted again");
    assert_eq!(fs::read(format!("{target}/hello")).expect("read"), b"hello");
    // A workload still uses the volume when its staging mount is gone for another reason.
    rustix::mount::unmount(volume.staging.as_str(), rustix::mount::UnmountFlags::DETACH)
        .expect("unmounted");
    let next = scratch.text("next");
    volume.publish(&next, false).expect("mounted again");
    for target in [&target, &next] {
        assert_eq!(fs::read(format!("{target}/hello")).expect("read"), b"hello");
        volume.unpublish(target).expect("unpublished");
    }
    volume.unstage().expect("unstaged");
    assert_eq!(scratch.mounts(), 0);
}
