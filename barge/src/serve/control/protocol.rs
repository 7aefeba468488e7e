//! The control protocol: a JSON object per line, a request or its reply (docs/control.md).

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::live::toml_of;
use crate::serve::live::{ErrorCode, LiveError};

/// The version of the protocol.
pub(crate) const VERSION: u64 = 1;

/// Maximum length of a request in bytes, with its newline: one share has at most a few hundred
/// clients.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// The default and the maximum of the time of a drain.
const DRAIN_TIMEOUTS: (u64, u64) = (30, 3600);

/// A request.
#[derive(Debug, PartialEq)]
pub(crate) struct Request {
    /// A string, a number or null, which the reply repeats.
    pub(crate) id: Value,
    pub(crate) method: Method,
}

/// A method with its parameters.
#[derive(Debug, PartialEq)]
pub(crate) enum Method {
    ServerList,
    ServerReload,
    ServerDebug,
    ServerUpgrade,
    /// The text of a configuration file with shares and endpoints.
    Add(String),
    ShareRemove(String, Option<Duration>),
    ShareReopen(String),
    ShareRelease(String),
    EndpointRemove(String, Option<Duration>),
    ClientList,
    ClientDisconnect(u64),
    /// Of this share, or of all.
    CacheEvict(Option<String>),
    /// A share, or all.
    LimitGet(Option<String>),
    /// A share, its limit, and that of each of its clients; those that are `None` stay.
    LimitSet(String, Option<String>, Option<String>),
}

/// Parses a line. Returns the id of an invalid request as well, as far as it has one.
pub(crate) fn parse(line: &[u8]) -> Result<Request, (Value, LiveError)> {
    let invalid = |message: String| LiveError::new(ErrorCode::InvalidRequest, message);
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        (
            Value::Null,
            invalid(format!("expected a JSON object: {error}")),
        )
    })?;
    let Value::Object(mut object) = value else {
        return Err((Value::Null, invalid("expected a JSON object".into())));
    };
    let id = object.remove("id").unwrap_or(Value::Null);
    if !matches!(id, Value::String(_) | Value::Number(_) | Value::Null) {
        let message = "id: expected a string, a number or null";
        return Err((Value::Null, invalid(message.into())));
    }
    match method(object) {
        Ok(method) => Ok(Request { id, method }),
        Err(error) => Err((id, error)),
    }
}

fn method(mut object: Map<String, Value>) -> Result<Method, LiveError> {
    let error = |code, message: &str| LiveError::new(code, message);
    match object.remove("version") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        version => {
            let got = version.map_or("none".into(), |version| version.to_string());
            let message = format!("version: expected {VERSION}, got {got}");
            return Err(error(ErrorCode::UnsupportedVersion, &message));
        }
    }
    let Some(Value::String(name)) = object.remove("method") else {
        return Err(error(
            ErrorCode::InvalidRequest,
            "method: expected a string",
        ));
    };
    let mut params = match object.remove("params") {
        None => Params(Map::new()),
        Some(Value::Object(params)) => Params(params),
        Some(_) => {
            return Err(error(
                ErrorCode::InvalidRequest,
                "params: expected an object",
            ));
        }
    };
    if let Some(other) = object.keys().next() {
        let message = format!("{other}: expected version, id, method or params");
        return Err(error(ErrorCode::InvalidRequest, &message));
    }
    let method = match name.as_str() {
        "server.list" => Method::ServerList,
        "server.reload" => Method::ServerReload,
        "server.debug" => Method::ServerDebug,
        "server.upgrade" => Method::ServerUpgrade,
        "share.add" => Method::Add(format!("[[share]]\n{}", params.table("share")?)),
        "share.reopen" => Method::ShareReopen(params.string("name")?),
        "share.release" => Method::ShareRelease(params.string("name")?),
        "share.remove" => Method::ShareRemove(params.string("name")?, None),
        "share.drain" => Method::ShareRemove(params.string("name")?, Some(params.timeout()?)),
        "endpoint.add" => Method::Add(params.table("endpoint")?),
        "endpoint.remove" => Method::EndpointRemove(params.string("address")?, None),
        "endpoint.drain" => {
            Method::EndpointRemove(params.string("address")?, Some(params.timeout()?))
        }
        "client.list" => Method::ClientList,
        "cache.evict" => Method::CacheEvict(params.optional_string("name")?),
        "client.disconnect" => Method::ClientDisconnect(params.number("id")?),
        "limit.get" => Method::LimitGet(params.optional_string("name")?),
        "limit.set" => Method::LimitSet(
            params.string("name")?,
            params.optional_string("limit")?,
            params.optional_string("client_limit")?,
        ),
        _ => {
            let message = format!("method: expected one of docs/control.md, got '{name}'");
            return Err(error(ErrorCode::UnknownMethod, &message));
        }
    };
    params.end()?;
    Ok(method)
}

/// The parameters of a method that are not parsed yet.
struct Params(Map<String, Value>);

impl Params {
    fn take<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, LiveError> {
        let value = self.0.remove(name).and_then(parse);
        value.ok_or_else(|| invalid(format!("{name}: expected {expected}")))
    }

