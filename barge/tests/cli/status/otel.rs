//! `--otlp`: a small collector receives metrics and spans. It decodes them with the messages of the
//! opentelemetry-proto crate, which the program does not use.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use p9::{Fid, Names, Tmessage};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use super::counts::Client;
use super::slow::slow_path;
use super::{get, http};
use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// The way in which the collector answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Ok,
    /// 503 Service Unavailable.
    Busy,
    /// 400 Bad Request.
    Bad,
    /// No answer: the connection stays open.
    Hang,
    /// An answer that never ends, byte by byte.
    Drip,
}

/// A request that the collector received.
#[derive(Clone)]
struct Received {
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct State {
    answer: Answer,
    received: Vec<Received>,
}

/// A collector at a port of this host.
struct Collector {
    port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Collector {
    fn start(answer: Answer) -> Collector {
        Collector::start_with(answer, None)
    }

    /// Starts one with TLS if `tls` is its configuration.
    fn start_with(answer: Answer, tls: Option<Arc<rustls::ServerConfig>>) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let received = Vec::new();
        let state = Arc::new((Mutex::new(State { answer, received }), Condvar::new()));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, tls) = (shared.clone(), tls.clone());
                thread::spawn(move || {
                    // The exporter may have given up.
                    let _ = match tls {
                        None => serve(stream, &shared),
                        Some(config) => {
                            let server = rustls::ServerConnection::new(config).expect("a server");
                            serve(rustls::StreamOwned::new(server, stream), &shared)
                        }
                    };
                });
            }
        });
        Collector { port, state }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn set(&self, answer: Answer) {
        self.state.0.lock().expect("locked").answer = answer;
        self.state.1.notify_all();
    }

    fn received(&self) -> Vec<Received> {
        self.state.0.lock().expect("locked").received.clone()
    }

    fn spans(&self) -> Vec<Span> {
        let all = self.received().into_iter();
        let requests = all.filter(|it| it.path == "/v1/traces").map(|it| {
            ExportTraceServiceRequest::decode(&*it.body).expect("an ExportTraceServiceRequest")
        });
        let resources = requests.flat_map(|it| it.resource_spans);
        let scopes = resources.flat_map(|it| it.scope_spans);
        scopes.flat_map(|it| it.spans).collect()
    }

    /// Returns the last metrics.
    fn metrics(&self) -> Option<Metrics> {
        let mut all = self.received().into_iter();
        let last = all.rfind(|it| it.path == "/v1/metrics")?;
        let request = ExportMetricsServiceRequest::decode(&*last.body);
        Some(Metrics::of(
            request.expect("an ExportMetricsServiceRequest"),
        ))
    }
}

