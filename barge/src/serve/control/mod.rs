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

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::protocol::Method;
pub(super) use self::server::ControlServer;
use super::broker::upgrade;
use super::endpoints::normalized;
use super::live::{ErrorCode, LiveError, LiveRequest, LiveServer, ReloadResult, Target};
use super::opener::Unopened;
use super::plan::{self, Plan};
use crate::config::{Config, Share};
use crate::service;
use crate::version::{Build, VERSION};

/// A server that can be changed while it runs.
pub(super) trait Backend: Send + Sync {
    /// Passes a request on to the process that serves.
    fn request(&self, request: LiveRequest) -> Result<Value, LiveError>;

    /// Finds the objects of `addition`, whose plan is `plan`, and permits the process that serves
    /// to use them and its sockets. On failure, or if that takes a restart, permits nothing.
    fn prepare(&self, addition: &mut Config, plan: &Plan) -> Result<(), LiveError>;

    /// Takes back the permission for what the configuration no longer has, and for the addresses
    /// `addrs`.
    fn revoke(&self, addrs: &[String]);

    /// Reads certificates again, and makes `config` the configuration if there is one. Finds its
    /// objects.
    fn reload(&self, config: Option<&mut Config>, unopened: Unopened) -> Result<(), LiveError>;

    /// Continues with the installed program. Returns only if that fails.
    fn upgrade(&self) -> LiveError;
}

