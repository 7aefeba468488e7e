//! The configuration of the export: `--otlp`, and the environment variables of OpenTelemetry's
//! specification.
//!
//! A variable that is empty counts as absent. An invalid value is an error of the command line, as
//! one of an option is, and not ignored.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use engine::TraceOptions;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::Failure;

/// The value of `--otlp`: the URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    text: String,
    https: bool,
    host: String,
    port: u16,
    /// Begins with a slash.
    path: String,
}

/// The configuration of the export.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `None` if there is no export of metrics.
    pub(crate) metrics: Option<Endpoint>,
    /// `None` if there is no export of traces.
    pub(crate) traces: Option<Endpoint>,
    /// Time between exports of metrics.
    pub(super) interval: Duration,
    /// Maximum time of a span in the queue.
    pub(super) delay: Duration,
    /// Maximum number of spans in a request.
    pub(super) batch: usize,
    queue: usize,
    /// The share of all requests that become spans.
    ratio: f64,
    /// Attributes of the resource that the environment sets.
    pub(super) attributes: Vec<(String, String)>,
}

/// The address for a signal, and how to send to it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(super) url: Url,
    /// Header lines, each with its end.
    pub(super) headers: String,
    pub(super) timeout: Duration,
    /// `None` without TLS.
    pub(super) tls: Option<Tls>,
}

/// TLS of an endpoint.
#[derive(Clone)]
pub(super) struct Tls {
    /// `None` until [`Config::load_certificates`].
    pub(super) client: Option<Arc<ClientConfig>>,
    pub(super) name: ServerName<'static>,
    /// The variable that names the file of authorities, and the file; `None` for the system's.
    authorities: Option<(String, String)>,
}

/// Without the headers, which may be secret.
impl std::fmt::Debug for Endpoint {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_tuple("Endpoint").field(&self.url).finish()
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let expected =
            || format!("expected http://HOST[:PORT] or https://HOST[:PORT], got '{text}'");
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
        let (scheme, rest) = text.split_once("://").ok_or_else(expected)?;
        let https = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(expected()),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let default = if https { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(expected)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| expected())?;
                match rest {
                    "" => (host, None),
                    rest => (host, Some(rest.strip_prefix(':').ok_or_else(expected)?)),
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = port.map_or(Ok(default), |port| port.parse::<u16>());
        let port = port.ok().filter(|&port| port != 0).ok_or_else(expected)?;
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) || !path.bytes().all(is_plain) {
            return Err(expected());
        }
        Ok(Url {
            text: text.to_owned(),
            https,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.text)
    }
}

impl Url {
    /// Returns the URL of a signal below this one.
    fn of_signal(&self, signal: &str) -> Url {
        let slash = if self.path.ends_with('/') { "" } else { "/" };
        let mut text = self.text.trim_end_matches('/').to_owned();
        text.push_str(&format!("/v1/{signal}"));
        Url {
            text,
            path: format!("{}{slash}v1/{signal}", self.path),
            ..self.clone()
        }
    }

    /// Returns the host and the port to connect to.
    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of the header Host.
    pub(super) fn authority(&self) -> String {
        let Url { host, port, .. } = self;
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }
}

