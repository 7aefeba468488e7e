//! The configuration of the export: `--otlp`, and the environment variables of OpenTelemetry's
//! specification.
//!
//! A variable that is empty counts as absent. An invalid one is ignored with a warning, as the
//! specification demands: the environment may be that of all programs of a host or a pod. One that
//! demands another exporter or protocol disables the export.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::{Arc, Once};
use std::time::Duration;

use engine::TraceOptions;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::{Failure, child, signals};

/// The value of `--otlp`: the URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    text: String,
    /// The name for TLS; `None` without TLS.
    tls_name: Option<ServerName<'static>>,
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
        let tls_name = https.then(|| ServerName::try_from(host.to_owned()));
        Ok(Url {
            text: text.to_owned(),
            tls_name: tls_name.transpose().map_err(|_| expected())?,
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

/// The environment, and the warnings about it.
struct Environment<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
    /// Each is one line, and begins with the name of the variable.
    warnings: Vec<String>,
}

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.read)(name)
    }

    /// Returns the name of the variable of `signal`, or if that is not set, of the one for all
    /// signals.
    fn name_for(&self, signal: &str, end: &str) -> String {
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_{end}");
        match self.get(&own) {
            Some(_) => own,
            None => format!("OTEL_EXPORTER_OTLP_{end}"),
        }
    }

    /// Returns the value of a variable, or `None` if it is not set or invalid.
    fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let parsed = parse(&self.get(name)?);
        let warn = |why| self.warn(format!("{name}: {why}: ignored"));
        parsed.map_err(warn).ok()
    }

    fn warn(&mut self, warning: String) {
        // Both signals have the variables for all.
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

impl Config {
    /// Returns the configuration of this process's environment and of `--otlp`, or `None` if there
    /// is no export. Reads no file, because a confined process needs the configuration, too. Logs
    /// the warnings about the environment once.
    pub(crate) fn new(option: Option<&Url>) -> Option<Config> {
        static WARNED: Once = Once::new();
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut environment = Environment {
            read: &read,
            warnings: Vec::new(),
        };
        let config = Config::of(option, &mut environment);
        // The processes that this one starts have the same environment.
        if !child::is_child() && !signals::is_background() {
            WARNED.call_once(|| {
                for warning in environment.warnings {
                    tracing::warn!("OpenTelemetry: {warning}");
                }
            });
        }
        config
    }

    fn of(option: Option<&Url>, environment: &mut Environment<'_>) -> Option<Config> {
        let disabled = environment.get("OTEL_SDK_DISABLED");
        if disabled.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return None;
        }
        let metrics = endpoint(option, "metrics", environment);
        let traces = endpoint(option, "traces", environment);
        if metrics.is_none() && traces.is_none() {
            return None;
        }
        let mut spans = |name, default| {
            let number = environment.parsed(name, |text| number(text, 1..=1 << 16));
            number.unwrap_or(default)
        };
        let queue = spans("OTEL_BSP_MAX_QUEUE_SIZE", 2048);
        let batch = spans("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512);
        let interval = environment.parsed("OTEL_METRIC_EXPORT_INTERVAL", milliseconds);
        let delay = environment.parsed("OTEL_BSP_SCHEDULE_DELAY", milliseconds);
        let attributes = environment.parsed("OTEL_RESOURCE_ATTRIBUTES", pairs);
        let mut attributes = attributes.unwrap_or_default();
        if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
            attributes.retain(|(key, _)| key != "service.name");
            attributes.push(("service.name".into(), name));
        }
        Some(Config {
            metrics,
            traces,
            interval: interval.unwrap_or(Duration::from_secs(60)),
            delay: delay.unwrap_or(Duration::from_secs(5)),
            batch: batch.min(queue) as usize,
            queue: queue as usize,
            ratio: ratio(environment),
            attributes,
        })
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
    environment: &mut Environment<'_>,
) -> Option<Endpoint> {
    let upper = signal.to_ascii_uppercase();
    // The option replaces all variables with addresses.
    let url = match option {
        Some(base) => base.of_signal(signal),
        None => {
            let mut url = |name: &str| environment.parsed(name, str::parse::<Url>);
            let own = url(&format!("OTEL_EXPORTER_OTLP_{upper}_ENDPOINT"));
            own.or_else(|| Some(url("OTEL_EXPORTER_OTLP_ENDPOINT")?.of_signal(signal)))?
        }
    };
    let exporter = format!("OTEL_{upper}_EXPORTER");
    match environment.get(&exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return None,
        Some(other) => {
            environment.warn(format!(
                "{exporter}: expected otlp or none, got '{other}': {signal} are not exported"
            ));
            return None;
        }
    }
    let name = environment.name_for(&upper, "PROTOCOL");
    if let Some(protocol) = environment.get(&name)
        && protocol != "http/protobuf"
    {
        let expected = format!("{name}: expected http/protobuf, got '{protocol}'");
        if option.is_none() {
            // The collector at the address of the environment expects that protocol.
            environment.warn(format!("{expected}: {signal} are not exported"));
            return None;
        }
        environment.warn(format!("{expected}: ignored"));
    }
    let name = environment.name_for(&upper, "HEADERS");
    let headers = environment.parsed(&name, header_lines);
    let name = environment.name_for(&upper, "TIMEOUT");
    let timeout = environment.parsed(&name, milliseconds);
    let name = environment.name_for(&upper, "CERTIFICATE");
    let authorities = environment.get(&name).map(|path| (name, path));
    let tls = url.tls_name.clone().map(|name| Tls {
        client: None,
        name,
        authorities,
    });
    Some(Endpoint {
        url,
        headers: headers.unwrap_or_default(),
        timeout: timeout.unwrap_or(Duration::from_secs(10)),
        tls,
    })
}

/// Returns the header lines of `NAME=VALUE,...`, each with its end.
fn header_lines(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    let mut lines = String::new();
    for (key, value) in pairs(text)? {
        if !key.bytes().all(is_name) || !value.bytes().all(is_value) {
            return Err("expected NAME=VALUE,..., got an invalid header".into());
        }
        lines.push_str(&format!("{key}: {value}\r\n"));
    }
    Ok(lines)
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
fn ratio(environment: &mut Environment<'_>) -> f64 {
    let sampler = environment.parsed("OTEL_TRACES_SAMPLER", |text| {
        match text.strip_prefix("parentbased_").unwrap_or(text) {
            "always_off" => Ok(Some(0.0)),
            "always_on" => Ok(Some(1.0)),
            "traceidratio" => Ok(None),
            _ => Err(format!(
                "expected always_on, always_off or traceidratio, got '{text}'"
            )),
        }
    });
    let argument = |text: &str| {
        let ratio = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| format!("expected a number from 0 to 1, got '{text}'"))
    };
    sampler.unwrap_or(Some(0.0)).unwrap_or_else(|| {
        let ratio = environment.parsed("OTEL_TRACES_SAMPLER_ARG", argument);
        ratio.unwrap_or(1.0)
    })
}

fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (from, to) = range.into_inner();
        format!("expected a number from {from} to {to}, got '{text}'")
    })
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    // A day, so that sums of times never overflow.
    let number = number(text, 1..=86_400_000)?;
    Ok(Duration::from_millis(number.into()))
}

