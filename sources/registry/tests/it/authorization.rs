//! Tokens, passwords and redirects: each secret goes only where it belongs.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use registry::Options;
use serde_json::json;

use crate::server::{Reply, Request, Server, ranged};
use crate::{EROFS, error, open, open_with, options, read};

/// The user `me` with the password `hush`.
const BASIC: &str = "Basic bWU6aHVzaA==";

/// Returns options with an entry of `auths` for `host`.
fn login(dir: &tempfile::TempDir, host: &str, entry: serde_json::Value) -> Options {
    let path: PathBuf = dir.path().join("config.json");
    let config = json!({"auths": {host: entry}, "credHelpers": {"helped": "pass"}});
    std::fs::write(&path, config.to_string()).expect("written");
    Options {
        docker_config: Some(path),
        ..options()
    }
}

fn password() -> serde_json::Value {
    json!({"auth": "bWU6aHVzaA=="})
}

/// Demands a token, of which the first is `token-1`; each is accepted `uses` times.
fn demand_token(server: &Server, uses: usize) {
    let base = server.base();
    let (issued, used) = (AtomicUsize::new(0), AtomicUsize::new(0));
    server.handle(move |request| {
        if request.path.starts_with("/token") {
            used.store(0, Ordering::Relaxed);
            let number = issued.fetch_add(1, Ordering::Relaxed) + 1;
            return Some(Reply::good(format!(r#"{{"token": "token-{number}"}}"#)));
        }
        let expected = format!("Bearer token-{}", issued.load(Ordering::Relaxed));
        let accepted = request.authorization() == Some(&expected)
            && used.fetch_add(1, Ordering::Relaxed) < uses;
        let challenge = format!(
            r#"Bearer realm="{base}/token",service="the service",scope="repository:dir/image:pull""#
        );
        (!accepted).then(|| Reply::status(401).with("WWW-Authenticate", challenge))
    });
}

fn paths(requests: &[Request]) -> Vec<&str> {
    requests
        .iter()
        .map(|request| request.path.as_str())
        .collect()
}

#[test]
fn a_token_is_fetched_once_and_renewed_when_it_expires() {
    let server = Server::new();
    let bytes = vec![7; 5 << 20];
    server.image(&[server.blob(EROFS, &bytes)]);
    demand_token(&server, usize::MAX);
    let image = open(&server, "").expect("opened");
    assert!(read(&*image.source).expect("read") == bytes);
    let requests = server.requests();
    let tokens: Vec<_> = requests
        .iter()
        .filter(|one| one.path.starts_with("/token"))
        .collect();
    let [token] = &tokens[..] else {
        panic!("{:?}", paths(&requests));
    };
    assert_eq!(
        token.path,
        "/token?service=the+service&scope=repository%3Adir%2Fimage%3Apull"
    );
    assert_eq!(token.authorization(), None);
    // 401, token, manifest, and three ranges of 2 MiB.
    assert_eq!(requests.len(), 6, "{:?}", paths(&requests));
    demand_token(&server, 1);
    let image = open(&server, "").expect("opened");
    for _ in 0..3 {
        let mut byte = [0];
        let piece = image::Piece {
            offset: 9,
            buffer: &mut byte,
        };
        image.source.read(&mut [piece]).expect("read");
    }
}

#[test]
fn a_password_goes_to_the_token_server_or_with_each_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::new();
    server.image(&[server.blob(EROFS, b"bytes")]);
    demand_token(&server, usize::MAX);
    let options = login(&dir, &server.host(), password());
    let image = open_with(&server, "", &options).expect("opened");
    assert_eq!(read(&*image.source).expect("read"), b"bytes");
    for request in server.requests() {
        let is_basic = request.authorization() == Some(BASIC);
        assert_eq!(is_basic, request.path.starts_with("/token"), "{request:?}");
    }
    server.handle(|request| {
        let accepted = request.authorization() == Some(BASIC);
        (!accepted).then(|| Reply::status(401).with("WWW-Authenticate", "Basic realm=x"))
    });
    let image = open_with(&server, "", &options).expect("opened");
    assert_eq!(read(&*image.source).expect("read"), b"bytes");
    // The first request finds out that a password is needed.
    let sent: Vec<_> = server
        .requests()
        .iter()
        .map(|it| it.authorization().is_some())
        .collect();
    assert_eq!(sent, [false, true, true]);
}

#[test]
fn an_identity_token_is_exchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::new();
    server.image(&[server.blob(EROFS, b"bytes")]);
    demand_token(&server, usize::MAX);
    let options = login(&dir, &server.host(), json!({"identitytoken": "a b&c"}));
    open_with(&server, "", &options).expect("opened");
    let requests = server.requests();
    let token = requests
        .iter()
        .find(|request| request.path == "/token")
        .expect("a request");
    assert_eq!(token.method, "POST");
    assert!(
        token.body.contains("grant_type=refresh_token"),
        "{}",
        token.body
    );
    assert!(
        token.body.contains("refresh_token=a+b%26c"),
        "{}",
        token.body
    );
}

#[test]
fn an_identity_token_follows_no_redirect() {
    let dir = tempfile::tempdir().expect("a directory");
    let (server, thief) = (Server::new(), Server::new());
    server.image(&[server.blob(EROFS, b"bytes")]);
    thief.handle(|_| Some(Reply::good(r#"{"token": "stolen"}"#)));
    let options = login(&dir, &server.host(), json!({"identitytoken": "hush"}));
    for status in [301, 302, 303, 307, 308] {
        let (base, target) = (server.base(), format!("{}/token", thief.base()));
        server.handle(move |request| {
            Some(match request.path.starts_with("/token") {
                true => Reply::status(status).with("Location", target.clone()),
                false => Reply::status(401).with(
                    "WWW-Authenticate",
                    format!(r#"Bearer realm="{base}/token""#),
                ),
            })
        });
        let refused = error(open_with(&server, "", &options)).to_string();
        let expected = format!("{status}, from the token server");
        assert!(refused.contains(&expected), "{refused}");
        assert!(thief.requests().is_empty(), "{status}");
    }
}

#[test]
fn what_is_denied_says_which_credentials_were_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::new();
    let base = server.base();
    for (entry, part) in [
        (password(), "are not accepted"),
        (json!({}), "no credentials for the registry"),
    ] {
        let options = login(&dir, &server.host(), entry);
        for (status, challenge) in [
            (401, "Basic realm=x".to_owned()),
            (401, format!(r#"Bearer realm="{base}/token""#)),
            (403, format!(r#"Bearer realm="{base}/token""#)),
        ] {
            let challenged = challenge.clone();
            server.handle(move |request| {
                let status = match request.path.starts_with("/token") {
                    true => status,
                    false => 401,
                };
                Some(Reply::status(status).with("WWW-Authenticate", challenged.clone()))
            });
            let denied = error(open_with(&server, "", &options));
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
            let known = part == "are not accepted" && challenge.starts_with("Basic");
            let part = if known { "401" } else { part };
            if challenge.starts_with("Bearer") {
                let expected = format!("{status}, from the token server");
                assert!(denied.to_string().contains(&expected), "{denied}");
            }
            assert!(denied.to_string().contains(part), "{denied}");
            assert!(!denied.to_string().contains("hush"), "{denied}");
            // Neither again and again.
            assert!(server.requests().len() <= 2);
        }
    }
    // A helper is named.
    let path = dir.path().join("config.json");
    let config = json!({"credHelpers": {server.host(): "ecr-login"}});
    std::fs::write(&path, config.to_string()).expect("written");
    let options = Options {
        docker_config: Some(path),
        ..options()
    };
    let denied = error(open_with(&server, "", &options)).to_string();
    assert!(denied.contains("helper 'ecr-login'"), "{denied}");
    for challenge in [
        "Negotiate",
        r#"Bearer realm="ftp://x""#,
        r#"Bearer realm="x""#,
    ] {
        server.handle(move |_| Some(Reply::status(401).with("WWW-Authenticate", challenge)));
        let denied = error(open(&server, ""));
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied, "{denied}");
        assert!(denied.to_string().contains("expected"), "{denied}");
    }
}

#[test]
fn a_token_servers_reply_is_bounded() {
    let server = Server::new();
    let base = server.base();
    for (reply, part) in [
        (Reply::good(vec![b' '; 200 << 10]), "at most 131072 bytes"),
        (Reply::good(r#"{"token": "new\nline"}"#), "expected a token"),
        (Reply::good("[]"), "expected a token"),
        (Reply::status(503), "503"),
    ] {
        let realm = format!(r#"Bearer realm="{base}/token""#);
        server.handle(move |request| {
            Some(match request.path.starts_with("/token") {
                true => reply.clone(),
                false => Reply::status(401).with("WWW-Authenticate", realm.clone()),
            })
        });
        let failed = error(open(&server, "")).to_string();
        assert!(failed.contains(part), "{failed}");
    }
}

#[test]
fn a_blob_store_gets_no_authorization() {
    let dir = tempfile::tempdir().expect("a directory");
    let (server, store) = (Server::new(), Arc::new(Server::new()));
    let bytes = vec![3; 3 << 20];
    server.image(&[server.blob(EROFS, &bytes)]);
    let target = format!("{}/signed?X-Amz-Signature=hush", store.base());
    server.handle(move |request| {
        if request.authorization() != Some(BASIC) {
            return Some(Reply::status(401).with("WWW-Authenticate", "Basic realm=x"));
        }
        let is_blob = request.path.contains("/blobs/");
        is_blob.then(|| Reply::status(307).with("Location", target.clone()))
    });
    let stored = bytes.clone();
    store.handle(move |request| Some(ranged(request, &stored)));
    let options = login(&dir, &server.host(), password());
    let image = open_with(&server, "", &options).expect("opened");
    assert!(read(&*image.source).expect("read") == bytes);
    let received = store.requests();
    assert_eq!(received.len(), 2);
    server.requests();
    // Further requests go there directly, until it refuses them once.
    assert!(read(&*image.source).expect("read") == bytes);
    assert!(server.requests().is_empty() && store.requests().len() == 2);
    let (stored, refused) = (bytes.clone(), AtomicUsize::new(0));
    store.handle(
        move |request| match refused.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Reply::status(403)),
            _ => Some(ranged(request, &stored)),
        },
    );
    assert!(read(&*image.source).expect("read") == bytes);
    assert!(!server.requests().is_empty());
    for request in &received {
        assert_eq!(request.authorization(), None);
        assert!(request.headers.contains_key("range"));
    }
    // Nor if it asks for it: the challenge is not the registry's.
    let base = store.base();
    store.handle(move |_| {
        let challenge = format!(r#"Bearer realm="{base}/token", Basic realm=x"#);
        Some(Reply::status(401).with("WWW-Authenticate", challenge))
    });
    assert!(read(&*image.source).is_err());
    let received = store.requests();
    assert!(
        received
            .iter()
            .all(|request| request.authorization().is_none())
    );
    assert!(
        received
            .iter()
            .all(|request| request.path.starts_with("/signed"))
    );
}
