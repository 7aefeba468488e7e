//! The last known locations of nodes with handles, for file systems without kernel handles.
//!
//! A page holds a node's number, its parent's, its name there, and the incarnation of the inode
//! number. It is only a hint: users open the name and compare the incarnation. With a [`Log`] the
//! book outlives the program.
//!
//! Lock order: the pages' mutex last, and held while the log is written.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use vfs::NodeId;

mod log;

use self::log::Log;

/// The most nodes that can be found by name after they were dropped: some 30 MiB.
const PAGES: usize = 1 << 18;

/// The locations of nodes. When it is full the oldest pages are dropped, and their handles become
/// stale unless the node is live.
#[derive(Default)]
pub(crate) struct Book(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    by_id: HashMap<NodeId, Page>,
    order: VecDeque<NodeId>,
    log: Option<Log>,
}

/// The location of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) parent: NodeId,
    pub(crate) name: Box<[u8]>,
    pub(crate) life: u64,
}

impl Book {
    /// Loads the pages recorded at `path`, and records there from now on.
    pub(crate) fn record_at(&self, path: &Path) -> io::Result<()> {
        let (log, recorded) = Log::open(path)?;
        let mut pages = self.pages();
        for (id, page) in recorded {
            pages.insert(id, page);
        }
        pages.log = Some(log);
        // Compacts repeated records.
        pages.tidy();
        Ok(())
    }

    /// Returns whether it outlives the program.
    pub(crate) fn is_recorded(&self) -> bool {
        self.pages().log.is_some()
    }

    /// Records the locations of a node and its ancestors, upwards to the first that is recorded
    /// already.
    pub(crate) fn note(&self, ancestors: impl Iterator<Item = (NodeId, Page)>) {
        let mut news = Vec::new();
        for (id, page) in ancestors {
            if !self.pages().insert(id, page.clone()) {
                break;
            }
            news.push((id, page));
        }
        self.pages().record(&news);
    }

    /// Records the location of one node.
    pub(crate) fn set(&self, id: NodeId, page: Page) {
        let mut pages = self.pages();
        if pages.insert(id, page.clone()) {
            pages.record(&[(id, page)]);
        }
    }

    /// Returns the location of a node, if it is recorded.
    pub(crate) fn page(&self, id: NodeId) -> Option<Page> {
        self.pages().by_id.get(&id).cloned()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("no panic holds it")
    }
}

impl Pages {
    /// Returns whether the page is new or has changed.
    fn insert(&mut self, id: NodeId, page: Page) -> bool {
        if let Some(known) = self.by_id.get_mut(&id) {
            let news = *known != page;
            *known = page;
            return news;
        }
        if self.order.len() >= PAGES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id);
        self.by_id.insert(id, page);
        true
    }

    /// Appends new pages to the log. A log with a write error is abandoned.
    fn record(&mut self, news: &[(NodeId, Page)]) {
        let Some(log) = &mut self.log else {
            return;
        };
        if news.is_empty() {
            return;
        }
        if log
            .append(news.iter().map(|(id, page)| (*id, page)))
            .is_err()
        {
            self.log = None;
            return;
        }
        self.tidy();
    }

    /// Rewrites the log when most of its records are superseded, or are of dropped pages.
    fn tidy(&mut self) {
        let live = self.order.len();
        let Some(log) = &mut self.log else {
            return;
        };
        if log.records() <= 2 * live.max(PAGES / 64) {
            return;
        }
        let by_id = &self.by_id;
        let pages = self
            .order
            .iter()
            .filter_map(|id| Some((*id, by_id.get(id)?)));
        if log.rewrite(pages).is_err() {
            self.log = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(parent: NodeId, name: &str) -> Page {
        Page {
            parent,
            name: name.as_bytes().into(),
            life: 7,
        }
    }

    fn put(book: &Book, id: NodeId, page: Page) {
        let mut pages = book.pages();
        pages.insert(id, page.clone());
        pages.record(&[(id, page)]);
    }

    fn open(path: &Path) -> Book {
        let book = Book::default();
        book.record_at(path).expect("opens");
        book
    }

    #[test]
    fn what_was_recorded_is_there_again_and_the_last_word_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let book = open(&path);
        put(&book, 1, page(9, "a"));
        put(&book, 2, page(1, "b"));
        put(&book, 1, page(9, "c"));
        // As after a kill: the log is not closed.
        std::fs::copy(&path, dir.path().join("left")).expect("copied");
        for name in ["left", "left"] {
            let again = open(&dir.path().join(name));
            assert_eq!(again.page(1), Some(page(9, "c")));
            assert_eq!(again.page(2), Some(page(1, "b")));
            assert_eq!(again.page(3), None);
        }
        assert!(Book::default().record_at(&path).is_err(), "it is in use");
    }

    #[test]
    fn a_log_of_old_words_is_written_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let book = open(&path);
        for turn in 0..PAGES / 16 {
            put(&book, 1 + turn as u64 % 2, page(9, &format!("name {turn}")));
        }
        let size = std::fs::metadata(&path).expect("there").len();
        assert!(size < (PAGES / 16 * 40) as u64, "{size}");
        let last = book.page(2);
        drop(book);
        let again = open(&path);
        assert_eq!(again.page(2), last);
        put(&again, 3, page(1, "new"));
        drop(again);
        assert_eq!(open(&path).page(3), Some(page(1, "new")));
    }

    #[test]
    fn of_a_torn_log_what_is_whole_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let book = open(&path);
        put(&book, 1, page(9, "a"));
        let whole = std::fs::metadata(&path).expect("there").len() as usize;
        put(&book, 2, page(1, "bcd"));
        drop(book);
        let bytes = std::fs::read(&path).expect("read");
        for len in 0..bytes.len() {
            std::fs::write(&path, &bytes[..len]).expect("written");
            let again = open(&path);
            assert_eq!(again.page(1).is_some(), len >= whole, "{len}");
            assert_eq!(again.page(2), None);
            put(&again, 3, page(1, "e"));
            drop(again);
            assert_eq!(open(&path).page(3), Some(page(1, "e")), "{len}");
        }
        let mut flipped = bytes.clone();
        flipped[whole + 9] ^= 1;
        std::fs::write(&path, &flipped).expect("written");
        assert_eq!(open(&path).page(2), None);
    }
}
