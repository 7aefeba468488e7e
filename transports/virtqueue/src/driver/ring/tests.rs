//! A lying device, and one that disconnects.

use std::fs::File;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::FileOffset;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

use super::*;
use crate::driver::Ticket;

/// Creates a queue, and the device's end of its connection.
fn queue() -> (Queue, UnixStream) {
    let layout = Layout::new(2, 4096);
    let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("a file"));
    ftruncate(&file, layout.bytes() as u64).expect("sized");
    let memory = MmapRegion::from_file(FileOffset::new(file, 0), layout.bytes());
    let event = || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).expect("an event");
    let (ours, device) = UnixStream::pair().expect("a socket pair");
    let (kick, call) = (event(), event());
    let queue = Queue::new(Shared {
        memory: Arc::new(memory.expect("mapped")),
        begin: 0,
        layout,
        event_idx: false,
        events: Events::new(&call, &ours).expect("events"),
        kick,
        call,
        waiting: WaitMode::Adaptive(Duration::ZERO),
        disconnected: Arc::default(),
    });
    (queue, device)
}

const ASKED: Lengths = Lengths {
    request: 40,
    request_payload: 0,
    reply: 16,
    reply_payload: 100,
};

impl Queue {
    fn asked(&self) -> Ticket<'_> {
        self.chain(|| false).expect("room").submit(ASKED)
    }

    /// Acts as the device: writes used elements (id and length).
    fn use_up(&self, used: &[(u32, u32)], index: u16) {
        let at = self.shared.layout.used();
        for (position, (id, len)) in used.iter().enumerate() {
            let element = [id.to_le_bytes(), len.to_le_bytes()].concat();
            self.store(at + 4 + 8 * position, &element);
        }
        self.shared_u16(at + 2).store(index, Ordering::Release);
        self.shared.call.write(1).expect("told");
    }
}

#[test]
fn what_the_device_does_not_have_ends_the_queue() {
    for (used, index) in [
        // Longer than the room of the reply, or than the memory.
        (&[(0, 117)][..], 1),
        (&[(0, u32::MAX)], 1),
        // Not a head descriptor, or not in flight.
        (&[(1, 0)], 1),
        (&[(8, 0)], 1),
        (&[(16, 0)], 1),
        (&[(u32::MAX, 0)], 1),
        // The same request twice, and more elements than possible.
        (&[(0, 0), (0, 0)], 2),
        (&[(0, 0)], 40_000),
        (&[(0, 0)], u16::MAX),
    ] {
        let (queue, _device) = queue();
        let (ticket, forgotten) = (queue.asked(), queue.asked());
        drop(forgotten);
        queue.use_up(used, index);
        // An earlier reply may still be received.
        let _ = ticket.wait(|| false);
        let late = queue
            .chain(|| false)
            .map(|chain| chain.submit(ASKED).wait(|| false).is_ok());
        assert!(!late.unwrap_or(false), "{used:?} {index}");
        assert!(queue.state().failed.is_some(), "{used:?} {index}");
    }
}

#[test]
fn all_who_wait_hear_of_the_end() {
    let (queue, device) = queue();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    queue
                        .chain(|| false)?
                        .submit(ASKED)
                        .wait(|| false)
                        .map(drop)
                })
            })
            .collect();
        // There is no slot for a third request, whose thread waits for one.
        let third = scope.spawn(|| {
            loop {
                drop(queue.chain(|| false)?.submit(ASKED));
            }
        });
        queue.use_up(&[(u32::MAX, 0)], 1);
        let failed = |error: io::Error| assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        for waited in waiting {
            failed(waited.join().expect("no panic").expect_err("no reply"));
        }
        let third: io::Result<()> = third.join().expect("no panic");
        failed(third.expect_err("no room"));
    });
    drop(device);
}

#[test]
fn a_reply_is_as_long_as_it_was_said_to_be_first() {
    let (queue, _device) = queue();
    let ticket = queue.asked();
    queue.use_up(&[(0, 116)], 1);
    let reply = ticket.wait(|| false).expect("a reply");
    // The device continues to write.
    queue.use_up(&[(0, u32::MAX)], 1);
    assert_eq!((reply.len(), reply.inline(&mut [0; 512])), (116, 16));
    reply.payload(0, &mut [0; 100]);
    drop(reply);
    assert!(queue.state().failed.is_none());
}
