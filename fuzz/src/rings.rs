//! A vhost-user device with a guest that writes anything to its memory, and a monitor that sends
//! anything about it.
//!
//! A script is a byte for the use of event indices and the type of device, followed by steps, each
//! with a byte for its kind. The device's own thread only serves the monitor, which waits for it;
//! requests from the ring are served on the script's thread.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use fuse::server::{Options, Server};
use hostile::guest::{Guest, QueueLayout, descriptor};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use transports::{Exchange, Ring};
use vfs::{Call, Export, Patience};
use virtqueue::{Device, DeviceConfig, JoinRing};
use wire::{ServeOutcome, Session};

use crate::session::tree;

/// Plays the script `data`: whatever the guest writes, each request that is popped can be served
/// and returned.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let started = Arc::new(Started::default());
    let starts = started.clone();
    let drive = move |_, ring| -> std::io::Result<JoinRing> {
        *starts.lock() = Some(ring);
        // The script has returned all requests by then.
        Ok(Box::new(|| ()))
    };
    let config = DeviceConfig {
        queues: 2,
        features: 0,
        config_space: Vec::new(),
        repeats_requests: false,
    };
    let mut device = Device::new(theirs, "fuzz", config, Arc::new(drive)).expect("a device");
    let never = never.as_fd();
    std::thread::scope(|scope| {
        // It ends with its monitor's connection.
        let device = scope.spawn(move || device.run(never));
        // The end of the input is the end of the script.
        let _ = play(&mut input, ours, &started);
        // The end of a scope does not wait for the memory that a thread frees last, which would be
        // reported as a leak.
        let _ = device.join().expect("the device does not panic");
    });
}

/// The ring that was started last, until it is stopped.
type Started = Mutex<Option<Arc<dyn Ring>>>;

/// Returns the location of a queue: the correct one, or any.
fn queue(input: &mut Unstructured<'_>) -> Result<QueueLayout> {
    if input.arbitrary()? {
        return Ok(QueueLayout::VALID);
    }
    let size: u16 = input.arbitrary()?;
    Ok(QueueLayout {
        size: size.into(),
        descriptors: place(input.arbitrary()?),
        available: place(input.arbitrary()?),
        used: place(input.arbitrary()?),
    })
}

/// Returns an address in the first or the last 64 KiB.
fn place(at: u16) -> u64 {
    match at % 2 {
        0 => at.into(),
        _ => Guest::MEMORY_SIZE - u64::from(at) - 1,
    }
}

fn play(input: &mut Unstructured<'_>, socket: UnixStream, started: &Started) -> Result<()> {
    let start: u8 = input.arbitrary()?;
    let session: Box<dyn Session> = match start & 2 {
        0 => {
            let export = Arc::new(Export::new("", tree()));
            Box::new(Server::new(export, Options::default()).session())
        }
        _ => Box::new(crate::session::begun_by_queue()),
    };
    let guest = Guest::set_up(socket, start & 1 == 1).expect("agreed");
    // The monitor gets the error of an invalid queue or memory.
    let start = |place, next: u16| drop(guest.start(1, place, next.into()));
    let ring = || started.lock().clone();
    let mut at = QueueLayout::VALID;
    start(at, 0);
    let mut held: Vec<Box<dyn Exchange>> = Vec::new();
    while !input.is_empty() {
        match input.arbitrary::<u8>()? % 8 {
            // The queue is stopped and started elsewhere.
            0 => {
                if let Some(ring) = ring() {
                    held.drain(..).for_each(|exchange| ring.push_used(exchange));
                }
                // An earlier message of the monitor may have ended its connection.
                if guest.stop(1).is_err() {
                    return Ok(());
                }
                *started.lock() = None;
                at = queue(input)?;
                start(at, input.arbitrary()?);
            }
            // The guest has this many pages from now on.
            1 => {
                let len = u64::from(input.arbitrary::<u8>()?) << 12;
                drop(guest.set_mem_table(&[Guest::region(0, len)]));
            }
            2 => {
                let at = place(input.arbitrary()?);
                let len = usize::from(input.arbitrary::<u8>()?);
                guest.write(at, input.bytes(len.min(input.len()))?);
            }
            3 => {
                let index: u8 = input.arbitrary()?;
                let to = place(input.arbitrary()?);
                let (len, flags): (u32, u8) = input.arbitrary()?;
                let bytes = descriptor(to, len, flags.into(), input.arbitrary()?);
                guest.write(at.descriptors + 16 * u64::from(index), &bytes);
            }
            // Sets the available index, and one entry of the available ring.
            4 => {
                let (index, slot, head): (u16, u8, u16) = input.arbitrary()?;
                guest.write(at.available + 4 + 2 * u64::from(slot), &head.to_le_bytes());
                guest.write(at.available + 2, &index.to_le_bytes());
            }
            // Serves available requests; returns a waiting one; or enables notifications, then
            // disables them.
            step => match (step, ring()) {
                (5, Some(ring)) => serve(&*ring, &*session, &mut held),
                (6, Some(ring)) => {
                    held.pop().into_iter().for_each(|back| ring.push_used(back));
                    ring.signal();
                }
                (_, Some(ring)) => {
                    let _ = ring.wait(false).and_then(|_| ring.enable_notifications());
                    let _ = ring.disable_notifications();
                }
                (_, None) => {}
            },
        }
    }
    Ok(())
}

/// Serves available requests, no more than a queue's length; those that wait are held.
fn serve(ring: &dyn Ring, session: &dyn Session, held: &mut Vec<Box<dyn Exchange>>) {
    let frame = |head: &[u8]| session.frame(head).unwrap_or(Some(head.len()));
    for _ in 0..1024 {
        let Ok(Some(mut exchange)) = ring.pop(&frame) else {
            break;
        };
        let (message, out) = exchange.split();
        assert!(message.bytes().len() <= message.size());
        let _ = session.role(message.bytes());
        let room = out.room();
        match session.serve(&Call::detached(), Patience::Full, message, out) {
            Ok(ServeOutcome::Parked) => held.push(exchange),
            Ok(other @ (ServeOutcome::WouldBlock | ServeOutcome::StartTls)) => {
                panic!("{other:?} with all patience")
            }
            Ok(ServeOutcome::Done) | Err(_) => {
                assert!(out.len() <= room && out.room() == room - out.len());
                ring.push_used(exchange);
            }
        }
    }
    ring.signal();
}
