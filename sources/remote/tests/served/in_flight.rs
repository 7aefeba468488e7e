//! The limit on bytes of payload in flight.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use p9::Kind;
use remote::ninep::{Options, Remote9p};
use transports::{Link, StreamLink};
use vfs::{Caller, FileSystem, Name, OpenFlags};
use vfs_testkit::context::{TestNode, ok, pattern};
use wire::payload::{SlicePayload, SliceSink};

use crate::landing::{receive, with_cx};
use crate::net::Served;

const IO: usize = 8168;

const MSIZE: u32 = IO as u32 + 24;

/// The most messages of a transfer in flight.
const MESSAGES: usize = 8;

/// The payload in flight between a client and a server, in bytes.
#[derive(Default)]
struct Traffic {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Traffic {
    /// Relays and counts between the two.
    fn watch(self: &Arc<Traffic>, mut client: UnixStream, server: StreamLink) {
        let server = Arc::new(server);
        let (traffic, mut requests, to) = (
            self.clone(),
            client.try_clone().expect("a descriptor"),
            server.clone(),
        );
        thread::spawn(move || {
            let (mut buffer, mut come) = (vec![0; 1 << 20], 0);
            while let Ok(got @ 1..) = requests.read(&mut buffer[come..]) {
                come += got;
                let mut whole = 0;
                while let Some(size) = buffer[whole..come].first_chunk() {
                    let size = u32::from_le_bytes(*size) as usize;
                    let Some(message) = buffer[whole..come].get(..size) else {
                        break;
                    };
                    if [Kind::Read as u8, Kind::Write as u8].contains(&message[4]) {
                        traffic.asked(number(&message[19..]));
                    }
                    whole += size;
                }
                if to.send(&buffer[..whole], true).is_err() {
                    break;
                }
                buffer.copy_within(whole..come, 0);
                come -= whole;
            }
            to.hang_up();
        });
        let traffic = self.clone();
        thread::spawn(move || {
            let mut message = Vec::new();
            while receive(&server, &mut message) {
                if [Kind::Read.reply(), Kind::Write.reply()].contains(&message[4]) {
                    let count = number(&message[7..]);
                    traffic.now.fetch_sub(count, Ordering::SeqCst);
                }
                if client.write_all(&std::mem::take(&mut message)).is_err() {
                    break;
                }
            }
        });
    }

    fn asked(&self, count: usize) {
        let now = self.now.fetch_add(count, Ordering::SeqCst) + count;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    /// Returns the maximum so far, and resets it.
    fn most(&self) -> usize {
        self.most.swap(0, Ordering::SeqCst)
    }
}

fn number(bytes: &[u8]) -> usize {
    let bytes = bytes.first_chunk().expect("a whole message");
    u32::from_le_bytes(*bytes) as usize
}

#[test]
fn payloads_on_their_way_are_bounded_and_one_message_always_goes() {
    let served = Served::new();
    let content = pattern(20 * IO, 7);
    for (in_flight, most) in [
        (Some(0), IO),
        (Some(IO - 1), IO),
        (Some(3 * IO + 100), 3 * IO),
        (None, MESSAGES * IO),
    ] {
        let traffic = Arc::new(Traffic::default());
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        traffic.watch(theirs, served.link());
        let link = StreamLink::new(OwnedFd::from(ours), "somebody").expect("a link");
        let options = Options {
            msize: MSIZE,
            in_flight,
            ..Options::default()
        };
        let tree = Remote9p::connect(link, options).expect("attached");
        let who = Caller::ROOT;
        let node = ok(with_cx(|cx| tree.root(cx)));
        drop(TestNode { node, caller: who }.file("file", b""));
        let file = ok(with_cx(|cx| {
            let found = tree.root(cx)?.lookup(cx, Name::new(b"file")?)?;
            let both = OpenFlags::READ | OpenFlags::WRITE;
            found.node.open(cx, both)
        }));
        let written = with_cx(|cx| file.write(cx, 0, &mut SlicePayload::new(&content)));
        assert_eq!(ok(written), content.len());
        // Each payload is sent separately, and may be answered before the next is sent.
        assert!((IO..=most).contains(&traffic.most()), "{in_flight:?}");
        let mut memory = vec![0; content.len()];
        let mut sink = SliceSink::new(&mut memory);
        let read = with_cx(|cx| file.read(cx, 0, content.len(), &mut sink));
        assert!(ok(read) == content.len() && memory == content);
        assert_eq!(traffic.most(), most, "{in_flight:?}");
    }
}
