//! Measures the cost of requests over a link of 20 ms and 1 Gbit/s: separate and coalesced pieces,
//! and read-ahead of several lengths.
//!
//! `cargo run --release -p barge-objects --example requests`

use std::time::{Duration, Instant};

use image::{Piece, RangeSource};
use objects::{Object, Tuning};

#[allow(dead_code, reason = "faults are for the tests")]
#[path = "../tests/it/server.rs"]
mod server;

use server::{Link, Server};

const LINK: Link = Link {
    latency: Duration::from_millis(20),
    bandwidth: 125_000_000,
};

const LEN: usize = 64 << 20;

/// The number of runs of each measurement: the median, minimum and maximum are shown.
const TIMES: usize = 5;

fn main() {
    let server = Server::behind(Some(LINK), vec![7; LEN]);
    let url = server.url().parse().expect("a URL");
    let object = Object::connect(&url, Tuning::default(), None).expect("connected");
    println!(
        "16 pieces of 16 KiB, ms: apart (16 requests, 8 at a time), and in one request with what is between"
    );
    for gap in [16, 32, 64, 128, 256, 512] {
        let step = (gap + 16) << 10;
        let apart = timed(|| {
            // Each piece as a separate request, all of them concurrently.
            std::thread::scope(|scope| {
                for first in 0..8 {
                    let object = &object;
                    scope.spawn(move || {
                        for piece in [first, first + 8] {
                            read(object, (piece + 1) * step, 16 << 10);
                        }
                    });
                }
            });
        });
        let together = timed(|| read(&object, step, 16 * step));
        println!("{gap:4} KiB apart: {apart}    together: {together}");
    }
    println!("{} MiB in runs, ms", LEN >> 20);
    for run in [1, 2, 4, 8] {
        let took = timed(|| {
            for at in (0..LEN).step_by(run << 20) {
                read(&object, at, run << 20);
            }
        });
        println!("{run} MiB: {took}");
    }
}

fn read(object: &Object, at: usize, len: usize) {
    let mut into = vec![0; len];
    let at = at as u64;
    let piece = Piece {
        offset: at,
        buffer: &mut into,
    };
    object.read(&mut [piece]).expect("read");
}

fn timed(mut what: impl FnMut()) -> String {
    what();
    let mut took: Vec<_> = (0..TIMES)
        .map(|_| {
            let start = Instant::now();
            what();
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    took.sort_by(f64::total_cmp);
    let (least, most) = (took[0], took[TIMES - 1]);
    format!("{:7.1} ({least:.1}-{most:.1})", took[TIMES / 2])
}
