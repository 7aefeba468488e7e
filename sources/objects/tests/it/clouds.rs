//! Objects in Google Cloud Storage and Azure: the requests that their clients send, and the
//! handling of such stores' responses.
//!
//! The server is that of the other tests, with these stores' paths and headers; signatures are
//! inspected, not verified.

use std::io::ErrorKind;

use image::RangeSource;
use objects::{Object, Url};
use vfs::Errno;

use crate::faults::{object_of, read, tuning};
use crate::server::{Answer, Server};

#[derive(Clone, Copy, Debug)]
enum Cloud {
    Google,
    Azure,
}

impl Cloud {
    const ALL: [Cloud; 2] = [Cloud::Google, Cloud::Azure];

    /// Returns a server of `bytes` that imitates the store, with all headers that its client
    /// requires.
    fn of(self, bytes: Vec<u8>) -> Server {
        let server = Server::new(bytes);
        server.call(match self {
            // The XML API, with the whole name as one path component.
            Cloud::Google => "/bucket/dir%2Fimage",
            Cloud::Azure => "/bucket/dir/image",
        });
        server.tell(Some("first"), false, true);
        server
    }

    /// Returns the URL of an object `name`.
    fn url(self, server: &Server, name: &str) -> Url {
        let at = server.base();
        let url = match self {
            Cloud::Google => format!("gs://bucket/{name}?base_url={at}&skip_signature=true"),
            Cloud::Azure => {
                format!("az://bucket/{name}?endpoint={at}&account_name=me&access_key=c2VjcmV0")
            }
        };
        url.parse().expect("a URL")
    }

    fn connect(self, server: &Server) -> Object {
        let connected = Object::connect(&self.url(server, "dir/image"), tuning(), None);
        let object = connected.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        server.requests();
        object
    }
}

const FAR: u64 = 1 << 20;

#[test]
fn an_object_is_opened_by_one_request_and_read_by_ranges() {
    let bytes = object_of(3 << 20);
    for cloud in Cloud::ALL {
        let server = cloud.of(bytes.clone());
        let url = cloud.url(&server, "dir/image");
        let object = Object::connect(&url, tuning(), None).expect("connected");
        assert_eq!(object.len(), 3 << 20, "{cloud:?}");
        read(&object, &bytes, &[(0, 100), (FAR, 100_000)]).expect("read");
        let requests = server.requests();
        let [opened, further] = &requests[..] else {
            panic!("{cloud:?}: {requests:?}");
        };
        assert_eq!(opened.range, Some(0..16 << 10));
        assert_eq!(further.range, Some(FAR..FAR + 100_000));
        assert_eq!(further.if_match.as_deref(), Some("\"first\""));
        // A key signs each request and is not sent.
        let signed = matches!(cloud, Cloud::Azure).then_some("SharedKey me:");
        for request in &requests {
            let shown = request.authorization.as_deref();
            assert_eq!(shown.is_some(), signed.is_some(), "{cloud:?}: {shown:?}");
            let begins = shown
                .unwrap_or_default()
                .starts_with(signed.unwrap_or_default());
            assert!(begins && !shown.unwrap_or_default().contains("c2VjcmV0"));
        }
    }
}

#[test]
fn what_such_a_store_refuses_says_why() {
    for cloud in Cloud::ALL {
        let server = cloud.of(object_of(100_000));
        let opened = |url| {
            Object::connect(&url, tuning(), None)
                .err()
                .expect("not opened")
        };
        let gone = opened(cloud.url(&server, "dir/other"));
        assert!(gone.to_string().contains("404"), "{cloud:?}: {gone}");
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        for status in [403, 401] {
            server.next([Answer::Status(status, None)]);
            let refused = opened(cloud.url(&server, "dir/image"));
            assert!(
                refused.to_string().contains(&status.to_string()),
                "{cloud:?}: {refused}"
            );
            assert!(!refused.to_string().contains("c2VjcmV0"), "{refused}");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{cloud:?}");
        }
    }
}

#[test]
fn what_passes_is_asked_for_again_and_nothing_else() {
    let bytes = object_of(3 << 20);
    for cloud in Cloud::ALL {
        let server = cloud.of(bytes.clone());
        let object = cloud.connect(&server);
        for answer in [
            Answer::Status(429, Some(0)),
            Answer::Status(503, None),
            Answer::Reset,
            Answer::Cut,
            Answer::Short,
        ] {
            server.next([answer.clone()]);
            let done = read(&object, &bytes, &[(FAR, 100_000)]);
            done.unwrap_or_else(|error| panic!("{cloud:?}, {answer:?}: {error}"));
            assert_eq!(server.requests().len(), 2, "{cloud:?}, {answer:?}");
        }
        for (answer, errno) in [
            (Answer::Status(403, None), Errno::EACCES),
            (Answer::Status(404, None), Errno::ENOENT),
        ] {
            server.next([answer.clone()]);
            let error = read(&object, &bytes, &[(FAR, 100_000)]).expect_err("no bytes");
            assert_eq!(Errno::from(error), errno, "{cloud:?}, {answer:?}");
            assert_eq!(server.requests().len(), 1, "{cloud:?}, {answer:?}");
        }
    }
}

#[test]
fn an_object_that_is_replaced_there_is_never_mixed() {
    let (bytes, other) = (object_of(3 << 20), object_of(3_000_001).split_off(1));
    for cloud in Cloud::ALL {
        let server = cloud.of(bytes.clone());
        let object = cloud.connect(&server);
        // Detected by the store's comparison, and without one.
        server.next([Answer::Replaced]);
        for _ in 0..2 {
            let error = read(&object, &bytes, &[(FAR, 1000)]).expect_err("another object");
            assert_eq!(Errno::from(error), Errno::ESTALE, "{cloud:?}");
            assert_eq!(server.requests().len(), 1, "{cloud:?}");
            server.replace(other.clone(), "second");
        }
        let again = cloud.connect(&server);
        read(&again, &other, &[(FAR, 1000)]).expect("read");
    }
}
