//! The two processes of a mount. The first one, the *holder*, mounts, unmounts and handles signals.
//! It starts the second one, which confines itself, opens the source and serves the mount.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use concurrency::ThreadPool;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use transports::Listener;

use crate::child::message::{self, ReplySocket, unexpected};
use crate::child::users::{self, Query};
use crate::child::{self, ChildNamespaces, End};
use crate::serve::args::confinement::Sandbox;
use crate::{CommandResult, Failure, background, service, signals};

/// Number of queries of the user database that are carried out at once, and that wait: further ones
/// fail.
const QUERIES: (usize, usize) = (8, 256);

/// A request of the process that serves.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Queries the user database. The reply is a [`users::Found`].
    Users(Query),
    /// Connects to an OpenTelemetry collector of the options. The reply is a [`Reply`].
    #[cfg(feature = "otel")]
    ConnectCollector { host: String, port: u16 },
    /// The reply is a [`Reply`].
    Mount(MountRequest),
}

/// A request that concerns the mount.
#[derive(Debug, Serialize, Deserialize)]
enum MountRequest {
    /// Mounts, read-only if the source is.
    Mount { read_only: bool },
    /// Asks for a descriptor to serve.
    Descriptor,
    /// Asks for the socket of the status page.
    Listener,
    /// The mount is served.
    Ready,
}

/// The reply to a [`MountRequest`].
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    /// The requested descriptor is passed.
    Descriptor,
    /// The passed socket listens at this address.
    Listening(String),
}

/// A mount as its holder sees it.
pub(crate) trait HeldMount {
    /// Mounts, read-only if the source is (`read_only`).
    fn mount(&mut self, read_only: bool) -> Result<(), Failure>;

    /// Returns a descriptor for the process that serves.
    fn descriptor(&mut self) -> io::Result<OwnedFd>;

    /// Returns the listener of the status page, if the mount has one.
    fn listener(&self) -> Option<&Listener> {
        None
    }

    /// Returns the hosts and ports of OpenTelemetry collectors that the process that serves may be
    /// connected to.
    #[cfg(feature = "otel")]
    fn collectors(&self) -> Vec<(String, u16)> {
        Vec::new()
    }

    /// Is called when the mount is served.
    fn served(&self) {}

    /// Returns the text that reports that the mount is ready.
    fn ready_text(&self) -> String {
        background::READY.to_owned()
    }

    /// Unmounts, after a signal to stop. Open files may stay open.
    fn unmount(&mut self) -> Result<(), Failure>;
}

/// The options of the process that serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ChildOptions {
    /// The descriptor of the socket for requests.
    channel: i32,
    /// The holder's process id.
    holder: u32,
    /// Whether the process is prepared for namespaces.
    namespaces: bool,
    /// The descriptors of a process that fills an image for the kernel's EROFS, instead of serving
    /// requests.
    lazy: Option<LazyDescriptors>,
}

/// The descriptors of a process that fills an image, which it inherits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LazyDescriptors {
    /// The group of fanotify(7).
    pub(crate) group: i32,
    /// The inotify(7) queue with an event after the last unmount.
    pub(crate) unmounts: i32,
    /// The socket for ranges to fill.
    pub(crate) fills: i32,
    /// The file, if it is mounted already.
    pub(crate) file: Option<LazyFile>,
}

/// The local file of an image, with inherited descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LazyFile {
    pub(crate) name: String,
    /// Reads and writes through it raise no events.
    pub(crate) quiet: i32,
    /// Keeps the image in use in the disk cache.
    pub(crate) user: i32,
}

/// The packet that tells the process that serves to finish: it is no longer mounted.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stop;

/// An event for the holder.
enum Event {
    Request(MountRequest, ReplySocket),
    /// A signal to stop.
    Stop,
    /// The process that serves has ended.
    Ended,
}

