//! The control socket of a server: requests that list and change the shares and endpoints.
//!
//! | file | contents |
//! |---|---|
//! | `protocol` | requests and replies |
//! | `server` | the socket, its connections and their bounds |
//!
//! A [`Controller`] carries requests out: it holds the configuration as it is now, and passes
//! changes on to the process that serves.
//!
//! Lock order: changes, then the configuration.

pub(crate) mod protocol;
mod server;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::protocol::Method;
pub(super) use self::server::ControlServer;
use super::endpoints::normalized;
use super::live::{ErrorCode, LiveError, LiveRequest, LiveServer, Target};
use super::plan::{self, Plan};
use crate::config::Config;

/// A server that can be changed while it runs.
pub(super) trait Backend: Send + Sync {
    /// Passes a request on to the process that serves.
    fn request(&self, request: LiveRequest) -> Result<Value, LiveError>;

    /// Permits the process that serves to use the sources and sockets of `addition`. Returns an
    /// error if that takes a restart.
    fn prepare(&self, addition: &Plan) -> Result<(), LiveError>;

    /// Takes back the permission for the sources of `removed`, except those of `rest`.
    fn revoke(&self, removed: &Plan, rest: &Plan);

    /// Reads certificates and, if there is a file, the configuration again.
    fn reload(&self) -> Result<(), LiveError>;
}

/// Carries out the requests of the control socket.
pub(super) struct Controller {
    backend: Arc<dyn Backend>,
    running: Arc<Mutex<Config>>,
    /// Held during a change.
    changing: Mutex<()>,
}

impl Controller {
    /// Returns one for a server with the configuration `running`, which it keeps up to date.
    pub(super) fn new(backend: Arc<dyn Backend>, running: Arc<Mutex<Config>>) -> Controller {
        Controller {
            backend,
            running,
            changing: Mutex::default(),
        }
    }

    /// Carries out a request.
    pub(super) fn handle(&self, method: Method) -> Result<Value, LiveError> {
        match method {
            Method::ServerList => self.list(),
            Method::ServerReload => self.reload(),
            Method::ServerDebug => self.debug(),
            Method::Add(text) => self.add(text),
            Method::ShareRemove(name, drain) => self.remove(Target::Share(name), drain),
            Method::EndpointRemove(addr, drain) => self.remove(Target::Endpoint(addr), drain),
            Method::ClientList => self.backend.request(LiveRequest::Clients),
            Method::ClientDisconnect(client) => {
                self.backend.request(LiveRequest::Disconnect { client })
            }
        }
    }

    fn list(&self) -> Result<Value, LiveError> {
        let listing = self.backend.request(LiveRequest::List)?;
        Ok(with_server(listing))
    }

