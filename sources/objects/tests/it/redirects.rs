//! Redirects of servers: over HTTP and TLS, between servers that record requests.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use objects::{Environment, Object};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::faults::tuning;

/// A server that answers each request alike, and records the lines of its head.
struct Recorder {
    port: u16,
    heads: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Recorder {
    fn new(answer: String) -> Recorder {
        Recorder::start(answer, None)
    }

    /// Starts one with TLS if `tls` is its configuration.
    fn start(answer: String, tls: Option<Arc<ServerConfig>>) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let heads = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let recorded = heads.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let record = |head| recorded.lock().expect("whole").push(head);
                match &tls {
                    None => reply(stream, &answer, record),
                    Some(config) => {
                        let server = ServerConnection::new(config.clone()).expect("a server");
                        reply(StreamOwned::new(server, stream), &answer, record);
                    }
                }
            }
        });
        Recorder { port, heads }
    }

    fn redirecting(to: &str) -> Recorder {
        Recorder::new(redirect_to(to))
    }

    /// A server of an object of five bytes.
    fn of_object() -> Recorder {
        Recorder::new(object())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/image", self.port)
    }

    fn heads(&self) -> Vec<Vec<String>> {
        self.heads.lock().expect("whole").clone()
    }
}

fn object() -> String {
    "HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nContent-Length: 5\r\n\
     Content-Range: bytes 0-4/5\r\nConnection: close\r\n\r\nhello"
        .into()
}

/// Reads the head of a request, gives its lines to `record`, and answers.
fn reply(mut stream: impl Read + Write, answer: &str, record: impl FnOnce(Vec<String>)) {
    let lines = BufReader::new(&mut stream).lines().map_while(Result::ok);
    record(lines.take_while(|line| !line.is_empty()).collect());
    let _ = stream.write_all(answer.as_bytes());
    let _ = stream.flush();
}

fn redirect_to(to: &str) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

fn open(url: &str, variables: &[(&str, &str)]) -> Result<u64, String> {
    let url = url.parse().expect(url);
    let own = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    let environment = Environment::new(variables.iter().map(own));
    let opened = Object::open_in(&url, tuning(), &environment);
    opened
        .map(|object| object.len())
        .map_err(|error| error.to_string())
}

fn has(head: &[String], name: &str) -> bool {
    head.iter().any(|line| {
        let field = line.split(':').next().unwrap_or_default();
        field.eq_ignore_ascii_case(name)
    })
}

#[test]
fn credentials_are_not_for_the_server_that_a_redirect_leads_to() {
    let last = Recorder::of_object();
    let first = Recorder::redirecting(&last.url());
    let url = format!("s3://bucket/key?endpoint=http://127.0.0.1:{}", first.port);
    let variables = [
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "key"),
        ("AWS_SESSION_TOKEN", "token"),
    ];
    assert_eq!(open(&url, &variables), Ok(5));
    let secrets = ["authorization", "x-amz-security-token"];
    let (sent, forwarded) = (first.heads(), last.heads());
    assert_eq!((sent.len(), forwarded.len()), (1, 1));
    for name in secrets {
        assert!(has(&sent[0], name) && !has(&forwarded[0], name), "{name}");
    }
    assert!(has(&forwarded[0], "range"));
}

/// Returns the configuration of a server at 127.0.0.1, and its certificate as PEM.
fn tls() -> (Arc<ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|it| {
            let it = it.with_no_client_auth();
            it.with_single_cert(vec![made.cert.der().clone()], key)
        });
    (Arc::new(config.expect("valid")), made.cert.pem())
}

#[test]
fn a_redirect_from_tls_to_plain_http_is_not_followed() {
    let plain = Recorder::of_object();
    let (config, certificate) = tls();
    let variables = [
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_PROXY_CA_CERTIFICATE", certificate.as_str()),
    ];
    let opened = |server: &Recorder| {
        let at = format!("https://127.0.0.1:{}", server.port);
        open(&format!("s3://bucket/key?endpoint={at}"), &variables)
    };
    let direct = Recorder::start(object(), Some(config.clone()));
    assert_eq!(opened(&direct), Ok(5), "the certificate is trusted");
    let first = Recorder::start(redirect_to(&plain.url()), Some(config));
    let line = opened(&first).expect_err("refused");
    assert!(line.contains("from HTTPS to HTTP"), "{line}");
    assert_eq!((first.heads().len(), plain.heads().len()), (1, 0));
}

#[test]
fn endless_redirects_end() {
    let server = Recorder::redirecting("/again");
    let line = open(&server.url(), &[]).expect_err("endless");
    assert!(line.contains("redirected too often"), "{line}");
    assert_eq!(server.heads().len(), 11);
}

#[test]
fn no_redirect_leads_a_tenant_to_this_host() {
    let metadata = Recorder::of_object();
    let tenant = [(Environment::TENANT, "pod")];
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let to = format!("http://{host}:{}/latest/meta-data", metadata.port);
        let first = Recorder::redirecting(&to);
        let line = open(&first.url(), &tenant).expect_err(host);
        assert!(line.contains("refused"), "{host}: {line}");
        assert_eq!(first.heads().len(), 1, "{host}: it is asked once");
    }
    assert!(metadata.heads().is_empty());
    // Within the server that the node allows, and for the user of this program, it is none.
    let first = Recorder::redirecting(&metadata.url());
    assert_eq!(open(&first.url(), &[]), Ok(5));
}