/// Receives a request and answers it.
fn serve(mut stream: impl Read + Write, shared: &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(line, format!("POST {path} HTTP/1.1\r\n"));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let len = headers["content-length"].parse().expect("a length");
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    let (state, changed) = shared;
    let mut state = state.lock().expect("locked");
    state.received.push(Received {
        path,
        headers,
        body,
    });
    if state.answer == Answer::Drip {
        stream.write_all(b"HTTP/1.1 200 OK\r\nX: ")?;
    }
    loop {
        match state.answer {
            Answer::Ok => {
                return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
            Answer::Busy => {
                return stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n");
            }
            Answer::Bad => return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            Answer::Hang => state = changed.wait(state).expect("locked"),
            Answer::Drip => {
                stream.write_all(b"x")?;
                stream.flush()?;
                let pause = Duration::from_millis(50);
                state = changed.wait_timeout(state, pause).expect("locked").0;
            }
        }
    }
}

/// A value with its attributes.
struct Point {
    attributes: BTreeMap<String, String>,
    value: f64,
    /// Of a histogram.
    buckets: Vec<u64>,
    bounds: Vec<f64>,
    start: u64,
    time: u64,
}

struct Metric {
    unit: String,
    /// `gauge`, `sum`, `growing sum` or `histogram`.
    kind: &'static str,
    points: Vec<Point>,
}

/// Metrics by name, and the attributes of their resource.
struct Metrics {
    resource: BTreeMap<String, String>,
    all: BTreeMap<String, Metric>,
}

impl Metrics {
    fn of(request: ExportMetricsServiceRequest) -> Metrics {
        let [resource] = &request.resource_metrics[..] else {
            panic!("{request:?}");
        };
        let attributes = &resource.resource.as_ref().expect("a resource").attributes;
        let mut all = BTreeMap::new();
        for metric in resource.scope_metrics.iter().flat_map(|it| &it.metrics) {
            let numbers =
                |points: &[opentelemetry_proto::tonic::metrics::v1::NumberDataPoint]| {
                    let points = points.iter().map(|point| Point {
                        attributes: texts(&point.attributes),
                        value: match point.value.expect("a value") {
                            number_data_point::Value::AsDouble(value) => value,
                            number_data_point::Value::AsInt(value) => value as f64,
                        },
                        buckets: Vec::new(),
                        bounds: Vec::new(),
                        start: point.start_time_unix_nano,
                        time: point.time_unix_nano,
                    });
                    points.collect()
                };
            let (kind, points) = match metric.data.as_ref().expect("data") {
                Data::Gauge(gauge) => ("gauge", numbers(&gauge.data_points)),
                Data::Sum(sum) => {
                    assert_eq!(sum.aggregation_temporality, 2, "{metric:?}");
                    let kind = match sum.is_monotonic {
                        true => "growing sum",
                        false => "sum",
                    };
                    (kind, numbers(&sum.data_points))
                }
                Data::Histogram(histogram) => {
                    assert_eq!(histogram.aggregation_temporality, 2, "{metric:?}");
                    let points = histogram.data_points.iter().map(|point| Point {
                        attributes: texts(&point.attributes),
                        value: point.count as f64,
                        buckets: point.bucket_counts.clone(),
                        bounds: point.explicit_bounds.clone(),
                        start: point.start_time_unix_nano,
                        time: point.time_unix_nano,
                    });
                    ("histogram", points.collect())
                }
                other => panic!("{other:?}"),
            };
            let unit = metric.unit.clone();
            let metric_named = all.insert(metric.name.clone(), Metric { unit, kind, points });
            assert!(metric_named.is_none(), "{} twice", metric.name);
        }
        Metrics {
            resource: texts(attributes),
            all,
        }
    }

    /// Returns the point of `name` with these attributes.
    fn point(&self, name: &str, attributes: &[(&str, &str)]) -> Option<&Point> {
        let mut points = self.all.get(name)?.points.iter();
        points.find(|point| {
            let mut wanted = attributes.iter();
            wanted.all(|(key, value)| point.attributes.get(*key).is_some_and(|it| it == value))
        })
    }

    fn value(&self, name: &str, attributes: &[(&str, &str)]) -> f64 {
        self.point(name, attributes).map_or(0.0, |it| it.value)
    }
}

/// Returns attributes as text.
fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let attributes = attributes.iter().map(|attribute| {
        let value = attribute.value.as_ref().and_then(|it| it.value.as_ref());
        let text = match value.expect("a value") {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            Value::DoubleValue(number) => number.to_string(),
            Value::BoolValue(value) => value.to_string(),
            other => panic!("{other:?}"),
        };
        (attribute.key.clone(), text)
    });
    attributes.collect()
}

/// Returns a server of `source` that exports to `collector` soon, with `args` and `variables`.
fn start(
    source: &str,
    collector: &Collector,
    args: &[&str],
    variables: &[(&str, &str)],
) -> ServerProcess {
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", "tcp:127.0.0.1:0", source, "--http", "0"]);
    command.args(["--otlp", &collector.url()]).args(args);
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command.envs(variables.iter().copied());
    ServerProcess::run(command)
}

fn getattr(client: &mut Client) {
    client.call(Tmessage::Getattr {
        fid: Fid(0),
        mask: 0x7ff,
    });
}

/// Returns the value of a line of `/metrics`.
fn metric(served: &ServerProcess, line: &str) -> f64 {
    let page = get(&http(served), "/metrics");
    let mut values = page.lines().filter_map(|it| it.strip_prefix(line));
    let value = values.next().map(|it| it.trim().parse());
    value.map_or(0.0, |value| value.expect("a number"))
}

