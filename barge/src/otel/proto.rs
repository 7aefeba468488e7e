//! Messages of the OpenTelemetry protocol (OTLP 1.9, opentelemetry-proto), those that barge sends
//! and receives.
//!
//! Field numbers are the specification's. Messages and fields that barge neither sends nor reads
//! are absent.

use prost::{Message, Oneof};

/// ExportMetricsServiceRequest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    /// A unit of UCUM; empty without one.
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
}

/// AGGREGATION_TEMPORALITY_CUMULATIVE: values are since the start, not since the last export.
pub(super) const CUMULATIVE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

/// NumberDataPoint.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "4, 6")]
    pub(super) value: Option<Number>,
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(super) enum Number {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Integer(i64),
}

/// HistogramDataPoint.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    /// One more than there are bounds.
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) bucket_counts: Vec<u64>,
    /// Upper bounds, inclusive, without the infinite one.
    #[prost(double, repeated, tag = "7")]
    pub(super) explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
}

/// ExportTraceServiceRequest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TraceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

/// SPAN_KIND_SERVER: the span of a request at the side that serves it.
pub(super) const SERVER: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    /// 16 bytes, not all zero.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    /// 8 bytes, not all zero.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    /// W3C trace flags: bit 0 is set if the trace is sampled.
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

/// STATUS_CODE_ERROR.
pub(super) const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// InstrumentationScope.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 2, 3, 4")]
    pub(super) value: Option<Any>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// The responses to both requests, whose fields have the same numbers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    /// The number of data points or spans that the collector rejected.
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl KeyValue {
    pub(super) fn new(key: impl Into<String>, value: impl Into<Any>) -> KeyValue {
        let value = Some(value.into());
        KeyValue {
            key: key.into(),
            value: Some(AnyValue { value }),
        }
    }
}

impl From<&str> for Any {
    fn from(text: &str) -> Any {
        Any::Text(text.to_owned())
    }
}

impl From<u64> for Any {
    fn from(number: u64) -> Any {
        Any::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Any {
    fn from(number: f64) -> Any {
        Any::Double(number)
    }
}

impl From<bool> for Any {
    fn from(value: bool) -> Any {
        Any::Bool(value)
    }
}

/// Returns the scope of all metrics and spans: this program.
pub(super) fn scope() -> Option<Scope> {
    Some(Scope {
        name: "barge".into(),
        version: crate::version::VERSION.into(),
    })
}