/// Parses `KEY=VALUE,...`, whose values are percent-encoded (W3C Baggage). The error does not have
/// the values, which may be secret.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let expected = || "expected NAME=VALUE,..., with % before two digits of a byte".to_owned();
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

    /// Returns the configuration, and the warnings.
    fn read(option: Option<&str>, set: &[(&str, &str)]) -> (Option<Config>, Vec<String>) {
        let url = option.map(|text| text.parse::<Url>().expect("a URL"));
        let read = |name: &str| {
            let value = set.iter().find(|(other, _)| *other == name);
            value.map(|(_, value)| (*value).to_owned())
        };
        let mut environment = Environment {
            read: &read,
            warnings: Vec::new(),
        };
        let config = Config::of(url.as_ref(), &mut environment);
        (config, environment.warnings)
    }

    /// Returns the configuration of variables that are all valid.
    fn config(option: Option<&str>, set: &[(&str, &str)]) -> Option<Config> {
        let (config, warnings) = read(option, set);
        assert_eq!(warnings, [""; 0]);
        config
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
            "https://a..b",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_an_address_there_is_no_export() {
        assert!(config(None, &[]).is_none());
        assert!(config(None, &[("OTEL_SERVICE_NAME", "x")]).is_none());
        let off = [("OTEL_SDK_DISABLED", "True")];
        assert!(config(Some("http://a"), &off).is_none());
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
        let all = config(None, &set).expect("an export");
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
        let all = config(Some("http://b:3"), &set).expect("an export");
        assert_eq!(all.addresses(), vec![("b".to_owned(), 3); 2]);
    }

    #[test]
    fn an_invalid_value_is_ignored_with_a_warning_about_its_variable() {
        let valid = config(Some("http://a"), &[]).expect("an export");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=a%0d%0ab"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%zz"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
        ] {
            let (all, warnings) = read(Some("http://a"), &[(name, value)]);
            let [warning] = &warnings[..] else {
                panic!("{name}: {warnings:?}");
            };
            assert!(warning.starts_with(&format!("{name}: ")), "{warning}");
            assert!(!warning.contains('\n') && !warning.contains("key"));
            let all = all.expect(name);
            assert_eq!(all.interval, valid.interval);
            assert_eq!((all.ratio, &all.attributes), (0.0, &valid.attributes));
            let traces = all.traces.expect(name);
            assert_eq!((&*traces.headers, traces.timeout.as_secs()), ("", 10));
        }
        let set = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
        ];
        let (all, warnings) = read(None, &set);
        assert_eq!(warnings.len(), 1);
        let traces = all.and_then(|it| it.traces).expect("traces");
        assert_eq!(traces.url.to_string(), "http://all:1/v1/traces");
    }

    #[test]
    fn another_exporter_or_protocol_disables_the_export_of_its_signal() {
        let at = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a");
        for (option, variable) in [
            (Some("http://a"), ("OTEL_METRICS_EXPORTER", "prometheus")),
            (None, ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")),
        ] {
            let (all, warnings) = read(option, &[at, variable]);
            let all = all.expect("an export");
            assert!(all.metrics.is_none() && all.traces.is_some());
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
        let (all, warnings) = read(None, &[at, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert!(all.is_none());
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }

    #[test]
    fn spans_are_of_slow_requests_unless_a_sampler_is_set() {
        let all = config(Some("http://a"), &[]).expect("one");
        assert_eq!(all.trace_options(false), None);
        assert_eq!(all.trace_options(true).map(|it| it.ratio), Some(0.0));
        let set = [("OTEL_TRACES_SAMPLER", "always_on")];
        let all = config(Some("http://a"), &set).expect("one");
        assert_eq!(all.trace_options(false).map(|it| it.ratio), Some(1.0));
    }
}
