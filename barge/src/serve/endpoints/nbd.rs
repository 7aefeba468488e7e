//! Files as disks over NBD.

use std::sync::Arc;

use block::nbd::Server;
use engine::{Engine, Service};
use transports::{Addr, Listener};

use crate::Failure;
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry, addrs, serve};
use crate::serve::environment::variables;
use crate::serve::exports::Catalog;

/// NBD at its addresses.
pub(super) struct Nbd {
    requested: Vec<Addr>,
    listeners: Vec<Listener>,
    service: Option<Arc<dyn Service>>,
    bound: Vec<Addr>,
    /// The name of the first image, if there is one.
    first_image: Option<String>,
}

impl Nbd {
    pub(super) fn new(addr: Addr) -> Nbd {
        Nbd {
            requested: vec![addr],
            listeners: Vec::new(),
            service: None,
            bound: Vec::new(),
            first_image: None,
        }
    }
}

impl Endpoint for Nbd {
    fn requested(&self) -> &[Addr] {
        &self.requested
    }

    fn serves_images(&self) -> bool {
        !self.requested.is_empty()
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        for addr in &self.requested {
            self.listeners.push(context.listen(addr)?);
        }
        self.bound = addrs(&self.listeners);
        let exports = context.exports;
        let image = exports.images.first().map(|image| &image.name);
        self.first_image = image.map(|name| String::from_utf8_lossy(name).into_owned());
        let server = Server::new(exports.default.clone(), false, exports.images.clone());
        self.service = Some(Arc::new(NbdService(server)));
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        let Some(service) = self.service.take() else {
            return Ok(());
        };
        serve(engine, std::mem::take(&mut self.listeners), &service)
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let file = self.first_image.as_deref().unwrap_or("FILE");
        let entry = |addr: &Addr| EndpointEntry {
            protocol: "nbd".into(),
            address: addr.to_string(),
            commands: client_command(addr, file).into_iter().collect(),
            ..EndpointEntry::default()
        };
        self.bound.iter().map(entry).collect()
    }

    fn setting(&self) -> Option<(&'static str, String)> {
        Some(("nbd", self.requested.first()?.to_string()))
    }

    fn bound(&self) -> &[Addr] {
        &self.bound
    }

    fn environment(&self, bound: &[Addr]) -> Vec<(String, String)> {
        let socket = |path: &str| format!("nbd+unix:///?socket={path}");
        variables("NBD", "nbd", bound, socket)
    }
}

/// The NBD service of the engine.
struct NbdService(Server);

impl Service for NbdService {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

/// Returns the command that attaches `file` as a disk of Linux. `file` is a path, or the name of an
/// image, which may be empty.
fn client_command(addr: &Addr, file: &str) -> Option<String> {
    let server = match addr {
        Addr::Tcp { host, port } => format!("{host} {port}"),
        Addr::Unix(path) => format!("-unix {}", path.display()),
        _ => return None,
    };
    let name = match file {
        "" => String::new(),
        file => format!("-N {file} "),
    };
    Some(format!("nbd-client {name}{server} /dev/nbd0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_a_file_unless_the_source_is_the_disk() {
        let tcp = "tcp:127.0.0.1:5640".parse().expect("an address");
        let commands = ["FILE", ""].map(|file| client_command(&tcp, file));
        let commands = commands.map(Option::unwrap_or_default);
        assert_eq!(
            commands,
            [
                "nbd-client -N FILE 127.0.0.1 5640 /dev/nbd0",
                "nbd-client 127.0.0.1 5640 /dev/nbd0"
            ]
        );
    }
}