/// Reads a variable of the environment.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Config {
    /// Returns the configuration of this process's environment and of `--otlp`, or `None` if they
    /// name no collector. Reads no file, because a confined process needs the configuration, too.
    pub(crate) fn new(option: Option<&Url>) -> Result<Option<Config>, Failure> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Config::of(option, &read).map_err(Failure::usage)
    }

    fn of(option: Option<&Url>, read: Read<'_>) -> Result<Option<Config>, String> {
        if read("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let metrics = endpoint(option, "metrics", read)?;
        let traces = endpoint(option, "traces", read)?;
        if metrics.is_none() && traces.is_none() {
            return Ok(None);
        }
        let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", 1..=1 << 16, read)?.unwrap_or(2048);
        let batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1..=1 << 16, read)?.unwrap_or(512);
        let interval = milliseconds("OTEL_METRIC_EXPORT_INTERVAL", read)?;
        let delay = milliseconds("OTEL_BSP_SCHEDULE_DELAY", read)?;
        let mut attributes = match read("OTEL_RESOURCE_ATTRIBUTES") {
            Some(text) => pairs("OTEL_RESOURCE_ATTRIBUTES", &text)?,
            None => Vec::new(),
        };
        if let Some(name) = read("OTEL_SERVICE_NAME") {
            attributes.retain(|(key, _)| key != "service.name");
            attributes.push(("service.name".into(), name));
        }
        Ok(Some(Config {
            metrics,
            traces,
            interval: interval.unwrap_or(Duration::from_secs(60)),
            delay: delay.unwrap_or(Duration::from_secs(5)),
            batch: batch.min(queue) as usize,
            queue: queue as usize,
            ratio: ratio(read)?,
            attributes,
        }))
    }

    /// Reads the certificates of authorities for endpoints with TLS, which export nothing before.
    pub(crate) fn load_certificates(&mut self) -> Result<(), Failure> {
        for endpoint in self.metrics.iter_mut().chain(&mut self.traces) {
            if let Some(tls) = &mut endpoint.tls {
                let client = client_config(&endpoint.url, tls.authorities.as_ref());
                tls.client = Some(client.map_err(Failure::usage)?);
            }
        }
        Ok(())
    }

    /// Returns the options of the engine whose requests become spans. `slow` is set if it knows
    /// slow requests.
    pub(crate) fn trace_options(&self, slow: bool) -> Option<TraceOptions> {
        let records = self.traces.is_some() && (slow || self.ratio > 0.0);
        records.then_some(TraceOptions {
            ratio: self.ratio,
            capacity: self.queue,
        })
    }

    /// Returns the number of spans in the queue at which they are sent before their time: that of a
    /// request, unless a client, which takes at most half of the queue, cannot reach it.
    pub(super) fn wake_at(&self) -> usize {
        self.batch.min(self.queue / 4).max(1)
    }

    /// Returns the hosts and ports to connect to.
    pub(crate) fn addresses(&self) -> Vec<(String, u16)> {
        let endpoints = self.metrics.iter().chain(&self.traces);
        let addresses = endpoints.map(|one| one.url.address());
        addresses
            .map(|(host, port)| (host.to_owned(), port))
            .collect()
    }
}

/// Returns the endpoint of a signal, if it is exported.
fn endpoint(
    option: Option<&Url>,
    signal: &str,
    read: Read<'_>,
) -> Result<Option<Endpoint>, String> {
    let upper = signal.to_ascii_uppercase();
    // The option replaces all variables with addresses.
    let url = match option {
        Some(base) => base.of_signal(signal),
        None => {
            let url = |name: &str| -> Result<Option<Url>, String> {
                let parsed = read(name).map(|text| text.parse::<Url>());
                parsed.transpose().map_err(|why| format!("{name}: {why}"))
            };
            let own = url(&format!("OTEL_EXPORTER_OTLP_{upper}_ENDPOINT"))?;
            let base = url("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            match own.or_else(|| base.map(|base| base.of_signal(signal))) {
                Some(url) => url,
                None => return Ok(None),
            }
        }
    };
    let exporter = format!("OTEL_{upper}_EXPORTER");
    match read(&exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => return Err(format!("{exporter}: expected otlp or none, got '{other}'")),
    }
    // The variable of the signal, or else that of all.
    let of_signal = |end: &str| {
        let names = [
            format!("OTEL_EXPORTER_OTLP_{upper}_{end}"),
            format!("OTEL_EXPORTER_OTLP_{end}"),
        ];
        let mut values = names.into_iter().map(|name| (read(&name), name));
        values.find_map(|(value, name)| Some((name, value?)))
    };
    if let Some((name, protocol)) = of_signal("PROTOCOL")
        && protocol != "http/protobuf"
    {
        return Err(format!("{name}: expected http/protobuf, got '{protocol}'"));
    }
    let mut headers = String::new();
    if let Some((name, text)) = of_signal("HEADERS") {
        for (key, value) in pairs(&name, &text)? {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let is_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            if !key.bytes().all(is_name) || !value.bytes().all(is_value) {
                return Err(format!(
                    "{name}: expected NAME=VALUE,..., got an invalid header"
                ));
            }
            headers.push_str(&format!("{key}: {value}\r\n"));
        }
    }
    let timeout = match of_signal("TIMEOUT") {
        Some((name, _)) => milliseconds(&name, read)?,
        None => None,
    };
    let tls = match url.https {
        true => Some(tls(&url, of_signal("CERTIFICATE"))?),
        false => None,
    };
    Ok(Some(Endpoint {
        url,
        headers,
        timeout: timeout.unwrap_or(Duration::from_secs(10)),
        tls,
    }))
}