    fn string(&mut self, name: &str) -> Result<String, LiveError> {
        self.take(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Returns a string, or `None` if there is none.
    fn optional_string(&mut self, name: &str) -> Result<Option<String>, LiveError> {
        match self.0.contains_key(name) {
            true => self.string(name).map(Some),
            false => Ok(None),
        }
    }

    fn number(&mut self, name: &str) -> Result<u64, LiveError> {
        self.take(name, "a number", |value| value.as_u64())
    }

    /// Returns an object as lines of TOML.
    fn table(&mut self, name: &str) -> Result<String, LiveError> {
        let object = self.take(name, "an object", |value| match value {
            Value::Object(object) => Some(object),
            _ => None,
        })?;
        toml_of(&object).map_err(invalid)
    }

    fn timeout(&mut self) -> Result<Duration, LiveError> {
        let (default, max) = DRAIN_TIMEOUTS;
        if !self.0.contains_key("timeout") {
            return Ok(Duration::from_secs(default));
        }
        let expected = format!("seconds from 0 to {max}");
        let seconds = |value: Value| value.as_u64().filter(|seconds| *seconds <= max);
        self.take("timeout", &expected, seconds)
            .map(Duration::from_secs)
    }

    fn end(&self) -> Result<(), LiveError> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(other) => Err(invalid(format!("{other}: expected no such parameter"))),
        }
    }
}

fn invalid(message: String) -> LiveError {
    LiveError::new(ErrorCode::InvalidParams, message)
}

/// Formats the reply to the request `id`, with a newline.
pub(crate) fn reply(id: &Value, result: Result<Value, LiveError>) -> Vec<u8> {
    let reply = match result {
        Ok(result) => json!({ "id": id, "result": result }),
        Err(error) => json!({ "id": id, "error": error }),
    };
    let mut line = reply.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> (Value, ErrorCode, String) {
        let (id, error) = parse(line.as_bytes()).expect_err(line);
        (id, error.code, error.message)
    }

    #[test]
    fn a_line_is_a_request_or_an_error_with_its_id() {
        let line =
            r#"{"version":1,"id":"a","method":"share.drain","params":{"name":"x","timeout":2}}"#;
        let request = parse(line.as_bytes()).expect("a request");
        let drain = Method::ShareRemove("x".into(), Some(Duration::from_secs(2)));
        assert_eq!((request.id, request.method), (json!("a"), drain));
        let line = r#"{"version":1,"method":"share.add","params":{"share":{"name":"x"}}}"#;
        let request = parse(line.as_bytes()).expect("a request");
        assert_eq!(
            request.method,
            Method::Add("[[share]]\n\"name\" = \"x\"\n".into())
        );
        let line = r#"{"version":1,"method":"limit.set","params":{"name":"","limit":"ops=5"}}"#;
        let request = parse(line.as_bytes()).expect("a request");
        let limits = Method::LimitSet(String::new(), Some("ops=5".into()), None);
        assert_eq!(request.method, limits);
        for (line, id, code, expected) in [
            (
                "",
                Value::Null,
                ErrorCode::InvalidRequest,
                "expected a JSON object",
            ),
            (
                "[1]",
                Value::Null,
                ErrorCode::InvalidRequest,
                "expected a JSON object",
            ),
            (
                r#"{"id":[1]}"#,
                Value::Null,
                ErrorCode::InvalidRequest,
                "id: expected",
            ),
            (
                r#"{"id":7}"#,
                json!(7),
                ErrorCode::UnsupportedVersion,
                "expected 1, got none",
            ),
            (
                r#"{"id":7,"version":2}"#,
                json!(7),
                ErrorCode::UnsupportedVersion,
                "got 2",
            ),
            (
                r#"{"version":1}"#,
                Value::Null,
                ErrorCode::InvalidRequest,
                "method: expected",
            ),
            (
                r#"{"version":1,"method":"server.list","params":[]}"#,
                Value::Null,
                ErrorCode::InvalidRequest,
                "params: expected an object",
            ),
            (
                r#"{"version":1,"method":"server.list","more":1}"#,
                Value::Null,
                ErrorCode::InvalidRequest,
                "more: expected",
            ),
            (
                r#"{"version":1,"method":"server.list","params":{"x":1}}"#,
                Value::Null,
                ErrorCode::InvalidParams,
                "x: expected no such parameter",
            ),
            (
                r#"{"version":1,"method":"x"}"#,
                Value::Null,
                ErrorCode::UnknownMethod,
                "got 'x'",
            ),
            (
                r#"{"version":1,"method":"limit.set","params":{"name":"x","limit":5}}"#,
                Value::Null,
                ErrorCode::InvalidParams,
                "limit: expected a string",
            ),
            (
                r#"{"version":1,"method":"share.remove"}"#,
                Value::Null,
                ErrorCode::InvalidParams,
                "name: expected a string",
            ),
            (
                r#"{"version":1,"method":"share.drain","params":{"name":"x","timeout":9999}}"#,
                Value::Null,
                ErrorCode::InvalidParams,
                "timeout: expected seconds from 0 to 3600",
            ),
            (
                r#"{"version":1,"method":"share.add","params":{"share":{"name":{}}}}"#,
                Value::Null,
                ErrorCode::InvalidParams,
                "name: expected a string, a number",
            ),
        ] {
            let (own_id, own_code, message) = error(line);
            assert_eq!((own_id, own_code), (id, code), "{line}");
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