/// The reply to [`LiveRequest::Remove`].
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Removed {
    /// The names of the shares that were removed.
    pub(super) shares: Vec<String>,
    /// The options and values of the endpoints that were removed.
    pub(super) settings: Vec<(String, String)>,
    /// The addresses of these endpoints, as their options name them.
    pub(super) addrs: Vec<String>,
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
            Method::ServerUpgrade => Err(self.upgrade()),
            Method::Add(text) => self.add(text),
            Method::ShareReopen(name) => self.reopen(&name, Config::reopen, Unopened::Refused),
            Method::ShareRelease(name) => self.reopen(&name, Config::release, Unopened::Awaited),
            Method::ShareRemove(name, drain) => self.remove(&Target::Share(name), drain),
            Method::EndpointRemove(addr, drain) => self.remove(&Target::Endpoint(addr), drain),
            Method::ClientList => self.backend.request(LiveRequest::Clients),
            Method::CacheEvict(share) => self.backend.request(LiveRequest::Evict { share }),
            Method::LimitGet(share) => self.backend.request(LiveRequest::Limits { share }),
            Method::LimitSet(share, limit, client_limit) => {
                self.set_limits(share, limit, client_limit)
            }
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
        let mut addition = Config::addition(&text).map_err(|why| invalid(why.to_string()))?;
        let running = self.running.lock().clone();
        let name = |share: &Share| share.name.clone();
        let names: HashSet<_> = running.shares().iter().map(name).collect();
        if names.contains(&None) {
            let message = "the only share has no name, so that others cannot be added";
            return Err(LiveError::new(ErrorCode::RestartRequired, message));
        }
        for share in addition.shares() {
            let Some(name) = &share.name else {
                let source = share.source.1.shown();
                return Err(invalid(format!("expected a name for {source}")));
            };
            if names.contains(&share.name) {
                let message = format!("a share named '{name}' exists");
                return Err(LiveError::new(ErrorCode::Exists, message));
            }
        }
        let plan = plan::check_addition(&running, &addition);
        let plan = plan.map_err(|why| invalid(why.message))?;
        self.backend.prepare(&mut addition, &plan)?;
        let added = self.backend.request(LiveRequest::Add {
            addition: addition.clone(),
        });
        match &added {
            Ok(_) => self.running.lock().add(addition),
            // It may still happen.
            Err(error) if error.code == ErrorCode::Timeout => {}
            Err(_) => self.backend.revoke(&plan::changeable_addrs(&plan)),
        }
        added
    }

    /// Removes `target`, with `drain` once its requests are answered, or after that time. Other
    /// changes are possible meanwhile.
    fn remove(&self, target: &Target, drain: Option<Duration>) -> Result<Value, LiveError> {
        let drained = match drain {
            None => Value::Null,
            Some(timeout) => {
                let target = target.clone();
                let waited = self
                    .backend
                    .request(LiveRequest::Drain { target, timeout })?;
                waited["drained"].clone()
            }
        };
        let _changing = self.changing.lock();
        let done = self.backend.request(LiveRequest::Remove {
            target: target.clone(),
            drained: drain.is_some(),
        })?;
        let removed: Removed = serde_json::from_value(done).unwrap_or_default();
        let mut running = self.running.lock();
        running.remove_settings(|key, value| {
            let value = normalized(key, value);
            let mut settings = removed.settings.iter();
            settings.any(|(own, removed)| own == key && value.as_ref() == Some(removed))
        });
        for name in &removed.shares {
            running.remove_share(name);
        }
        drop(running);
        self.backend.revoke(&removed.addrs);
        Ok(json!({ "drained": drained }))
    }

    fn set_limits(
        &self,
        share: String,
        limit: Option<String>,
        client_limit: Option<String>,
    ) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let set = self.backend.request(LiveRequest::SetLimits {
            share: share.clone(),
            limit: limit.clone(),
            client_limit: client_limit.clone(),
        })?;
        // For a process that serves after a crash of this one.
        let mut running = self.running.lock();
        for (key, value) in [("limit", limit), ("client-limit", client_limit)] {
            if let Some(value) = value {
                running.set_of_share(&share, key, value);
            }
        }
        Ok(set)
    }

    /// Reads certificates and, if there is a file, the configuration again.
    fn reload(&self) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        service::notify(&service::reloading());
        let file = self.running.lock().file().map(ToOwned::to_owned);
        let mut config = file.map(|path| plan::read_config(&path)).transpose();
        if let Ok(Some(config)) = &mut config {
            config.keep_objects_of(&self.running.lock());
        }
        // Certificates are read again in any case.
        let new = config.as_mut().ok().and_then(Option::as_mut);
        let reloaded = self.backend.reload(new, Unopened::Awaited);
        let config = config.map_err(|why| LiveError::new(ErrorCode::Failed, why.to_string()));
        let mut reloaded = config.and_then(|config| reloaded.map(|()| config));
        if let Err(error) = &mut reloaded {
            // After a timeout it may still happen.
            if error.code != ErrorCode::Timeout {
                error.message += "\nkeeping the previous configuration";
            }
            for line in error.message.lines() {
                tracing::error!("reload: {line}");
            }
        }
        service::notify_ready(ReloadResult::of(&reloaded).status());
        if let Some(config) = reloaded? {
            *self.running.lock() = config;
        }
        Ok(json!({}))
    }

    /// Makes a share drop its objects with `drop_objects`, and follow its paths anew unless it is
    /// released.
    fn reopen(
        &self,
        share: &str,
        drop_objects: fn(&mut Config, &str) -> bool,
        unopened: Unopened,
    ) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let mut config = self.running.lock().clone();
        if !drop_objects(&mut config, share) {
            let message = format!("expected the name of a share, got '{share}'");
            return Err(LiveError::new(ErrorCode::NotFound, message));
        }
        self.backend.reload(Some(&mut config), unopened)?;
        *self.running.lock() = config;
        Ok(json!({}))
    }

    fn upgrade(&self) -> LiveError {
        let _changing = self.changing.lock();
        self.backend.upgrade()
    }

    /// Does the same as the request `server.reload`, at a signal.
    pub(super) fn reload_on_signal(&self) {
        // It is in the log.
        let _ = self.reload();
    }

    fn debug(&self) -> Result<Value, LiveError> {
        let serving = self.backend.request(LiveRequest::Debug)?;
        let running = without_credentials(&self.running.lock().text());
        let kernel = rustix::system::uname();
        Ok(json!({
            "version": VERSION,
            "build": Build::own(),
            "process": upgrade::server_id(),
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
        object.insert("version".into(), json!(VERSION));
        object.insert("pid".into(), json!(upgrade::server_id()));
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

    fn prepare(&self, _: &mut Config, _: &Plan) -> Result<(), LiveError> {
        Ok(())
    }

    fn revoke(&self, _: &[String]) {}

    fn reload(&self, config: Option<&mut Config>, unopened: Unopened) -> Result<(), LiveError> {
        let config = config.cloned();
        self.handle(LiveRequest::Reload { config, unopened })
            .map(drop)
    }

    fn upgrade(&self) -> LiveError {
        let why = "without a broker (--sandbox none), an upgrade takes a restart";
        LiveError::new(ErrorCode::RestartRequired, why)
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
