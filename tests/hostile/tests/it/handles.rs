//! File handles that a client forges, changes or uses elsewhere, and clients that take all file
//! descriptors.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hostdir::HostDir;
use hostile::raw_client::{Bystander, ROOT, RawClient};
use hostile::rpc::{self, MOUNT, NFS, decode_opaque, opaque, results, word, words};
use hostile::server::{Server, Transport, host_dir, tuning};
use layers::{Bundle, CallLog, ReadOnly, stack};
use nfs::server::Options;
use p9::{Data, Fid, Tmessage as T};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sys::handle::FileHandle;
use transports::Addr;
use vfs::{Errno, Export, FileSystem, HandleKey, Op, siphash};

const OK: u32 = 0;

/// NFS as an engine service.
struct Nfs(Arc<nfs::server::Server>);

impl engine::Service for Nfs {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

fn serve(fs: Arc<dyn FileSystem>) -> Server {
    let options = Options::new(7, Arc::new(|| Duration::from_secs(1)));
    let nfs = nfs::server::Server::new(Arc::new(Export::new("", fs)), options);
    Server::with_service(Transport::Tcp, tuning(), Arc::new(Nfs(nfs)))
}

/// Exports `dir` as the program does under `name`: with a key derived from one secret.
fn export(dir: &Path, name: &str) -> Arc<HostDir> {
    static SECRET: OnceLock<HandleKey> = OnceLock::new();
    let secret = SECRET.get_or_init(|| HandleKey::new(sys::random::bytes().expect("random")));
    let options = hostdir::Options {
        identity: hostdir::Identity::Fixed,
        key: Some(secret.derive("export", &[name.as_bytes()])),
        ..Default::default()
    };
    HostDir::open(dir, options).expect("a directory")
}

/// A client with hand-made calls as root.
struct Client(TcpStream);

impl Client {
    fn new(server: &Server) -> Client {
        let Addr::Tcp { host, port } = &server.addr else {
            panic!("not TCP");
        };
        Client(TcpStream::connect((host.as_str(), *port)).expect("connected"))
    }

    /// Calls a procedure and returns the results of an accepted reply.
    fn call(&mut self, program: u32, version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
        let call = rpc::call(7, (program, version, procedure), arguments);
        self.0.write_all(&call).expect("sent");
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("answered");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.0.read_exact(&mut reply).expect("answered");
        results(&reply).to_vec()
    }

    /// Returns the file handle of `path`.
    fn handle(&mut self, path: &str) -> Vec<u8> {
        let found = self.call(MOUNT, 3, 1, &opaque(b"/"));
        assert_eq!(word(&found), OK);
        let mut handle = decode_opaque(&found[4..]);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = self.call(
                NFS,
                3,
                3,
                &[opaque(&handle), opaque(name.as_bytes())].concat(),
            );
            assert_eq!(word(&found), OK, "{path}");
            handle = decode_opaque(&found[4..]);
        }
        handle
    }

    /// Returns the statuses of a file handle: of v3's GETATTR, and of PUTFH and GETATTR, which v4.0
    /// and v4.1 share.
    fn statuses(&mut self, handle: &[u8]) -> [u32; 2] {
        let v3 = word(&self.call(NFS, 3, 1, &opaque(handle)));
        // PUTFH, and GETATTR of the type.
        let ops = rpc::Ops::default().op(22, &[]).opaque(handle);
        let compound = ops.op(9, &[1, 1 << 1]).compound(0);
        [v3, word(&self.call(NFS, 4, 1, &compound))]
    }

    fn write(&mut self, handle: &[u8], data: &[u8]) -> u32 {
        let numbers = words(&[0, 0, data.len() as u32, 2]);
        word(&self.call(NFS, 3, 7, &[opaque(handle), numbers, opaque(data)].concat()))
    }

    #[track_caller]
    fn assert_refused(&mut self, handle: &[u8], what: &str) {
        for status in self.statuses(handle) {
            // INVAL, STALE, BADHANDLE.
            assert!([22, 70, 10001].contains(&status), "{what}: {status}");
        }
    }
}

/// Makes a directory with an export and a file `secret` next to it.
fn with_secret() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("export")).expect("made");
    for file in ["export/public", "secret"] {
        std::fs::write(dir.path().join(file), file).expect("written");
    }
    dir
}

/// Returns the facts of a file that every user of the machine can learn: its inode number, and its
/// kernel file handle.
fn public(path: &Path) -> Option<(u64, FileHandle)> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::File::open(path).expect("opened");
    let ino = file.metadata().expect("attributes").ino();
    Some((ino, FileHandle::of(file.as_fd()).ok()?))
}

/// Returns handle bodies of `path` in all known formats, former and current.
fn bodies(path: &Path) -> Vec<Vec<u8>> {
    let (ino, kernel) = public(path).expect("a handle");
    let kind = kernel.kind() as u8;
    let words = kernel.bytes().len() as u8 / 4;
    vec![
        [&[1, 0, 0, kind], &ino.to_le_bytes()[..], kernel.bytes()].concat(),
        [
            &[0x10 | words, kind],
            &ino.to_le_bytes()[..],
            kernel.bytes(),
        ]
        .concat(),
    ]
}