/// Returns the names of the metrics in the text `page` that have values, as OTLP has them.
fn families(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|it| it.strip_prefix("# TYPE "));
    let names = types.filter_map(|it| {
        let (family, kind) = it.split_once(' ')?;
        let (in_text, name) = match kind {
            "info" => ("_info", format!("{family}_info")),
            "counter" => ("_total", family.to_owned()),
            "histogram" => ("_bucket", family.to_owned()),
            _ => ("", family.to_owned()),
        };
        let in_text = format!("{family}{in_text}");
        let has_values = page.lines().any(|line| {
            let rest = line.strip_prefix(&in_text);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        has_values.then_some(name)
    });
    names.collect()
}

#[test]
fn metrics_arrive_with_the_values_of_the_requests() {
    let collector = Collector::start(Answer::Ok);
    let variables = [
        ("OTEL_SERVICE_NAME", "files"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=storage%20a"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret"),
    ];
    let served = start("mem:", &collector, &[], &variables);
    let mut client = Client::new(served.port());
    (0..40).for_each(|_| getattr(&mut client));
    client.call(Tmessage::Walk {
        fid: Fid(0),
        newfid: Fid(1),
        names: Names::new(&[b"absent"]),
    });
    let labels = [("protocol", "9p"), ("op", "Tgetattr")];
    let count = || {
        let metrics = collector.metrics()?;
        Some(metrics.value("barge_operation_seconds", &labels))
    };
    wait_until("40 requests", || count() == Some(40.0));
    let metrics = collector.metrics().expect("metrics");
    let times = &metrics.all["barge_operation_seconds"];
    assert_eq!((times.kind, &*times.unit), ("histogram", "s"));
    let point = metrics.point("barge_operation_seconds", &labels);
    let point = point.expect("a point");
    assert_eq!(point.buckets.iter().sum::<u64>(), 40);
    assert_eq!(point.buckets.len(), point.bounds.len() + 1);
    assert!(point.bounds.is_sorted() && point.bounds[0] < 2e-6);
    assert!(point.start < point.time);
    let requests = &metrics.all["barge_requests"];
    assert_eq!((requests.kind, &*requests.unit), ("growing sum", ""));
    // With Tversion, Tattach and Twalk.
    wait_until("all requests", || {
        let metrics = collector.metrics().expect("metrics");
        let errors = [("op", "Twalk"), ("errno", "ENOENT")];
        metrics.value("barge_requests", &[]) == 43.0
            && metrics.value("barge_operation_errors", &errors) == 1.0
    });
    let received = &metrics.all["barge_received_bytes"];
    assert_eq!((received.kind, &*received.unit), ("growing sum", "By"));
    let uptime = &metrics.all["barge_uptime_seconds"];
    assert_eq!((uptime.kind, &*uptime.unit), ("gauge", "s"));
    assert_eq!(metrics.value("barge_ready", &[]), 1.0);
    let build = metrics.point("barge_build_info", &[]).expect("a build");
    assert!(build.attributes["features"].contains("otel"));
    for (key, value) in [("service.name", "files"), ("team", "storage a")] {
        assert_eq!(metrics.resource[key], value);
    }
    let instance = &metrics.resource["service.instance.id"];
    assert!(
        instance.ends_with(&format!(":{}", served.id())),
        "{instance}"
    );
    let request = &collector.received()[0];
    assert_eq!(request.headers["api-key"], "secret");
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    // They are those of the page.
    wait_until("the metrics of the page", || {
        let exported = collector.metrics().expect("metrics").all;
        let exported: BTreeSet<_> = exported.into_keys().collect();
        exported == families(&get(&http(&served), "/metrics")) && exported.len() > 15
    });
    let requests_as_text = metric(&served, "barge_requests_total ");
    assert_eq!(requests_as_text, 43.0);
}

#[test]
fn a_slow_request_becomes_a_span_with_its_share_and_path() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("sub")).expect("made");
    std::fs::write(dir.path().join("sub/file"), "contents").expect("written");
    let origin = ServerProcess::start(&[dir.path().to_str().expect("text")]);
    let source = format!("data=9p://127.0.0.1:{}/", slow_path(origin.port()));
    let collector = Collector::start(Answer::Ok);
    let served = start(&source, &collector, &["--slow-ms", "10"], &[]);
    let mut client = Client::of_share(served.port(), b"data");
    let names = [&b"sub"[..], b"file"];
    for (message, newfid) in [
        (names.as_slice(), Fid(1)),
        (&[b"sub".as_slice(), b"absent"], Fid(2)),
    ] {
        client.call(Tmessage::Walk {
            fid: Fid(0),
            newfid,
            names: Names::new(message),
        });
    }
    client.call(Tmessage::Lopen {
        fid: Fid(1),
        flags: 0,
    });
    client.call(Tmessage::Read {
        fid: Fid(1),
        offset: 2,
        count: 100,
    });
    let find = |name: &str| collector.spans().into_iter().find(|it| it.name == name);
    wait_until("a span of the read", || find("Tread").is_some());
    let span = find("Tread").expect("a span");
    let attributes = texts(&span.attributes);
    for (key, value) in [
        ("rpc.system", "9p"),
        ("rpc.method", "Tread"),
        ("client.address", "127.0.0.1"),
        ("barge.share", "data"),
        ("file.path", "/sub/file"),
        ("barge.offset", "2"),
        ("barge.response.size", "17"),
        ("barge.slow", "true"),
    ] {
        assert_eq!(attributes[key], value, "{key}");
    }
    assert!(attributes.contains_key("file.inode") && attributes.contains_key("client.port"));
    let duration = span.end_time_unix_nano - span.start_time_unix_nano;
    assert!(duration >= 10_000_000, "{duration}");
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert_eq!((span.kind, span.status), (2, None));
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).expect("later");
    let age = now.as_nanos() as u64 - span.end_time_unix_nano;
    assert!(age < 30_000_000_000, "{age}");
    // Requests that are not slow are no spans, and spans are counted.
    assert!(find("Tversion").is_none());
    wait_until("counted spans", || {
        metric(&served, "barge_otlp_spans_total{result=\"exported\"} ") > 0.0
    });
}

