//! The library over a tree in memory, a directory of this host, and a 9P server.

use std::future::Future;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, UNIX_EPOCH};

use barge_client::{Client, FileType, OpenOptions};
use engine::{Engine, Tuning};
use p9::server::{ExportList, NumericUsers, Server};
use sources::Source;
use transports::Addr;
use vfs::Export;

struct Service(Server);

impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

/// Runs `test` over each kind of source, every time on an empty tree.
fn over_each(test: impl Fn(&Client)) {
    test(&Client::open("mem:").expect("a tree"));
    let dir = tempfile::tempdir().expect("a directory");
    test(&Client::open(&dir.path().display().to_string()).expect("a directory"));

    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let source: Source = "mem:".parse().expect("a source");
    let fs = source.open(sources::local_options()).expect("a tree");
    let exports = ExportList(vec![Arc::new(Export::new("", fs))]);
    let options = p9::server::Options::default();
    let server = Server::new(Arc::new(exports), Arc::new(NumericUsers), options);
    let engine = Engine::new(Tuning::default()).expect("an engine");
    let listener = transports::Listener::bind(&Addr::Unix(socket.clone())).expect("bound");
    engine
        .listen(listener, Arc::new(Service(server)))
        .expect("listening");
    let url = format!("9p+unix:{}", socket.display());
    test(&Client::open(&url).expect("attached"));
    engine.stop();
}

#[test]
fn files_have_the_traits_of_std() {
    over_each(|client| {
        let mut file = client.create("f").expect("made");
        file.write_all(b"hello, world").expect("written");
        file.seek(SeekFrom::End(-5)).expect("sought");
        let mut end = String::new();
        file.read_to_string(&mut end).expect("read");
        assert_eq!(end, "world");
        file.seek(SeekFrom::Start(2)).expect("sought");
        assert_eq!(file.seek(SeekFrom::Current(-1)).expect("sought"), 1);
        assert!(file.seek(SeekFrom::Current(-2)).is_err());
        file.set_len(5).expect("cut");
        file.sync_all().expect("durable");
        assert_eq!(client.read("f").expect("read"), b"hello");

        let mut log = client
            .open_with("f", OpenOptions::new().append(true))
            .expect("open");
        log.write_all(b"!").expect("appended");
        assert_eq!(client.read("f").expect("read"), b"hello!");
        let new = client.open_with("f", OpenOptions::new().write(true).create_new(true));
        assert_eq!(
            new.err().map(|error| error.kind()),
            Some(ErrorKind::AlreadyExists)
        );
    });
}

#[test]
fn names_links_and_attributes() {
    over_each(|client| {
        client.create_dir("d").expect("made");
        client.write("d/one", "1").expect("written");
        client.symlink("../d/one", "d/link").expect("made");
        client.hard_link("d/one", "d/two").expect("made");
        assert_eq!(client.read("d/link").expect("followed"), b"1");
        assert_eq!(
            client.read_link("d/link").expect("a link"),
            Path::new("../d/one")
        );
        assert_eq!(client.metadata("d/two").expect("there").nlink(), 2);
        client.set_mode("d/two", 0o600).expect("set");
        assert_eq!(client.metadata("d/one").expect("there").mode(), 0o600);
        client.rename("d/two", "three").expect("moved");
        let found: Vec<PathBuf> = client
            .walk("")
            .map(|found| found.expect("found").0)
            .collect();
        assert_eq!(found, ["d", "d/link", "d/one", "three"].map(PathBuf::from));
        let listed = client.read_dir("d").expect("listed");
        let link = listed[0].metadata().expect("looked at");
        assert!(listed[0].name() == "link" && link.is_symlink());

        assert_eq!(
            client.remove_dir("d").expect_err("full").kind(),
            ErrorKind::DirectoryNotEmpty
        );
        for name in ["d/link", "d/one", "three"] {
            client.remove_file(name).expect("removed");
        }
        client.remove_dir("d").expect("removed");
        let gone = client.metadata("d").expect_err("gone");
        assert_eq!(gone.raw_os_error(), Some(2));
        let space = client.space("").expect("counted");
        assert!(space.free <= space.total);
        client.sync().expect("durable");
    });
}