/// Returns keys derived from data that every user of the machine can read.
fn public_keys() -> Vec<[u8; 16]> {
    let id = std::fs::read("/etc/machine-id").unwrap_or_default();
    let half = |which: u8| {
        let mut key = *b"barge hostdir k ";
        key[15] = which;
        siphash::hash(&key, &id).to_le_bytes()
    };
    let derived = [half(1), half(2)].concat();
    vec![
        derived.try_into().expect("16 bytes"),
        [0; 16],
        *b"barge hostdir k ",
    ]
}

#[test]
fn handles_made_of_what_everybody_knows_lead_nowhere() {
    let dir = with_secret();
    if public(&dir.path().join("secret")).is_none() {
        return eprintln!("skipped: this file system has no kernel handles");
    }
    let server = serve(export(&dir.path().join("export"), ""));
    let mut client = Client::new(&server);
    for file in ["secret", "export/public", "export", "."] {
        for body in bodies(&dir.path().join(file)) {
            for key in public_keys() {
                let stamp = siphash::hash(&key, &body).to_le_bytes();
                let old = [&[1], &body[..], &stamp].concat();
                client.assert_refused(&old, file);
                let mut long = [0; 32];
                long[..16].copy_from_slice(&key);
                let new = HandleKey::new(long).seal(&body, 54).expect("it fits");
                client.assert_refused(&[&[1], new.bytes()].concat(), file);
            }
        }
    }
    let handle = client.handle("public");
    assert_eq!(client.statuses(&handle), [OK; 2]);
}

#[test]
fn handles_made_up_or_altered_lead_nowhere() {
    let dir = with_secret();
    let server = serve(export(&dir.path().join("export"), ""));
    let mut client = Client::new(&server);
    for path in ["", "public"] {
        let good = client.handle(path);
        assert_eq!(client.statuses(&good), [OK; 2]);
        for bit in 0..8 * good.len() {
            let mut forged = good.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            client.assert_refused(&forged, &format!("{path} bit {bit}"));
        }
        for len in 0..good.len() {
            client.assert_refused(&good[..len], &format!("{path} cut to {len}"));
        }
    }
    let mut runner = TestRunner::new(Config::with_cases(1000));
    let client = std::cell::RefCell::new(client);
    let made_up = proptest::collection::vec(any::<u8>(), 1..64);
    let ran = runner.run(&made_up, |mut bytes| {
        client.borrow_mut().assert_refused(&bytes, "random");
        bytes[0] = 1;
        client
            .borrow_mut()
            .assert_refused(&bytes, "random behind the form");
        Ok(())
    });
    ran.expect("refused");
}

#[test]
fn a_handle_of_one_export_is_good_in_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["kept", "shared"] {
        std::fs::create_dir(dir.path().join(name)).expect("made");
        std::fs::write(dir.path().join(name).join("f"), "as it was").expect("written");
    }
    let member = |name: &str, of: &str, read_only: bool| {
        let fs: Arc<dyn FileSystem> = export(&dir.path().join(of), name);
        let fs = if read_only { stack(fs, ReadOnly) } else { fs };
        Arc::new(Export::new(name, fs))
    };
    // A writable export, a read-only one, and a read-only view of the writable one.
    let members = [
        member("rw", "shared", false),
        member("ro", "kept", true),
        member("view", "shared", true),
    ];
    let bundle = Bundle::new(&members, vfs::Time::default()).expect("names");
    let server = serve(bundle);
    let mut client = Client::new(&server);
    let writable = client.handle("rw/f");
    for name in ["ro/f", "view/f", "ro", "view"] {
        let handle = client.handle(name);
        assert_eq!(client.statuses(&handle), [OK; 2]);
        // The format, and the number of the export.
        let moved = [&writable[..9], &handle[9..]].concat();
        assert_ne!(moved, handle);
        client.assert_refused(&moved, name);
        assert_ne!(client.write(&moved, b"changed"), OK, "{name}");
        assert_ne!(client.write(&handle, b"changed"), OK, "{name}");
    }
    assert_eq!(client.write(&writable, b"written"), OK);
    let kept = std::fs::read(dir.path().join("kept/f")).expect("read");
    assert_eq!(kept, b"as it was");

    // A file next to an export, with a handle issued by an export that contains it.
    let other = serve(export(dir.path(), ""));
    let mut client = Client::new(&other);
    let outside = client.handle("kept/f");
    assert_eq!(client.statuses(&outside), [OK; 2]);
    let narrow = serve(export(&dir.path().join("shared"), ""));
    Client::new(&narrow).assert_refused(&outside, "of a wider export");
}