/// Starts the process that serves `mount`, and waits until that ends. `sandbox` determines its
/// namespaces.
pub(crate) fn hold(mount: &mut dyn HeldMount, sandbox: Option<Sandbox>) -> CommandResult {
    let (channel, childs_end) = message::pair().map_err(Failure::new)?;
    let channel = Arc::new(channel);
    let namespaces = ChildNamespaces::new(sandbox)?;
    let mut child = start(childs_end, namespaces, None).map_err(Failure::new)?;
    let (sender, receiver) = mpsc::channel();
    let stop = sender.clone();
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    receive_requests(
        channel.clone(),
        sender,
        #[cfg(feature = "otel")]
        mount.collectors(),
    )?;
    let mut state = State::Starting;
    for event in receiver {
        match event {
            Event::Request(request, to) => to.reply(state.serve(request, mount)),
            Event::Stop if state == State::Starting => {
                child.kill().map_err(Failure::new)?;
                child.wait().map_err(Failure::new)?;
                return Ok(ExitCode::SUCCESS);
            }
            Event::Stop => {
                mount.unmount()?;
                // It may have ended.
                let _ = message::send(channel.as_fd(), &Stop, None);
            }
            Event::Ended => break,
        }
    }
    let end = End::of(child.wait().map_err(Failure::new)?);
    drop(signals);
    if state == State::Mounted {
        // The process has reported its error.
        let _ = mount.unmount();
    }
    match end {
        End::Exit(code) => Ok(ExitCode::from(code)),
        End::Crash(why) => Err(Failure::new(format!("the process that serves {why}"))),
    }
}

/// Starts the process that serves, whose end of the socket for requests is `childs_end`. It
/// fills an image if `lazy` has descriptors for that.
pub(crate) fn start(
    childs_end: OwnedFd,
    namespaces: ChildNamespaces,
    lazy: Option<LazyDescriptors>,
) -> io::Result<Child> {
    // Inherited, unlike the original.
    let inherited = rustix::io::dup(&childs_end)?;
    drop(childs_end);
    let mut command = child::command();
    command.stdout(Stdio::null());
    namespaces.start(command, |namespaces| ChildOptions {
        channel: inherited.as_raw_fd(),
        holder: std::process::id(),
        namespaces,
        lazy: lazy.clone(),
    })
}

/// Starts a thread that receives the requests of the process that serves.
fn receive_requests(
    channel: Arc<OwnedFd>,
    sender: Sender<Event>,
    #[cfg(feature = "otel")] collectors: Vec<(String, u16)>,
) -> Result<(), Failure> {
    let queries = ThreadPool::new("barge-users", QUERIES.0, QUERIES.1);
    let receive = move || {
        while let Ok((request, to)) = message::next_request(channel.as_fd()) {
            match request {
                // The thread that unmounts waits for replies of the mount, and these may wait for
                // the database.
                Request::Users(query) => queries.try_run(move || {
                    to.reply(users::find(query).map(|found| (found, None)));
                }),
                #[cfg(feature = "otel")]
                Request::ConnectCollector { host, port } => {
                    match collectors.contains(&(host.clone(), port)) {
                        true => queries.try_run(move || {
                            let connected = crate::otel::connect(&host, port);
                            to.reply(connected.map(|it| (Reply::Descriptor, Some(it.into()))));
                        }),
                        false => to.reply::<Reply>(Err(Errno::PERM.into())),
                    }
                }
                Request::Mount(request) => drop(sender.send(Event::Request(request, to))),
            }
        }
        let _ = sender.send(Event::Ended);
    };
    let thread = std::thread::Builder::new().name("barge-requests".into());
    thread.spawn(receive).map(drop).map_err(Failure::new)
}

/// The state of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Mounted,
    Ready,
}

impl State {
    /// Serves a request. Returns the reply and the descriptor to pass, or an error: code that has
    /// taken over the process that serves mounts nothing a second time.
    fn serve(
        &mut self,
        request: MountRequest,
        mount: &mut dyn HeldMount,
    ) -> io::Result<(Reply, Option<OwnedFd>)> {
        let refused = |failure: Failure| io::Error::other(failure.message);
        match request {
            MountRequest::Mount { read_only } if *self == State::Starting => {
                mount.mount(read_only).map_err(refused)?;
                *self = State::Mounted;
                Ok((Reply::Done, None))
            }
            MountRequest::Descriptor => Ok((Reply::Descriptor, Some(mount.descriptor()?))),
            MountRequest::Listener => {
                let listener = mount.listener().ok_or(io::ErrorKind::NotFound)?;
                let addr = listener.addr().to_string();
                Ok((Reply::Listening(addr), Some(listener.socket()?)))
            }
            MountRequest::Ready if *self == State::Mounted => {
                mount.served();
                background::report_ready(&mount.ready_text()).map_err(refused)?;
                service::notify_ready("ready");
                *self = State::Ready;
                Ok((Reply::Done, None))
            }
            MountRequest::Mount { .. } | MountRequest::Ready => Err(Errno::PERM.into()),
        }
    }
}

/// The holder as the process that serves uses it.
pub(crate) struct Holder {
    channel: OwnedFd,
    options: ChildOptions,
}