#[test]
fn a_sampler_makes_spans_of_requests_that_are_not_slow() {
    let collector = Collector::start(Answer::Ok);
    let always = [("OTEL_TRACES_SAMPLER", "always_on")];
    let served = start("mem:", &collector, &[], &always);
    let mut client = Client::new(served.port());
    (0..10).for_each(|_| getattr(&mut client));
    client.call(Tmessage::Walk {
        fid: Fid(0),
        newfid: Fid(1),
        names: Names::new(&[b"absent"]),
    });
    wait_until("13 spans", || collector.spans().len() == 13);
    let spans = collector.spans();
    let walk = spans.iter().find(|it| it.name == "Twalk").expect("a walk");
    let attributes = texts(&walk.attributes);
    assert_eq!(attributes["error.type"], "ENOENT");
    assert_eq!(attributes["barge.slow"], "false");
    // No fault of the server.
    assert_eq!(walk.status, None);
    let ids: BTreeSet<_> = spans.iter().map(|it| it.trace_id.clone()).collect();
    assert_eq!(ids.len(), spans.len());
    // Without a sampler and --slow-ms, there are none.
    let collector = Collector::start(Answer::Ok);
    let served = start("mem:", &collector, &[], &[]);
    getattr(&mut Client::new(served.port()));
    wait_until("metrics of it", || {
        let metrics = collector.metrics();
        metrics.is_some_and(|it| it.value("barge_requests", &[]) == 3.0)
    });
    assert!(collector.spans().is_empty());
}

#[test]
fn spans_are_sent_again_to_a_collector_that_was_busy_and_the_rest_is_counted() {
    let collector = Collector::start(Answer::Busy);
    let variables = [
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
    ];
    let served = start("mem:", &collector, &[], &variables);
    let mut client = Client::new(served.port());
    let dropped = || metric(&served, "barge_otlp_spans_total{result=\"dropped\"} ");
    wait_until("dropped spans", || {
        getattr(&mut client);
        dropped() > 0.0
    });
    let failed = collector.spans();
    assert!(!failed.is_empty());
    collector.set(Answer::Ok);
    let exported = || metric(&served, "barge_otlp_spans_total{result=\"exported\"} ");
    wait_until("exported spans", || exported() > 0.0);
    // The first batch came again, as it was.
    let spans = collector.spans();
    let first = &failed[0].span_id;
    assert!(spans.iter().filter(|it| it.span_id == *first).count() >= 2);
    collector.set(Answer::Bad);
    let rejected = || metric(&served, "barge_otlp_spans_total{result=\"rejected\"} ");
    wait_until("rejected spans", || {
        getattr(&mut client);
        rejected() > 0.0
    });
}