/// Returns TLS for `url`, with the authorities of a file or the system's.
fn tls(url: &Url, authorities: Option<(String, String)>) -> Result<Tls, String> {
    let name = ServerName::try_from(url.host.clone());
    Ok(Tls {
        client: None,
        name: name.map_err(|why| format!("{url}: {why}"))?,
        authorities,
    })
}

/// Returns the configuration of TLS. `file` is the variable that names the authorities, and their
/// file; without it, they are the system's.
fn client_config(url: &Url, file: Option<&(String, String)>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some((name, path)) => {
            let failed = |why: &dyn std::fmt::Display| format!("{name}: {path}: {why}");
            let all = CertificateDer::pem_file_iter(path).map_err(|why| failed(&why))?;
            for certificate in all {
                let certificate = certificate.map_err(|why| failed(&why))?;
                roots.add(certificate).map_err(|why| failed(&why))?;
            }
            if roots.is_empty() {
                return Err(failed(&"expected a certificate, got none"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| format!("{url}: {why}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns the share of requests to trace besides slow ones. The samplers that follow a parent do
/// the same as the others, as requests have none.
fn ratio(read: Read<'_>) -> Result<f64, String> {
    let sampler = read("OTEL_TRACES_SAMPLER");
    let name = sampler.as_deref().unwrap_or("always_off");
    match name.strip_prefix("parentbased_").unwrap_or(name) {
        "always_off" => Ok(0.0),
        "always_on" => Ok(1.0),
        "traceidratio" => {
            let Some(text) = read("OTEL_TRACES_SAMPLER_ARG") else {
                return Ok(1.0);
            };
            let ratio = text.parse().ok();
            let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| {
                format!("OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got '{text}'")
            })
        }
        _ => Err(format!(
            "OTEL_TRACES_SAMPLER: expected always_on, always_off or traceidratio, got '{name}'"
        )),
    }
}

fn number(
    name: &str,
    range: std::ops::RangeInclusive<u32>,
    read: Read<'_>,
) -> Result<Option<u32>, String> {
    let Some(text) = read(name) else {
        return Ok(None);
    };
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| {
        let (from, to) = range.into_inner();
        format!("{name}: expected a number from {from} to {to}, got '{text}'")
    })
}

fn milliseconds(name: &str, read: Read<'_>) -> Result<Option<Duration>, String> {
    // A day, so that sums of times never overflow.
    let number = number(name, 1..=86_400_000, read)?;
    Ok(number.map(|ms| Duration::from_millis(ms.into())))
}

/// Parses `KEY=VALUE,...`, whose values are percent-encoded (W3C Baggage).
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, String> {
    let expected =
        || format!("{name}: expected NAME=VALUE,..., with % before two digits of a byte");
    let pairs = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    let pairs = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').ok_or_else(expected)?;
        let key = key.trim();
        let value = percent_decoded(value.trim()).ok_or_else(expected)?;
        match key.is_empty() {
            true => Err(expected()),
            false => Ok((key.to_owned(), value)),
        }
    });
    pairs.collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high << 4 | low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(option: Option<&str>, set: &[(&str, &str)]) -> Result<Option<Config>, String> {
        let url = option.map(|text| text.parse::<Url>().expect("a URL"));
        let read = |name: &str| {
            let value = set.iter().find(|(other, _)| *other == name);
            value.map(|(_, value)| (*value).to_owned())
        };
        Config::of(url.as_ref(), &read)
    }

    #[test]
    fn a_url_has_a_host_and_defaults_of_its_scheme() {
        let parsed = |text: &str| text.parse::<Url>();
        let url = parsed("http://collector:4318").expect("a URL");
        assert_eq!(url.address(), ("collector", 4318));
        assert_eq!(url.path(), "/");
        let signal = url.of_signal("metrics");
        assert_eq!(signal.path(), "/v1/metrics");
        assert_eq!(signal.to_string(), "http://collector:4318/v1/metrics");
        let url = parsed("https://[::1]/otlp/").expect("a URL");
        assert_eq!(url.address(), ("::1", 443));
        assert_eq!(url.authority(), "[::1]:443");
        assert_eq!(url.of_signal("traces").path(), "/otlp/v1/traces");
        for bad in [
            "",
            "collector:4318",
            "grpc://collector:4317",
            "http://",
            "http://a:0",
            "http://a:65536",
            "http://a:b@c",
            "http://[x]:1",
            "http://a b",
            "http://a/\r\nX: y",
            "http://a/#b",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_an_address_there_is_no_export() {
        let none = |result: Result<Option<Config>, String>| result.expect("valid").is_none();
        assert!(none(config(None, &[])));
        assert!(none(config(None, &[("OTEL_SERVICE_NAME", "x")])));
        let off = [("OTEL_SDK_DISABLED", "True")];
        assert!(none(config(Some("http://a"), &off)));
    }

    #[test]
    fn variables_have_the_precedence_of_the_specification() {
        let set = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1/base"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:2/x"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, other = c"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "k=v"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=b"),
            ("OTEL_SERVICE_NAME", "files"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let all = config(None, &set).expect("valid").expect("an export");
        let (metrics, traces) = (all.metrics.expect("metrics"), all.traces.expect("traces"));
        assert_eq!(metrics.url.to_string(), "http://all:1/base/v1/metrics");
        assert_eq!(traces.url.to_string(), "http://traces:2/x");
        assert_eq!(metrics.headers, "k: v\r\n");
        assert_eq!(traces.headers, "api-key: a b\r\nother: c\r\n");
        assert_eq!(traces.timeout, Duration::from_millis(2500));
        assert_eq!(all.interval, Duration::from_secs(1));
        let text = |(key, value): &(String, String)| format!("{key}={value}");
        let attributes: Vec<_> = all.attributes.iter().map(text).collect();
        assert_eq!(attributes, ["team=b", "service.name=files"]);
        assert_eq!(all.ratio, 0.25);
        // The option replaces both addresses.
        let all = config(Some("http://b:3"), &set).expect("valid");
        let all = all.expect("an export").addresses();
        assert_eq!(all, vec![("b".to_owned(), 3); 2]);
    }

    #[test]
    fn an_invalid_value_is_one_line_about_its_variable() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=a%0d%0ab"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
            ("OTEL_METRICS_EXPORTER", "console"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%zz"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
        ] {
            let option = (name != "OTEL_EXPORTER_OTLP_ENDPOINT").then_some("http://a");
            let error = config(option, &[(name, value)]).expect_err(name);
            assert!(error.starts_with(name) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn spans_are_of_slow_requests_unless_a_sampler_is_set() {
        let all = config(Some("http://a"), &[]).expect("valid").expect("one");
        assert_eq!(all.trace_options(false), None);
        assert_eq!(all.trace_options(true).map(|it| it.ratio), Some(0.0));
        let set = [("OTEL_TRACES_SAMPLER", "always_on")];
        let all = config(Some("http://a"), &set).expect("valid").expect("one");
        assert_eq!(all.trace_options(false).map(|it| it.ratio), Some(1.0));
    }
}
