//! 9P over streams: TCP, Unix sockets, vsock, and the sockets of a service manager.

use std::any::Any;
use std::sync::Arc;

use ::p9::server::{ExportList, Options, Server};
use engine::{Engine, Service};
use parking_lot::RwLock;
use transports::{Addr, Listener};
use vfs::{Call, Export};

use crate::Failure;
use crate::serve::activation;
use crate::serve::args::NinePArgs;
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry, addrs};
use crate::serve::environment::variables;
use crate::serve::exports::Catalog;
use crate::serve::users::HostUsers;

/// The server of all 9P clients, which share the limits of its options.
#[derive(Clone)]
pub(super) struct NinePServer {
    server: Server,
    list: Arc<RwLock<ExportList>>,
    options: Options,
}

impl NinePServer {
    pub(super) fn new(args: &NinePArgs) -> NinePServer {
        let options = Options {
            max_msize: args.msize,
            blocking_locks: !args.no_lock_wait,
            ..Default::default()
        };
        let list = Arc::new(RwLock::new(ExportList(Vec::new())));
        let choice = Arc::new(SharedExportList(list.clone()));
        NinePServer {
            server: Server::new(choice, Arc::new(HostUsers), options.clone()),
            list,
            options,
        }
    }

    /// Returns the address in memory of the list that clones have in common.
    #[cfg(test)]
    pub(super) fn list_address(&self) -> usize {
        Arc::as_ptr(&self.list) as *const () as usize
    }

    /// Returns the server of all exports.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns a server of `exports` with the same options.
    pub(super) fn server_of(&self, exports: Arc<dyn ::p9::server::Exports>) -> Server {
        Server::new(exports, Arc::new(HostUsers), self.options.clone())
    }

    /// Returns the server of `endpoint` if that serves 9P over streams.
    pub(super) fn of_endpoint(endpoint: &dyn Endpoint) -> Option<&NinePServer> {
        let p9: Option<&P9> = (endpoint as &dyn Any).downcast_ref();
        Some(&p9?.p9)
    }

    /// Replaces the exports that clients can attach to.
    pub(super) fn set_exports(&self, catalog: &Catalog<'_>) {
        let list = ExportList(catalog.list());
        *self.list.write() = list;
    }
}

/// The exports that 9P clients can attach to.
struct SharedExportList(Arc<RwLock<ExportList>>);

impl ::p9::server::Exports for SharedExportList {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        let list = self.0.read();
        list.resolve(aname)
    }
}

/// 9P at an address. Without one, it is served at the sockets of a service manager and, if no
/// protocol has addresses, at the default address.
pub(super) struct P9 {
    requested: Option<Addr>,
    p9: NinePServer,
    listeners: Vec<Listener>,
    bound: Vec<Addr>,
}

impl P9 {
    pub(super) fn new(requested: Option<Addr>, p9: NinePServer) -> P9 {
        P9 {
            requested,
            p9,
            listeners: Vec::new(),
            bound: Vec::new(),
        }
    }
}

/// The host and port of the default address, which only this host can connect to and which takes no
/// privileges.
const DEFAULT_ADDR: (&str, u16) = ("127.0.0.1", 5640);

fn default_addr() -> Addr {
    let (host, port) = DEFAULT_ADDR;
    Addr::Tcp {
        host: host.into(),
        port,
    }
}

/// Returns the URL of the default address.
pub(in crate::serve) fn default_url() -> String {
    let (host, port) = DEFAULT_ADDR;
    format!("9p://{host}:{port}/")
}

impl Endpoint for P9 {
    fn requested(&self) -> &[Addr] {
        self.requested.as_slice()
    }

    fn sockets(&self) -> Vec<Addr> {
        vec![self.requested.clone().unwrap_or_else(default_addr)]
    }

    fn inherits_sockets(&self) -> bool {
        self.requested.is_none()
    }

    fn share_limits(&mut self, other: &dyn Endpoint) {
        if let Some(server) = NinePServer::of_endpoint(other) {
            self.p9 = server.clone();
        }
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        self.p9.set_exports(&context.exports.catalog());
        if let Some(addr) = &self.requested {
            self.listeners = vec![context.listen(addr)?];
            self.bound = addrs(&self.listeners);
            return Ok(());
        }
        self.listeners = activation::listeners(context.host)?;
        if context.use_default_addrs {
            let listener = context.listen(&default_addr()).map_err(|failure| {
                let line = "(--9p tcp:127.0.0.1:0 selects a free port)";
                Failure::new(format!("{} {line}", failure.message))
            });
            self.listeners.push(listener?);
        }
        self.bound = addrs(&self.listeners);
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        for listener in self.listeners.drain(..) {
            let passes_files = matches!(listener.addr(), Addr::Unix(_));
            let server = self.p9.server().clone().with_fd_passing(passes_files);
            engine
                .listen(listener, Arc::new(NinePService(server)))
                .map_err(Failure::new)?;
        }
        Ok(())
    }

