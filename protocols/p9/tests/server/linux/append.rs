//! Files that are open to append, by clients that write back pages and by clients that append.

use std::collections::BTreeSet;

use super::*;

const PAGE: usize = 4096;

/// Opens the file `name` as `fid`.
fn opened(net: &Net, fid: Fid, name: &str, flags: u32) {
    net.walk(ROOT, fid, name);
    open(net, fid, flags);
}

fn content(net: &Net, name: &str) -> Vec<u8> {
    opened(net, FREE, name, O_RDONLY);
    let mut content = Vec::new();
    loop {
        let piece = net.read(FREE, content.len() as u64, 8000);
        if piece.is_empty() {
            net.clunk(FREE);
            return content;
        }
        content.extend_from_slice(piece);
    }
}

/// Appends 5 KiB of each letter and writes it back each time, as Linux 6.12 does: from the start of
/// the page.
#[track_caller]
fn append_and_sync(net: &Net, fid: Fid, file: &mut Vec<u8>, letters: &[u8]) {
    for letter in letters {
        let from = file.len() / PAGE * PAGE;
        file.resize(file.len() + 5120, *letter);
        let count = net.write(fid, from as u64, &file[from..]);
        assert_eq!(count as usize, file.len() - from);
    }
}

#[test]
fn linux_21_pages_that_are_written_back_through_an_appending_fid_stay_in_their_place() {
    let net = linux();
    let mut file = Vec::new();
    create(&net, ROOT, Fid(1), "new", O_RDWR | O_APPEND);
    append_and_sync(&net, Fid(1), &mut file, b"ABC");
    assert_eq!(content(&net, "new"), file);
    net.clunk(Fid(1));
    // An existing file, and one that another fid has created meanwhile.
    opened(&net, Fid(1), "new", O_RDWR | O_APPEND);
    append_and_sync(&net, Fid(1), &mut file, b"DE");
    opened(&net, Fid(2), "new", O_RDWR);
    net.write(Fid(2), file.len() as u64, b"behind");
    file.extend_from_slice(b"behind");
    opened(&net, Fid(3), "new", O_RDWR | O_APPEND);
    append_and_sync(&net, Fid(1), &mut file, b"F");
    append_and_sync(&net, Fid(3), &mut file, b"G");
    // A program changes earlier bytes through another descriptor or a mapping.
    file[100..200].fill(b'x');
    net.write(Fid(3), 0, &file[..PAGE]);
    assert_eq!(content(&net, "new"), file);
    // Truncated by its client, appending continues from there.
    net.ok(&setattr(Fid(2), 1 << 3, 0, 1000));
    file.truncate(1000);
    append_and_sync(&net, Fid(1), &mut file, b"HI");
    assert_eq!(content(&net, "new"), file);
}

#[test]
fn linux_22_appends_of_clients_that_do_not_cache_go_to_the_end_whatever_they_know_of_it() {
    for flags in [O_WRONLY | O_APPEND, O_RDWR | O_APPEND] {
        let server = server(Options::default());
        let (one, other) = (
            Net::on(&server, Dialect::Linux),
            Net::on(&server, Dialect::Linux),
        );
        create(&one, ROOT, Fid(1), "log", flags);
        opened(&other, Fid(1), "log", flags);
        one.write(Fid(1), 0, b"aa");
        // At the ends that each client knows, which are before the file's.
        other.write(Fid(1), 0, b"bbb");
        one.write(Fid(1), 2, b"cc");
        other.write(Fid(1), 3, b"ddd");
        assert_eq!(content(&one, "log"), b"aabbbccddd");
        // One client has read the size since.
        one.write(Fid(1), 10, b"e");
        other.write(Fid(1), 6, b"f");
        one.write(Fid(1), 11, b"g");
        assert_eq!(content(&one, "log"), b"aabbbccdddefg");
        // A third client truncates it, as copytruncate of logrotate does: no hole is left.
        let third = Net::on(&server, Dialect::Linux);
        opened(&third, Fid(1), "log", O_RDWR | O_TRUNC);
        one.write(Fid(1), 12, b"h");
        other.write(Fid(1), 7, b"i");
        assert_eq!(content(&one, "log"), b"hi");
    }
}

#[test]
fn linux_23_a_client_that_opens_for_writing_alone_appends_wherever_it_says() {
    let net = linux();
    create(&net, ROOT, Fid(1), "log", O_RDWR | O_APPEND);
    net.write(Fid(1), 0, b"one");
    create(&net, ROOT, Fid(2), "other", O_WRONLY);
    net.write(Fid(1), 0, b"two");
    assert_eq!(content(&net, "log"), b"onetwo");
}

/// A program's bytes in a client's page cache.
struct Cached {
    net: Net,
    file: Vec<u8>,
    dirty: BTreeSet<usize>,
    open: Vec<Fid>,
    next: u32,
    random: u64,
}

impl Cached {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit.max(1) as u64) as usize
    }

    fn put(&mut self, at: usize, len: usize) {
        if len == 0 {
            return;
        }
        let end = at + len;
        self.file.resize(self.file.len().max(end), 0);
        let stamp = self.below(256) as u8;
        for (n, byte) in self.file[at..end].iter_mut().enumerate() {
            *byte = stamp ^ (n / 16) as u8;
        }
        self.dirty.extend(at / PAGE..end.div_ceil(PAGE));
    }

    /// Writes back some dirty pages, in any order, through any fid.
    fn write_back(&mut self, most: usize) {
        for _ in 0..most.min(self.dirty.len()) {
            let which = self.below(self.dirty.len());
            let page = *self.dirty.iter().nth(which).expect("there are so many");
            self.dirty.remove(&page);
            let range = page * PAGE..self.file.len().min((page + 1) * PAGE);
            let which = self.below(self.open.len());
            let fid = self.open[which];
            let count = self
                .net
                .write(fid, range.start as u64, &self.file[range.clone()]);
            assert_eq!(count as usize, range.len());
        }
    }

    fn open(&mut self) {
        let flags = [O_RDWR, O_RDWR | O_APPEND][self.below(2)];
        self.next += 1;
        opened(&self.net, Fid(self.next), "f", flags);
        self.open.push(Fid(self.next));
    }

    fn step(&mut self) {
        let size = self.file.len();
        let len = self.below(3 * PAGE);
        match self.below(12) {
            0..5 => self.put(size, len),
            5..7 => {
                let at = self.below(size);
                self.put(at, len.min(size - at));
            }
            7..9 => self.write_back(len % 4),
            9 => {
                // v9fs writes back first, and has no page beyond the end.
                self.write_back(usize::MAX);
                let to = self.below(size + PAGE);
                self.net.ok(&setattr(self.open[0], 1 << 3, 0, to as u64));
                self.file.resize(to, 0);
            }
            10 => self.open(),
            _ => {
                // All pages are written back before the last fid is clunked.
                self.write_back(usize::MAX);
                let which = self.below(self.open.len());
                self.net.clunk(self.open.swap_remove(which));
                if self.open.is_empty() {
                    self.open();
                }
            }
        }
    }
}

#[test]
fn a_page_cache_above_appending_fids_agrees_with_the_file() {
    for seed in 1..=60u64 {
        let net = linux();
        create(&net, ROOT, Fid(1000), "f", O_RDWR | O_APPEND);
        let mut client = Cached {
            net,
            file: Vec::new(),
            dirty: BTreeSet::new(),
            open: vec![Fid(1000)],
            next: 1000,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        for _ in 0..120 {
            client.step();
        }
        client.write_back(usize::MAX);
        let found = content(&client.net, "f");
        assert!(found == client.file, "seed {seed}: the file differs");
    }
}
