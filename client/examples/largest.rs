//! Finds the largest file of a source and reads it with several calls in flight:
//! `cargo run -p barge-client --example largest -- 9p://HOST:PORT/ANAME`.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use barge_client::Client;

/// Bytes asked for at a time, and how many such calls are in flight.
const PIECE: usize = 1 << 20;
const AT_A_TIME: usize = 8;

fn main() -> io::Result<()> {
    let source = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let client = Client::open(&source)?;
    let files = client.walk("").filter_map(Result::ok);
    let Some((path, metadata)) = files
        .filter(|(_, metadata)| metadata.is_file())
        .max_by_key(|(_, metadata)| metadata.len())
    else {
        println!("{source} has no files");
        return Ok(());
    };
    let file = client.open_file(&path)?;
    let started = Instant::now();
    let mut left = (0..metadata.len()).step_by(PIECE);
    let mut pending = VecDeque::new();
    let mut got = 0;
    loop {
        while pending.len() < AT_A_TIME
            && let Some(at) = left.next()
        {
            pending.push_back(file.submit_read(at, PIECE));
        }
        match pending.pop_front() {
            Some(read) => got += read.wait()?.len(),
            None => break,
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{}: {got} bytes in {seconds:.3} s", path.display());
    Ok(())
}
