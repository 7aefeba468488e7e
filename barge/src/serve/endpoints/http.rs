//! The status page, metrics and health checks over HTTP.

use std::sync::Arc;

use engine::Engine;
use transports::{Addr, Listener};

use crate::Failure;
use crate::serve::args::ServeArgs;
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::Catalog;
use crate::serve::users;
use crate::status::{Figures, StatusAdmission, StatusServer};

/// The status page at its address, if there is one. It is no protocol of clients: its address does
/// not replace the default addresses of others.
pub(super) struct Http {
    addr: Option<Addr>,
    admission: StatusAdmission,
    socket: Option<(Listener, Arc<dyn Figures>)>,
    bound: Option<Addr>,
}

impl Http {
    pub(super) fn new(args: &ServeArgs) -> Result<Http, Failure> {
        let socket_group = args.identity.socket_group.as_deref();
        let users = args.share.admitted().iter();
        let users = users.chain(&args.observability.http_admit);
        Ok(Http {
            addr: args.observability.http.clone(),
            admission: StatusAdmission {
                names: args.observability.http_name.clone(),
                users: users.copied().collect(),
                socket_group: users::socket_group(socket_group)?,
            },
            socket: None,
            bound: None,
        })
    }
}

impl Endpoint for Http {
    fn shows_status(&self) -> bool {
        self.addr.is_some()
    }

    fn sockets(&self) -> Vec<Addr> {
        self.addr.iter().cloned().collect()
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        if let Some(addr) = &self.addr {
            let listener = context.listen(addr)?;
            self.bound = Some(listener.addr().clone());
            self.socket = Some((listener, context.figures.clone()));
        }
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        match self.socket.take() {
            Some((listener, figures)) => {
                StatusServer::new(engine.clone(), figures).serve(listener, &self.admission)
            }
            None => Ok(()),
        }
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let entry = |addr: &Addr| EndpointEntry {
            protocol: "http".into(),
            address: addr.to_string(),
            commands: vec![page_command(addr)],
            ..EndpointEntry::default()
        };
        self.bound.iter().map(entry).collect()
    }

    fn bound(&self) -> &[Addr] {
        self.bound.as_slice()
    }

    /// BARGE_HTTP is an address in the syntax of `barge top`.
    fn environment(&self, bound: &[Addr]) -> Vec<(String, String)> {
        let addr = bound.iter();
        addr.map(|addr| ("BARGE_HTTP".into(), addr.to_string()))
            .collect()
    }
}

/// Returns the URL of the status page, or a `barge top` command for an address without a URL.
fn page_command(addr: &Addr) -> String {
    match addr {
        Addr::Tcp { host, port } if host.contains(':') => format!("http://[{host}]:{port}/"),
        Addr::Tcp { host, port } => format!("http://{host}:{port}/"),
        addr => format!("barge top {addr}"),
    }
}
