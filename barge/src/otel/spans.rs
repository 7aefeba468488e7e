//! Spans of requests, with attributes of OpenTelemetry's semantic conventions where it has some.

use std::time::{SystemTime, UNIX_EPOCH};

use engine::RequestTrace;

use super::proto::{
    ERROR, KeyValue, Resource, ResourceSpans, SERVER, ScopeSpans, Span, Status, TraceRequest, scope,
};

/// Errors that are a fault of the server or its host, those of the alert BargeErrors: their spans
/// have the status Error. Others, such as ENOENT, are usual replies.
const FAULTS: [&str; 9] = [
    "EIO",
    "ETIMEDOUT",
    "ENFILE",
    "EMFILE",
    "ENOMEM",
    "EDQUOT",
    "ENOSPC",
    "NFSERR_SERVERFAULT",
    "NFSERR_RESOURCE",
];

/// Returns the request to export `traces`.
pub(super) fn request(traces: Vec<RequestTrace>, resource: Resource) -> TraceRequest {
    let spans = ScopeSpans {
        scope: scope(),
        spans: traces.into_iter().map(span).collect(),
    };
    TraceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![spans],
        }],
    }
}

/// Returns nanoseconds since 1970.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the span of a request. It is the only one of its trace: none of the protocols carries
/// the context of a client's trace.
fn span(trace: RequestTrace) -> Span {
    let end = nanos(trace.end);
    let duration = u64::try_from(trace.duration.as_nanos()).unwrap_or(u64::MAX);
    let system = match trace.protocol {
        "nfs" => "onc_rpc",
        other => other,
    };
    let milliseconds = |time: std::time::Duration| time.as_micros() as f64 / 1e3;
    let mut attributes = vec![
        KeyValue::new("rpc.system", system),
        KeyValue::new("rpc.method", &*trace.request),
        KeyValue::new("barge.protocol", trace.protocol),
        KeyValue::new("barge.request.size", trace.received as u64),
        KeyValue::new("barge.response.size", trace.sent as u64),
        KeyValue::new("barge.slow", trace.slow),
    ];
    attributes.extend(client(&trace.client));
    let target = trace.target;
    let mut add = |key: &str, value: Option<super::proto::Any>| {
        attributes.extend(value.map(|value| KeyValue::new(key, value)));
    };
    add("barge.share", target.share.as_deref().map(Into::into));
    let inode = target.inode.map(|number| number.to_string());
    add("file.inode", inode.as_deref().map(Into::into));
    if let Some(name) = &target.name {
        let key = match name.starts_with('/') {
            true => "file.path",
            false => "file.name",
        };
        add(key, Some((&**name).into()));
    }
    add("barge.offset", target.offset.map(Into::into));
    for (key, time) in [
        ("barge.queued_ms", trace.queued),
        ("barge.parked_ms", trace.parked),
    ] {
        add(key, (!time.is_zero()).then(|| milliseconds(time).into()));
    }
    add("error.type", trace.error.as_deref().map(Into::into));
    let fault = trace.error.filter(|error| FAULTS.contains(&&**error));
    Span {
        trace_id: fastrand::u128(1..).to_be_bytes().into(),
        span_id: fastrand::u64(1..).to_be_bytes().into(),
        name: trace.request,
        kind: SERVER,
        start_time_unix_nano: end.saturating_sub(duration),
        end_time_unix_nano: end,
        attributes,
        status: fault.map(|message| Status {
            message,
            code: ERROR,
        }),
        flags: 1,
    }
}

/// Returns the attributes of a client: the address and port of a host, or the name of a socket or
/// queue.
fn client(peer: &str) -> Vec<KeyValue> {
    let tcp = peer.strip_prefix("tcp:").and_then(|it| it.rsplit_once(':'));
    match tcp.and_then(|(host, port)| Some((host, port.parse::<u64>().ok()?))) {
        Some((host, port)) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            vec![
                KeyValue::new("client.address", host),
                KeyValue::new("client.port", port),
            ]
        }
        None => vec![KeyValue::new("client.address", peer)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_errors_of_the_alert() {
        let rules = include_str!("../../../packaging/monitoring/alerts.yaml");
        let errors = format!("{{errno=~\"{}\"}}", FAULTS.join("|"));
        assert!(rules.contains(&errors), "no {errors} in alerts.yaml");
    }
}