    fn add(&self, text: String) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let invalid = |why: String| LiveError::new(ErrorCode::InvalidParams, why);
        let addition = Config::addition(&text).map_err(|why| invalid(why.to_string()))?;
        let config = self.running.lock().with_only(&addition);
        let plan = Plan::of_settings(&config).map_err(|why| invalid(why.message))?;
        if self
            .running
            .lock()
            .shares()
            .iter()
            .any(|share| share.name.is_none())
        {
            let message = "the only share has no name, so that others cannot be added";
            return Err(LiveError::new(ErrorCode::RestartRequired, message));
        }
        if let Some(share) = addition.shares().iter().find(|share| share.name.is_none()) {
            return Err(invalid(format!("expected a name for {}", share.source.0)));
        }
        self.backend.prepare(&plan)?;
        let added = self.backend.request(LiveRequest::Add { text })?;
        self.running.lock().add(addition);
        Ok(added)
    }

    fn remove(
        &self,
        target: Target,
        drain: Option<std::time::Duration>,
    ) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let request = LiveRequest::Remove {
            target: target.clone(),
            drain,
        };
        let mut done = self.backend.request(request)?;
        let settings: Vec<(String, String)> = done
            .as_object_mut()
            .and_then(|done| done.remove("settings"))
            .and_then(|settings| serde_json::from_value(settings).ok())
            .unwrap_or_default();
        let mut running = self.running.lock();
        running.remove_settings(|key, value| {
            let value = normalized(key, value);
            let mut settings = settings.iter();
            settings.any(|(own, removed)| own == key && value.as_ref() == Some(removed))
        });
        if let Target::Share(name) = &target {
            let mut removed = running.clone();
            removed.retain_shares(|other| other == name);
            let removed = running.with_only(&removed);
            running.remove_share(name);
            let rest = running.clone();
            drop(running);
            if let (Ok(removed), Ok(rest)) = (Plan::of_settings(&removed), Plan::of_settings(&rest))
            {
                self.backend.revoke(&removed, &rest);
            }
        }
        Ok(done)
    }

    fn reload(&self) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let file = self.running.lock().file().map(ToOwned::to_owned);
        let config = file.map(|path| plan::read_config(&path)).transpose();
        let config = config.map_err(|why| LiveError::new(ErrorCode::Failed, why.to_string()))?;
        self.backend.reload()?;
        if let Some(config) = config {
            *self.running.lock() = config;
        }
        Ok(json!({}))
    }

    fn debug(&self) -> Result<Value, LiveError> {
        let serving = self.backend.request(LiveRequest::Debug)?;
        let running = without_credentials(&self.running.lock().text());
        let kernel = rustix::system::uname();
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "features": { "gss": cfg!(feature = "gss") },
            "process": std::process::id(),
            "user": rustix::process::geteuid().as_raw(),
            "kernel": {
                "release": kernel.release().to_string_lossy(),
                "version": kernel.version().to_string_lossy(),
                "machine": kernel.machine().to_string_lossy(),
            },
            "limits": { "open_files": sys::limits::descriptors(), "memory": sys::limits::memory() },
            "configuration": running,
            "serving": serving,
        }))
    }
}

/// Adds the version and the process id of the server to a listing.
pub(super) fn with_server(mut listing: Value) -> Value {
    if let Some(object) = listing.as_object_mut() {
        object.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
        object.insert("pid".into(), json!(std::process::id()));
    }
    listing
}

/// Replaces the user information of URLs (RFC 3986, 3.2.1) in `text`, and their queries, in which
/// object stores accept signatures.
fn without_credentials(text: &str) -> String {
    let end = |text: &str, ends: &[char]| text.find(ends).unwrap_or(text.len());
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (url, rest) = part.split_at(end(part, &['"', '\n']));
        let (url, query) = url.split_at(end(url, &['?']));
        let (authority, path) = url.split_at(end(url, &['/']));
        let host = authority
            .rsplit_once('@')
            .map(|(_, host)| format!("...@{host}"));
        shown.push_str("://");
        shown.push_str(host.as_deref().unwrap_or(authority));
        shown.push_str(path);
        shown.push_str(if query.is_empty() { "" } else { "?..." });
        shown.push_str(rest);
    }
    shown
}

/// A server without confinement: one process.
impl Backend for LiveServer {
    fn request(&self, request: LiveRequest) -> Result<Value, LiveError> {
        LiveServer::handle(self, request)
    }

    fn prepare(&self, _: &Plan) -> Result<(), LiveError> {
        Ok(())
    }

    fn revoke(&self, _: &Plan, _: &Plan) {}

    fn reload(&self) -> Result<(), LiveError> {
        self.host().report_reloading();
        let reloaded = self.handle(LiveRequest::Reload);
        let status = reloaded.as_ref().err();
        let status = status.map_or("ready", |error| error.message.as_str());
        self.host().report_reloaded(status);
        reloaded.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_urls_are_not_shown() {
        let text = "a = \"https://u:p@host/x?sig=1\"\nb = \"s3://bucket/key@1\"\nc = \"/srv\"\n";
        let shown = "a = \"https://...@host/x?...\"\nb = \"s3://bucket/key@1\"\nc = \"/srv\"\n";
        assert_eq!(without_credentials(text), shown);
    }
}