impl Holder {
    /// Returns the holder that has started this process, if one has.
    pub(crate) fn of_this_process() -> Result<Option<Arc<Holder>>, Failure> {
        let Some(options) = child::options() else {
            return Ok(None);
        };
        let options: ChildOptions = options?;
        Ok(Some(Arc::new(Holder {
            channel: child::inherited(options.channel)?,
            options,
        })))
    }

    /// Returns the descriptors of this process if it fills an image.
    pub(crate) fn lazy(&self) -> Option<LazyDescriptors> {
        self.options.lazy.clone()
    }

    /// Returns the socket for requests.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the holder's process id.
    pub(crate) fn id(&self) -> u32 {
        self.options.holder
    }

    /// Returns whether this process is prepared for namespaces.
    pub(crate) fn prepared_namespaces(&self) -> bool {
        self.options.namespaces
    }

    /// Makes this process ask the holder for users and groups.
    pub(crate) fn query_users(self: &Arc<Self>) {
        let holder = self.clone();
        users::ask_with(move |query| {
            let (found, _) = message::ask(holder.channel.as_fd(), &Request::Users(query))?;
            Ok(found)
        });
    }

    fn ask(&self, request: MountRequest) -> io::Result<(Reply, Option<OwnedFd>)> {
        message::ask(self.channel.as_fd(), &Request::Mount(request))
    }

    /// Mounts, read-only if the source is (`read_only`).
    pub(crate) fn mount(&self, read_only: bool) -> Result<(), Failure> {
        let mounted = self.ask(MountRequest::Mount { read_only });
        mounted.map(drop).map_err(Failure::new)
    }

    /// Returns a descriptor to serve.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        match self.ask(MountRequest::Descriptor)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Returns the listener of the status page.
    pub(crate) fn listener(&self) -> Result<Listener, Failure> {
        let (addr, socket) = match self.ask(MountRequest::Listener).map_err(Failure::new)? {
            (Reply::Listening(addr), Some(socket)) => (addr, socket),
            (other, _) => return Err(Failure::new(unexpected(&other))),
        };
        let addr = addr.parse().map_err(Failure::new)?;
        Listener::from_fd(socket, &addr).map_err(Failure::new)
    }

    /// Connects to an OpenTelemetry collector.
    #[cfg(feature = "otel")]
    pub(crate) fn connect_collector(
        &self,
        host: &str,
        port: u16,
    ) -> io::Result<std::net::TcpStream> {
        let host = host.to_owned();
        let request = Request::ConnectCollector { host, port };
        match message::ask(self.channel.as_fd(), &request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd.into()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Reports that the mount is served. In the background, also detaches from the terminal and
    /// from the working directory.
    pub(crate) fn report_ready(&self) -> Result<(), Failure> {
        self.ask(MountRequest::Ready).map_err(Failure::new)?;
        if signals::is_background() {
            background::detach_child().map_err(Failure::new)?;
        }
        Ok(())
    }

    /// Calls `stop` when the holder has unmounted after a signal to stop. Signals to this process
    /// have no effect: service managers send them to all processes of a service.
    pub(crate) fn on_stop(
        self: &Arc<Self>,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<(), Failure> {
        signals::ignore().map_err(Failure::new)?;
        let holder = self.clone();
        let wait = move || {
            if message::receive::<Stop>(holder.channel.as_fd()).is_ok() {
                stop();
            }
        };
        let thread = std::thread::Builder::new().name("barge-stop".into());
        thread.spawn(wait).map(drop).map_err(Failure::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the mounts.
    struct Counter(usize);

    impl HeldMount for Counter {
        fn mount(&mut self, _read_only: bool) -> Result<(), Failure> {
            self.0 += 1;
            Ok(())
        }

        fn descriptor(&mut self) -> io::Result<OwnedFd> {
            Ok(message::pair()?.0)
        }

        fn unmount(&mut self) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn a_mount_is_made_once() {
        let (mut state, mut mount) = (State::Starting, Counter(0));
        let mut ask = |request| state.serve(request, &mut mount).map(|(reply, _)| reply);
        assert!(ask(MountRequest::Ready).is_err());
        assert!(ask(MountRequest::Mount { read_only: false }).is_ok());
        assert!(ask(MountRequest::Mount { read_only: false }).is_err());
        assert!(ask(MountRequest::Descriptor).is_ok());
        assert!(ask(MountRequest::Listener).is_err());
        assert_eq!(mount.0, 1);
    }
}