#[test]
fn a_collector_that_is_away_or_hangs_delays_neither_requests_nor_the_end_for_long() {
    let away = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.local_addr().expect("an address").port()
    };
    for answer in [None, Some(Answer::Hang), Some(Answer::Drip)] {
        let mut collector = Collector::start(answer.unwrap_or(Answer::Ok));
        if answer.is_none() {
            collector.port = away;
        }
        let variables = [
            ("OTEL_TRACES_SAMPLER", "always_on"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "200"),
        ];
        let served = start("mem:", &collector, &[], &variables);
        if answer.is_some() {
            // The exporter does not wait longer than its time for a reply.
            wait_until("a second request", || collector.received().len() >= 2);
        }
        let mut client = Client::new(served.port());
        let begun = Instant::now();
        (0..1000).for_each(|_| getattr(&mut client));
        assert!(begun.elapsed() < Duration::from_secs(10));
        let begun = Instant::now();
        drop(client);
        assert!(served.stop().success());
        // Two seconds, and time for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(8));
    }
}

#[test]
fn the_last_values_are_exported_at_the_end() {
    let collector = Collector::start(Answer::Ok);
    let variables = [
        ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
    ];
    for sandbox in ["landlock", "none"] {
        let args = ["--sandbox", sandbox];
        let served = start("mem:", &collector, &args, &variables);
        let mut client = Client::new(served.port());
        (0..5).for_each(|_| getattr(&mut client));
        drop(client);
        assert!(collector.received().is_empty());
        assert!(served.stop().success());
        let metrics = collector.metrics().expect("metrics");
        assert_eq!(metrics.value("barge_requests", &[]), 7.0);
        assert_eq!(metrics.value("barge_ready", &[]), 0.0);
        assert_eq!(collector.spans().len(), 7);
        collector.state.0.lock().expect("locked").received.clear();
    }
}

#[test]
fn a_collector_with_tls_needs_a_trusted_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, made.cert.pem()).expect("written");
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|it| {
            let it = it.with_no_client_auth();
            it.with_single_cert(vec![made.cert.der().clone()], key)
        });
    let config = Arc::new(config.expect("valid"));
    let collector = Collector::start_with(Answer::Ok, Some(config));
    let run = |trusted: bool| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p", "tcp:127.0.0.1:0", "mem:", "--otlp"]);
        command.arg(format!("https://127.0.0.1:{}", collector.port));
        if trusted {
            command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", &file);
        }
        assert!(ServerProcess::run(command).stop().success());
    };
    run(false);
    assert!(collector.received().is_empty());
    run(true);
    assert!(collector.metrics().is_some());
}

#[test]
fn a_server_with_tls_reads_its_file_again_without_the_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let certificate = dir.path().join("ca.pem");
    std::fs::write(&certificate, made.cert.pem()).expect("written");
    let file = dir.path().join("barge.toml");
    let one = "otlp = 'https://127.0.0.1:1'\n9p = 'tcp:127.0.0.1:0'\n\
               [[share]]\nname = 'one'\nsource = 'mem:'\n";
    std::fs::write(&file, one).expect("written");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--config"]).arg(&file);
    command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", &certificate);
    let served = ServerProcess::run(command);
    // The process that serves is confined, and its parent does not need them either.
    std::fs::remove_file(&certificate).expect("removed");
    let two = format!("{one}[[share]]\nname = 'two'\nsource = 'mem:'\n");
    std::fs::write(&file, two).expect("written");
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("asked");
    wait_until("the new share", || {
        served.barge(&["ls", "{}"], "two").status.success()
    });
    assert!(served.stop().success());
}

#[test]
fn the_environment_alone_enables_it_and_may_disable_it() {
    let collector = Collector::start(Answer::Ok);
    let url = collector.url();
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p", "tcp:127.0.0.1:0", "mem:"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url);
        command.envs(variables.iter().copied());
        ServerProcess::run(command)
    };
    for (variable, value) in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_METRICS_EXPORTER", "none"),
    ] {
        assert!(start(&[(variable, value)]).stop().success());
        assert!(collector.received().is_empty(), "{variable}");
    }
    assert!(start(&[]).stop().success());
    assert!(collector.metrics().is_some());
}

