//! The table `zerocopy`: barge's server read and written by barge's client like dd(1), one block
//! after the other, with zero copy (payloads go directly between their buffers and the transport)
//! and with payloads copied to and from messages.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remote::ninep::Url;
use vfs::{Call, Caller, Cx, Errno, File, FileSystem, Mode, Name, OpenFlags};
use wire::payload::{SlicePayload, SliceSink};

use crate::context::Context;
use crate::hardware_limit::{BASE_MESSAGE_SIZE, Exchange, HardwareLimit};
use crate::process::{Process, free_port};
use crate::report::results::Results;
use crate::rounds::{self, Measurement, measure_alternating};
use crate::workspace::{DATA_FILE, OUT_SIZE, Workspace};
use command::Failure;

/// The sizes with which the gain of zero-copy transports was first reported, and up to the most
/// that one message carries.
const SIZES: [usize; 17] = [
    1,
    32,
    64,
    128,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

/// The columns: whether the client uses zero copy, and whether the server does. The first column is
/// compared with the second.
const COLUMNS: [(&str, bool, bool); 3] = [
    ("zerocopy", true, true),
    ("zerocopy=off", false, false),
    ("of the client only", true, false),
];

const TRANSPORTS: [&str; 3] = ["unix", "tcp", "virtqueue"];

/// A server, and the URLs to reach it.
struct Server {
    /// One for each of [`TRANSPORTS`].
    urls: Vec<Url>,
    _process: Process,
}

struct Cell {
    /// The index of the transport in [`TRANSPORTS`].
    transport: usize,
    size: usize,
    writes: bool,
}

/// A file, and the block buffer for its reads or writes.
struct Client {
    /// Keeps the connection of the file open.
    _tree: Arc<dyn FileSystem>,
    file: Arc<dyn File>,
    block: Vec<u8>,
    at: u64,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let workspace = Workspace::with_files(args)?;
    let mut servers = Vec::new();
    for (name, client, server) in COLUMNS {
        servers.push((name.to_owned(), Server::start(&workspace, client, server)?));
    }
    let mut cells = Vec::new();
    for by in 0..TRANSPORTS.len() {
        for writes in [false, true] {
            let cell = |size| Cell {
                transport: by,
                size,
                writes,
            };
            let wanted = SIZES.map(cell).into_iter();
            cells.extend(wanted.filter(|cell| args.selects(&rounds::Cell::name(cell))));
        }
    }
    args.plan(cells.len(), servers.len());
    let rows = measure_alternating(args, &servers, &cells)?;
    Ok(Results {
        title: "9P with and without zero copy, one client and one server".into(),
        notes: vec![
            workspace.note(args),
            "one block at a time; processor time is that of client and server together".into(),
        ],
        missing: Vec::new(),
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers: vec![1],
        limit: None,
        rows,
    })
}

impl Server {
    fn start(workspace: &Workspace, client: bool, server: bool) -> Result<Server, Failure> {
        let socket = |name: &str| {
            workspace
                .run_dir
                .join(format!("{name}-{client}-{server}.sock"))
        };
        let (unix, virtio) = (socket("unix"), socket("virtio"));
        let port = free_port()?;
        let (by_unix, by_tcp) = (unix.display(), format!("tcp:127.0.0.1:{port}"));
        let (by_unix, by_queue) = (format!("unix:{by_unix}"), virtio.display().to_string());
        let mut options = vec!["--9p", &by_unix, "--9p", &by_tcp, "--virtio-9p", &by_queue];
        options.extend((!server).then_some("--no-zerocopy"));
        let process = Process::serve(workspace.barge(), &workspace.share, &options)?;
        let url = |text: String| -> Result<Url, Failure> {
            let zerocopy = if client { "on" } else { "off" };
            format!("{text}?zerocopy={zerocopy}")
                .parse()
                .map_err(Failure::new)
        };
        Ok(Server {
            urls: vec![
                url(format!("9p+unix:{}", encoded(&unix)))?,
                url(format!("9p://127.0.0.1:{port}/"))?,
                url(format!("9p+virtio:{}", encoded(&virtio)))?,
            ],
            _process: process,
        })
    }
}

/// Escapes a path for a URL.
fn encoded(path: &Path) -> String {
    let path = path.display().to_string();
    path.replace('%', "%25").replace('?', "%3f")
}

impl rounds::Cell<Server> for Cell {
    type Client = Client;

    fn name(&self) -> String {
        let what = if self.writes { "write" } else { "read" };
        let size = match self.size {
            size if size < 1 << 10 => format!("{size} B"),
            size if size < 1 << 20 => format!("{} KiB", size >> 10),
            size => format!("{} MiB", size >> 20),
        };
        format!("{}, {what}, {size}", TRANSPORTS[self.transport])
    }

    fn unit(&self) -> (&'static str, f64) {
        ("kB/s", self.size as f64 / 1e3)
    }

    fn connect(&self, server: &Server) -> Result<Vec<Client>, String> {
        let tree = server.urls[self.transport].connect();
        let tree = tree.map_err(|error| error.to_string())?;
        let open = |cx: &Cx<'_>| {
            let root = tree.root(cx)?;
            if !self.writes {
                let data = root.lookup(cx, Name::new(DATA_FILE.0.as_bytes())?)?;
                return data.node.open(cx, OpenFlags::READ);
            }
            let (name, mode) = (Name::new(b"out")?, Mode::without_umask(0o600));
            Ok(root.create(cx, name, OpenFlags::WRITE, mode)?.1)
        };
        let file = with_cx(open).map_err(|errno| errno.to_string())?;
        Ok(vec![Client {
            _tree: tree,
            file,
            block: vec![7; self.size],
            at: 0,
        }])
    }

    /// Returns this process, which contains the client; the server is its child.
    fn pid(&self, _: &Server, _: &Client) -> u32 {
        std::process::id()
    }

    fn run(&self, client: &mut Client, time: Duration, most: usize) -> Measurement {
        let began = Instant::now();
        let mut done = 0;
        while done < most && (done == 0 || began.elapsed() < time) {
            client.step(self.writes)?;
            done += 1;
        }
        Ok((done, began.elapsed()))
    }

    /// Returns `None`: a process cannot trace itself.
    fn traced_operations(&self) -> Option<usize> {
        None
    }

    /// Returns the limit of the transport. A virtqueue shares memory, so its limit is one copy of
    /// the data.
    fn limit(&self) -> Option<HardwareLimit> {
        let tcp = match TRANSPORTS[self.transport] {
            "virtqueue" => return Some(HardwareLimit::Copy(self.size)),
            transport => transport == "tcp",
        };
        let long = BASE_MESSAGE_SIZE + self.size;
        Some(HardwareLimit::Exchange(Exchange {
            tcp,
            bytes: if self.writes {
                (long, BASE_MESSAGE_SIZE)
            } else {
                (BASE_MESSAGE_SIZE, long)
            },
            depth: 1,
            steps: 1,
            connections: 1,
        }))
    }
}

impl Client {
    /// Reads or writes the next block.
    fn step(&mut self, writes: bool) -> vfs::Result<()> {
        let (size, at) = (self.block.len(), self.at);
        let (done, all) = if writes {
            let mut block = SlicePayload::new(&self.block);
            (with_cx(|cx| self.file.write(cx, at, &mut block))?, OUT_SIZE)
        } else {
            let mut block = SliceSink::new(&mut self.block);
            (
                with_cx(|cx| self.file.read(cx, at, size, &mut block))?,
                DATA_FILE.1,
            )
        };
        // A short read or write would be too fast.
        if done != size {
            return Err(Errno::EIO);
        }
        self.at = at + size as u64;
        if self.at + size as u64 > all {
            self.at = 0;
        }
        Ok(())
    }
}

fn with_cx<T>(act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}