#[test]
fn what_the_host_has_moved_out_is_out_of_reach_for_handles() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    let dir = with_secret();
    std::fs::create_dir(dir.path().join("export/dir")).expect("made");
    let top = dir.path().join("export");
    let server = serve(export(&top, "a"));
    let mut client = Client::new(&server);
    let handles = ["public", "dir"].map(|path| client.handle(path));
    drop((client, server));
    for name in ["public", "dir"] {
        std::fs::rename(top.join(name), dir.path().join(name)).expect("moved");
    }
    let server = serve(export(&top, "a"));
    let mut client = Client::new(&server);
    for handle in &handles {
        client.assert_refused(handle, "moved out");
    }
    std::fs::rename(dir.path().join("public"), top.join("dir")).expect("moved");
    assert_eq!(
        client.statuses(&handles[0]),
        [OK; 2],
        "moved back, by another name"
    );
}

const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[test]
fn open_directories_do_not_take_all_descriptors() {
    let dir = tempfile::tempdir().expect("a directory");
    for n in 0..20 {
        std::fs::create_dir(dir.path().join(format!("d{n}"))).expect("made");
        std::fs::write(dir.path().join(format!("d{n}/f")), "x").expect("written");
    }
    let served = host_dir(dir.path(), Some(64));
    let server = Server::new(Transport::Tcp, served.clone());
    let mut bystander = Bystander::new(&server.addr);
    let mut peer = RawClient::connect_attached_from(ATTACKER, &server.addr, 8192);
    let mut opened = 0;
    for fid in 1..400 {
        let name = format!("d{}", fid % 20);
        let done = peer.try_walk(ROOT, Fid(fid), &[name.as_bytes()]);
        match done.and_then(|_| peer.try_open(Fid(fid), 0)) {
            Ok(()) => {
                let (fid, offset, count) = (Fid(fid), 0, 4096);
                peer.expect_ok(&T::Readdir { fid, offset, count });
                opened += 1;
            }
            // Without kernel file handles there is a limit, for this client alone.
            Err(errno) => assert_eq!(errno, Errno::EMFILE),
        }
        bystander.assert_unaffected();
        assert!(served.open_descriptors() <= 64 + 1);
    }
    assert!(opened > 20, "only {opened}");
    Bystander::new(&server.addr).assert_unaffected();
}

#[test]
fn files_without_names_do_not_take_all_descriptors() {
    let dir = tempfile::tempdir().expect("a directory");
    let served = host_dir(dir.path(), Some(64));
    let server = Server::new(Transport::Tcp, served.clone());
    let mut bystander = Bystander::new(&server.addr);
    let mut peer = RawClient::connect_attached_from(ATTACKER, &server.addr, 8192);
    let mut refused = 0;
    for n in 1..200 {
        peer.walk(ROOT, Fid(n), &[]);
        let name = format!("f{n}");
        let done = peer.try_create(Fid(n), name.as_bytes()).and_then(|()| {
            let (dirfid, flags) = (ROOT, 0);
            let name = name.as_bytes();
            let reply = peer.rpc(&T::Unlinkat {
                dirfid,
                name,
                flags,
            });
            hostile::raw_client::errno(&reply).map_or(Ok(()), Err)
        });
        if let Err(errno) = done {
            assert_eq!(errno, Errno::EMFILE);
            refused += 1;
        }
        bystander.assert_unaffected();
    }
    assert!(refused > 0, "there is an end");
    // Its open files are valid, and after a close it can open another.
    let (fid, offset) = (Fid(1), 0);
    peer.expect_ok(&T::Write {
        fid,
        offset,
        data: Data(b"x"),
    });
    for n in 1..200 {
        peer.rpc(&T::Clunk { fid: Fid(n) });
    }
    peer.create(Fid(1), b"again");
    peer.expect_ok(&T::Unlinkat {
        dirfid: ROOT,
        name: b"again",
        flags: 0,
    });
}

#[test]
fn walking_up_below_an_attach_path_asks_for_each_directory_once() {
    const DEPTH: usize = 100;
    let dir = tempfile::tempdir().expect("a directory");
    let deep = (0..DEPTH).fold(dir.path().join("top"), |path, _| path.join("d"));
    std::fs::create_dir_all(&deep).expect("made");
    let count = Arc::new(AtomicUsize::new(0));
    let parents = count.clone();
    let record = CallLog::new(
        Arc::new(|| Duration::ZERO),
        Box::new(move |event| {
            if event.op == Op::Parent {
                parents.fetch_add(1, Ordering::Relaxed);
            }
        }),
    );
    let server = Server::new(Transport::Unix, stack(host_dir(dir.path(), None), record));
    let mut peer = RawClient::connect(&server.addr);
    assert_eq!(peer.version(8192), 8192);
    peer.attach(b"top");
    peer.walk(ROOT, Fid(1), &[]);
    for _ in 0..DEPTH / 10 {
        peer.walk(Fid(1), Fid(1), &[&b"d"[..]; 10]);
    }
    count.store(0, Ordering::Relaxed);
    peer.walk(Fid(1), Fid(2), &[&b".."[..]; 16]);
    assert_eq!(count.load(Ordering::Relaxed), 16);
    // The parent of the attach's root is the root itself.
    for _ in 0..DEPTH / 10 + 1 {
        peer.walk(Fid(1), Fid(1), &[&b".."[..]; 10]);
    }
    peer.walk(Fid(1), Fid(3), &[b"d"]);
}