#[test]
fn attributes_are_set() {
    over_each(|client| {
        client.write("f", "hello").expect("written");
        client.symlink("f", "link").expect("made");
        client.set_len("link", 3).expect("cut");
        assert_eq!(client.read("f").expect("read"), b"hel");
        let [old, older] = [1_000_000_000, 999_999_999].map(Duration::from_secs);
        let (old, older) = (UNIX_EPOCH + old, UNIX_EPOCH - older);
        client.set_times("f", Some(old), Some(older)).expect("set");
        let metadata = client.metadata("f").expect("there");
        assert_eq!((metadata.accessed(), metadata.modified()), (old, older));
        client.set_times("f", None, Some(old)).expect("set");
        let metadata = client.metadata("f").expect("there");
        assert_eq!((metadata.accessed(), metadata.modified()), (old, old));
        client.touch("f").expect("set");
        assert!(client.metadata("f").expect("there").modified() > old);
        let (uid, gid) = (metadata.uid(), metadata.gid());
        client.set_owner("f", Some(uid), Some(gid)).expect("kept");
        let types = ["f", "link", ""].map(|path| {
            let metadata = client.symlink_metadata(path).expect("there");
            (metadata.file_type(), metadata.st_mode() >> 12)
        });
        assert_eq!(
            types,
            [
                (FileType::File, 0o10),
                (FileType::Symlink, 0o12),
                (FileType::Directory, 0o4)
            ]
        );
    });
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn tickets_are_futures() {
    over_each(|client| {
        block_on(async {
            client.submit(|client| client.write("f", "hello")).await?;
            let file = client.open_file("f")?;
            let (first, second) = (file.submit_read(0, 2), file.submit_read(2, 9));
            assert_eq!((first.await?, second.await?), (b"he".into(), b"llo".into()));
            let missing = client.submit(|client| client.read("none")).await;
            let missing = missing.expect_err("no such file");
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            std::io::Result::Ok(())
        })
        .expect("read");
    });
}

#[test]
fn extended_attributes() {
    over_each(|client| {
        client.write("f", "").expect("written");
        match client.set_xattr("f", "user.note", b"text") {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return eprintln!("skipped: this file system has no extended attributes");
            }
            done => done.expect("set"),
        }
        assert_eq!(client.xattr("f", "user.note").expect("there"), b"text");
        assert_eq!(client.xattrs("f").expect("listed"), ["user.note"]);
        client.remove_xattr("f", "user.note").expect("removed");
        assert!(client.xattr("f", "user.note").is_err());
    });
}

#[test]
fn calls_in_flight_end_in_any_order_and_more_than_there_are_threads_are_taken() {
    over_each(|client| {
        let file = client.create("f").expect("made");
        let writes: Vec<_> = (0..100u8)
            .map(|at| file.submit_write(u64::from(at) * 100, vec![at; 100]))
            .collect();
        for write in writes.into_iter().rev() {
            assert_eq!(write.wait().expect("written"), 100);
        }
        file.submit_sync().wait().expect("durable");
        let reads: Vec<_> = (0..100).map(|at| file.submit_read(at * 100, 100)).collect();
        for (at, read) in reads.into_iter().enumerate().rev() {
            assert_eq!(read.wait().expect("read"), [at as u8; 100]);
        }
        // No thread waits for this read, and its file is dropped.
        drop(file.submit_read(0, 100));
        let read = client.open_file("f").expect("open").submit_read(9_950, 100);
        assert_eq!(read.wait().expect("read").len(), 50);
    });
}

#[test]
fn what_is_no_source_says_so() {
    for (text, kind) in [
        ("gopher://h", ErrorKind::InvalidInput),
        ("/no/such/place", ErrorKind::NotFound),
        ("9p+unix:/no/such/socket", ErrorKind::NotFound),
    ] {
        let error = Client::open(text).err().expect(text);
        assert_eq!(error.kind(), kind, "{error}");
    }
}
