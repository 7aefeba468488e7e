//! Temporary: what to strace.
use hostdir::{HostDir, Identity, Options};
use sys::payload::{SlicePayload, SliceSink};
use vfs::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let identity = match args[2].as_str() {
        "switch" => Identity::Switch,
        "mapped" => Identity::MappedXattr,
        _ => Identity::Fixed,
    };
    let fs = HostDir::open(
        &args[1],
        Options {
            identity,
            ..Default::default()
        },
    )
    .unwrap();
    let call = Call::detached();
    let who = Caller {
        uid: 0,
        gid: 0,
        groups: Groups::Known([].into()),
    };
    let cx = Cx {
        patience: Patience::Brief,
        ..Cx::new(&who, &call)
    };
    let root = fs.root(&cx).unwrap();
    let mark = |s: &str| {
        let _ = rustix::fs::access(format!("/mark/{s}"), rustix::fs::Access::EXISTS);
    };
    let n = |s: &'static str| Name::new(s.as_bytes()).unwrap();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    mark("warm");
    let (e, f) = root
        .create(&cx, n("warm"), rw, Mode::exactly(0o644))
        .unwrap();
    f.write(&cx, 0, &mut SlicePayload::new(&[1; 8192])).unwrap();
    let mut b = [0; 4096];
    f.read(&cx, 0, 4096, &mut SliceSink::new(&mut b)).unwrap();
    drop((e, f));
    mark("lookup+drop");
    let e = root.lookup(&cx, n("warm")).unwrap();
    mark("lookup again");
    let e2 = root.lookup(&cx, n("warm")).unwrap();
    mark("getattr");
    e.node.attr(&cx, Want::STAT).unwrap();
    mark("open");
    let f = e.node.open(&cx, rw).unwrap();
    mark("read 4K");
    f.read(&cx, 0, 4096, &mut SliceSink::new(&mut b)).unwrap();
    mark("read at end");
    f.read(&cx, 8192, 4096, &mut SliceSink::new(&mut b))
        .unwrap();
    mark("write 4K");
    f.write(&cx, 0, &mut SlicePayload::new(&b)).unwrap();
    mark("file getattr");
    f.attr(&cx, Want::STAT).unwrap();
    mark("close");
    drop(f);
    mark("chmod");
    e.node
        .setattr(
            &cx,
            &SetAttr {
                mode: Some(0o600),
                ..Default::default()
            },
        )
        .unwrap();
    mark("truncate");
    e.node
        .setattr(
            &cx,
            &SetAttr {
                size: Some(1),
                ..Default::default()
            },
        )
        .unwrap();
    mark("access");
    e.node.access(&cx, Access::READ | Access::WRITE).unwrap();
    mark("statfs");
    e.node.statfs(&cx).unwrap();
    mark("getxattr");
    let _ = e.node.xattr(&cx, b"user.x");
    mark("create");
    let (c, f) = root
        .create(&cx, n("new"), rw | OpenFlags::EXCL, Mode::exactly(0o644))
        .unwrap();
    mark("close of created, node lives");
    drop(f);
    mark("mkdir");
    let d = root
        .make(&cx, n("dir"), Make::Directory, Mode::exactly(0o755))
        .unwrap();
    mark("rename");
    root.rename(&cx, n("new"), &*d.node, n("new"), RenameFlags::empty())
        .unwrap();
    mark("link");
    root.link(&cx, n("l"), &*c.node).unwrap();
    mark("unlink");
    root.unlink(&cx, n("l"), false).unwrap();
    struct All;
    impl DirSink for All {
        fn entry(&mut self, _: DirEntry<'_>) -> bool {
            true
        }
    }
    mark("opendir");
    let f = root.open(&cx, OpenFlags::READ).unwrap();
    mark("readdir");
    f.readdir(&cx, 0, Plus::Names, &mut All).unwrap();
    mark("handle");
    let h = c.node.handle(&cx).unwrap();
    mark("resolve live");
    let _n = fs.resolve(&cx, &h).unwrap();
    mark("drop");
    drop((f, e, e2, c, _n));
    mark("resolve dead");
    let _n = fs.resolve(&cx, &h).unwrap();
    if args[2] == "switch" {
        let u = Caller {
            uid: 1000,
            gid: 1000,
            groups: Groups::Known([].into()),
        };
        let cu = Cx {
            patience: Patience::Brief,
            ..Cx::new(&u, &call)
        };
        mark("lookup as another");
        let _ = root.lookup(&cu, n("warm")).unwrap();
        mark("lookup as the same");
        let _ = root.lookup(&cu, n("warm")).unwrap();
        mark("back to root");
        let _ = root.lookup(&cx, n("warm")).unwrap();
    }
    mark("end");
    if args.len() > 3 {
        // time
        let t = |s: &str, mut f: Box<dyn FnMut() + '_>| {
            let i = std::time::Instant::now();
            let k = 200_000;
            for _ in 0..k {
                f();
            }
            eprintln!("{s}: {} ns", i.elapsed().as_nanos() / k);
        };
        let e = root.lookup(&cx, n("warm")).unwrap();
        e.node
            .setattr(
                &cx,
                &SetAttr {
                    size: Some(8192),
                    ..Default::default()
                },
            )
            .unwrap();
        let f = e.node.open(&cx, rw).unwrap();
        t(
            "getattr",
            Box::new(|| {
                e.node.attr(&cx, Want::STAT).unwrap();
            }),
        );
        t(
            "read4k",
            Box::new(|| {
                f.read(&cx, 0, 4096, &mut SliceSink::new(&mut b)).unwrap();
            }),
        );
        let fd = std::fs::File::open(format!("{}/warm", args[1])).unwrap();
        let mut b2 = [0u8; 4096];
        t(
            "raw pread4k",
            Box::new(|| {
                rustix::io::pread(&fd, &mut b2, 0).unwrap();
            }),
        );
        t(
            "raw statx",
            Box::new(|| {
                rustix::fs::statx(
                    &fd,
                    c"",
                    rustix::fs::AtFlags::EMPTY_PATH,
                    rustix::fs::StatxFlags::BASIC_STATS,
                )
                .unwrap();
            }),
        );
        t(
            "lookup live",
            Box::new(|| {
                root.lookup(&cx, n("warm")).unwrap();
            }),
        );
        drop((e, f));
        t(
            "lookup+forget",
            Box::new(|| {
                root.lookup(&cx, n("warm")).unwrap();
            }),
        );
        t(
            "access",
            Box::new(|| {
                root.access(&cx, Access::READ).unwrap();
            }),
        );
    }
}