    fn entries(&self, catalog: &Catalog<'_>) -> Vec<EndpointEntry> {
        let exports = catalog.list();
        let msize = self.p9.options.max_msize;
        let commands = |addr: &Addr| {
            let mounts = exports
                .iter()
                .map(|export| mount_command(addr, &export.name, msize));
            mounts.collect()
        };
        let entry = |addr: &Addr| EndpointEntry {
            protocol: "9p".into(),
            address: addr.to_string(),
            commands: commands(addr),
            ..EndpointEntry::default()
        };
        self.bound.iter().map(entry).collect()
    }

    fn setting(&self) -> Option<(&'static str, String)> {
        Some(("9p", self.requested.as_ref()?.to_string()))
    }

    fn bound(&self) -> &[Addr] {
        &self.bound
    }

    fn environment(&self, bound: &[Addr]) -> Vec<(String, String)> {
        let socket = |path: &str| format!("9p+unix:{path}");
        variables("9P", "9p", bound, socket)
    }

    fn claimed_user_addrs(&self) -> &[Addr] {
        &self.bound
    }

    fn set_exports(&self, catalog: &Catalog<'_>) {
        self.p9.set_exports(catalog);
    }
}

/// The 9P service of the engine.
struct NinePService(Server);

impl Service for NinePService {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }

    fn resume(
        &self,
        call: &Call,
        state: &wire::SavedState,
    ) -> Result<Box<dyn wire::Session>, String> {
        match self.0.resume(call, state) {
            Ok(session) => Ok(Box::new(session)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Maximum msize of Linux on a stream; it reduces larger ones to this.
const LINUX_MSIZE: u32 = (1 << 20) + 24;

fn mount_command(addr: &Addr, export: &str, msize: u32) -> String {
    let (transport, device) = match addr {
        Addr::Tcp { host, port } => (format!("tcp,port={port}"), host.clone()),
        Addr::Unix(path) => ("unix".into(), path.display().to_string()),
        Addr::Vsock { port, .. } | Addr::VsockUds { port, .. } => {
            return vsock_mount_command(*port, &mount_options(export, msize));
        }
        Addr::Fd(_) => ("fd,rfdno=FD,wfdno=FD".into(), "barge".into()),
    };
    let options = mount_options(export, msize);
    format!("mount -t 9p -o trans={transport},{options} {device} /mnt")
}

/// Returns the mount command for a guest: Linux mounts a vsock that is connected already.
fn vsock_mount_command(port: u32, options: &str) -> String {
    let connect = format!("s=socket.socket(socket.AF_VSOCK); s.connect((2,{port})); f=s.fileno()");
    let mount = format!(
        r#"["mount","-t","9p","-o",f"trans=fd,rfdno={{f}},wfdno={{f}},{options}","barge","/mnt"]"#
    );
    format!(
        "python3 -c 'import socket,subprocess; {connect}; subprocess.run({mount},check=True,pass_fds=[f])'"
    )
}

fn mount_options(export: &str, msize: u32) -> String {
    let aname = if export.is_empty() {
        String::new()
    } else {
        format!(",aname={export}")
    };
    let msize = msize.min(LINUX_MSIZE);
    format!("version=9p2000.L,msize={msize}{aname}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_command_is_one_to_copy() {
        let tcp = "tcp:127.0.0.1:5640".parse().expect("an address");
        assert_eq!(
            mount_command(&tcp, "", 4 << 20),
            "mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,msize=1048600 127.0.0.1 /mnt"
        );
        let unix = "unix:/run/b".parse().expect("an address");
        assert_eq!(
            mount_command(&unix, "data", 8192),
            "mount -t 9p -o trans=unix,version=9p2000.L,msize=8192,aname=data /run/b /mnt"
        );
        let vsock = "vsock-uds:/run/vm:99".parse().expect("an address");
        assert_eq!(
            mount_command(&vsock, "data", 8192),
            r#"python3 -c 'import socket,subprocess; s=socket.socket(socket.AF_VSOCK); s.connect((2,99)); f=s.fileno(); subprocess.run(["mount","-t","9p","-o",f"trans=fd,rfdno={f},wfdno={f},version=9p2000.L,msize=8192,aname=data","barge","/mnt"],check=True,pass_fds=[f])'"#
        );
    }
}
