//! What a read costs the client: a memory tree served in this process over a Unix socket pair.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use p9::server::{ExportList, NumericUsers, Options, Server};
use p9::{Dialect, Fid, Names, Tmessage as T, Uid};
use remote::Pipe;
use vfs::{Export, Time};

struct Service(Server);
impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

fn cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() {
    let tree = memory::Memory::new(Arc::new(|| Time { sec: 1, nsec: 0 }));
    let server = Server::new(
        Arc::new(ExportList(vec![Arc::new(Export::new("", tree))])),
        Arc::new(NumericUsers),
        Options::default(),
    );
    let engine = engine::Engine::new(engine::Tuning::default()).expect("an engine");
    let (ours, theirs) = transports::pair().expect("a pair");
    engine
        .connect(Box::new(theirs), &Service(server))
        .expect("connects");
    let pipe = Pipe::open(ours, Dialect::Linux, (1 << 20) + 24).expect("a pipe");
    let (root, file) = (Fid(1000), Fid(1001));
    pipe.call(&T::Attach {
        fid: root,
        afid: Fid::NONE,
        uname: b"",
        aname: b"",
        n_uname: Uid(0),
    })
    .expect("attach");
    pipe.call(&T::Walk {
        fid: root,
        newfid: file,
        names: Names::new(&[]),
    })
    .expect("walk");
    pipe.call(&T::Lcreate {
        fid: file,
        name: b"f",
        flags: 2,
        mode: 0o644,
        gid: 0,
    })
    .expect("create");
    let block = vec![1; 1 << 20];
    pipe.call(&T::Write {
        fid: file,
        offset: 0,
        data: p9::Data(&block),
    })
    .expect("write");
    let arg = |n| {
        std::env::args()
            .nth(n)
            .and_then(|a| a.parse::<usize>().ok())
    };
    let sizes = arg(1).map_or(vec![0u32, 4096, 131072], |s| vec![s as u32]);
    for size in sizes {
        for depth in arg(2).map_or(vec![1usize, 16, 64], |d| vec![d]) {
            let rounds = if size > 10000 { 20_000 } else { 200_000 };
            let mut sum = 0u64;
            let (wall, start) = (Instant::now(), cpu());
            let mut flight = VecDeque::with_capacity(depth);
            for i in 0..rounds {
                if flight.len() == depth {
                    let reply = pipe.wait(flight.pop_front().expect("some")).expect("read");
                    sum += reply.data().len() as u64;
                }
                let offset = (i as u64 % 8) * u64::from(size);
                flight.push_back(
                    pipe.submit(&T::Read {
                        fid: file,
                        offset,
                        count: size,
                    })
                    .expect("submit"),
                );
            }
            for ticket in flight {
                sum += pipe.wait(ticket).expect("read").data().len() as u64;
            }
            assert_eq!(sum, rounds as u64 * u64::from(size));
            println!(
                "read {size:>6} depth {depth:>2}: client cpu {:.3} us/op, wall {:.3} us/op",
                (cpu() - start) * 1e6 / rounds as f64,
                wall.elapsed().as_secs_f64() * 1e6 / rounds as f64
            );
        }
    }
    std::process::exit(0);
}