#[test]
fn an_environment_for_another_protocol_is_reported_once_and_exports_nothing() {
    let collector = Collector::start(Answer::Ok);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", "tcp:127.0.0.1:0", "mem:"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    command.env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json");
    command.env("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc");
    command.stderr(std::fs::File::create(&log).expect("made"));
    assert!(ServerProcess::run(command).stop().success());
    assert!(collector.received().is_empty());
    let text = std::fs::read_to_string(&log).expect("read");
    for (signal, protocol) in [("METRICS", "grpc"), ("TRACES", "http/json")] {
        let warning = format!("{signal}_PROTOCOL: expected http/protobuf, got '{protocol}'");
        assert_eq!(text.matches(&warning).count(), 1, "{text}");
    }
}

#[test]
fn one_process_exports_the_metrics_of_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let collector = Collector::start(Answer::Ok);
    let mut command = Command::new(BARGE);
    command.arg("serve");
    for name in ["a", "b"] {
        let source = dir.path().join(name);
        std::fs::create_dir(&source).expect("made");
        command.arg(format!("{name}={}", source.display()));
        let socket = dir.path().join(format!("{name}.sock"));
        command.args(["--virtiofs", &format!("{name}={}", socket.display())]);
    }
    command.args(["--otlp", &collector.url()]);
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let served = ServerProcess::run(command);
    // A process for each share, and that of the figures.
    assert_eq!(served.serving_ids().len(), 3);
    wait_until("a server that is ready", || {
        let metrics = collector.metrics();
        metrics.is_some_and(|it| it.value("barge_ready", &[]) == 1.0)
    });
    let socket = dir.path().join("b.sock");
    let list = Command::new(BARGE)
        .args(["ls", &format!("virtiofs:{}", socket.display())])
        .output();
    stdout_of(&list.expect("runs"));
    wait_until("its requests", || {
        let metrics = collector.metrics().expect("metrics");
        metrics.value("barge_operation_seconds", &[("op", "FUSE_INIT")]) == 1.0
    });
    let all = collector.received().into_iter();
    let instances = all.map(|it| {
        let request = ExportMetricsServiceRequest::decode(&*it.body);
        Metrics::of(request.expect("metrics")).resource["service.instance.id"].clone()
    });
    assert_eq!(instances.collect::<BTreeSet<_>>().len(), 1);
    assert!(served.stop().success());
}

#[test]
fn a_mount_exports_its_metrics_and_spans() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (source, at) = (dir.path().join("source"), dir.path().join("at"));
    std::fs::create_dir(&source).expect("made");
    std::fs::create_dir(&at).expect("made");
    std::fs::write(source.join("file"), "contents").expect("written");
    let collector = Collector::start(Answer::Ok);
    // A request of a mount of this host is slow after 1 ms, and one to a slow server in any case.
    let origin = ServerProcess::start(&[source.to_str().expect("text")]);
    let url = format!("9p://127.0.0.1:{}/", slow_path(origin.port()));
    let option = format!("slow_ms=5,otlp={}", collector.url());
    let mounted = Mounted::new(&["-o", &option, &url], &at);
    assert_eq!(std::fs::read(at.join("file")).expect("read"), b"contents");
    drop(mounted);
    let metrics = collector.metrics().expect("metrics");
    let opened = [("protocol", "fuse"), ("op", "FUSE_LOOKUP")];
    assert!(metrics.value("barge_operation_seconds", &opened) >= 1.0);
    let spans = collector.spans();
    let lookup = spans.iter().find(|it| it.name == "FUSE_LOOKUP");
    let attributes = texts(&lookup.expect("a lookup").attributes);
    assert_eq!(attributes["file.name"], "file");
}

#[test]
fn a_bad_url_is_one_line_and_status_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("barge.toml");
    let text = "otlp = \"localhost:4318\"\n[[share]]\nsource = \"mem:\"\n";
    std::fs::write(&file, text).expect("written");
    let check = |args: &[&str], word: &str| {
        let mut command = Command::new(BARGE);
        command.args(args).stdin(Stdio::null());
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = stderr_of(&output);
        assert!(text.contains(word), "{text}");
        // That of a command line refers to the help after an empty line.
        let error: Vec<_> = text.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(error.len(), 1, "{text}");
    };
    let at = |path: &Path| path.to_str().expect("text").to_owned();
    let expected = "expected http://HOST[:PORT]";
    check(&["serve", "mem:", "--otlp", "grpc://a"], expected);
    check(&["mount", "mem:", "/x", "-o", "otlp=a:1"], expected);
    check(&["serve", "--config", &at(&file)], expected);
}
