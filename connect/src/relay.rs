//! The relay between the kernel's client and the server, until the mount ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use command::Failure;
use command::signals::CLOSE_TIMEOUT;
use remote::ninep::{ReconnectingLink, Url, relay};
use transports::{Link, StreamLink};

use crate::MountSettings;

/// A connection to the server of a mount.
pub struct Relay<'a> {
    url: &'a Url,
    server: Arc<ReconnectingLink>,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

/// An event that ends a mount.
enum Event {
    /// A signal to stop.
    Stop,
    /// umount(8), or a server that was not restored in time.
    Ended(io::Result<()>),
}

impl<'a> Relay<'a> {
    /// Connects to the server at `url`. If the connection is lost, it is restored in the time that
    /// `settings` allow.
    pub fn connect(url: &'a Url, settings: &MountSettings) -> Result<Relay<'a>, Failure> {
        let source = Url {
            retry: settings.retry,
            ..url.clone()
        };
        let server = source.dial().map_err(|error| failure(url, &error))?;
        let (sender, events) = channel();
        Ok(Relay {
            url,
            server: Arc::new(server),
            sender,
            events,
        })
    }

    /// Returns a function that stops the mount, from any thread and at any time.
    pub fn stopper(&self) -> impl Fn() + Send + use<> {
        let sender = self.sender.clone();
        // Fails only if the receiver is gone, when the mount has ended anyway.
        move || drop(sender.send(Event::Stop))
    }

    /// Starts the thread that relays between the server and `kernel`, the peer of the socket that
    /// the kernel's client uses. That client sends requests during mount(2), so this comes first.
    pub fn start(&self, kernel: OwnedFd) -> Result<(), Failure> {
        let client = Arc::new(StreamLink::new(kernel, "the kernel").map_err(Failure::new)?);
        let (server, sender) = (self.server.clone(), self.sender.clone());
        std::thread::spawn(move || sender.send(Event::Ended(relay(client, server))));
        Ok(())
    }

    /// Waits until the mount ends. Calls `unmount` at a stop; files that are still open after
    /// [`CLOSE_TIMEOUT`] then return errors. Returns an error if the server was lost.
    pub fn wait(self, unmount: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let mut event = self.events.recv();
        if let Ok(Event::Stop) = event {
            unmount()?;
            let Ok(ended) = self.events.recv_timeout(CLOSE_TIMEOUT) else {
                self.server.hang_up();
                return Ok(());
            };
            event = Ok(ended);
        }
        match event {
            Ok(Event::Ended(Err(error))) => Err(failure(self.url, &error)),
            _ => Ok(()),
        }
    }
}

fn failure(url: &Url, error: &io::Error) -> Failure {
    Failure::new(format!("{url}: {error}"))
}
