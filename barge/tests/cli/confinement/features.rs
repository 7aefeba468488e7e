//! Features under the default confinement: a system call that the filter does not name would end
//! the process that serves, which is started again.

use std::fs;
use std::path::Path;
use std::process::Command;

use barge_client::{Client, OpenOptions};

use crate::served::{BARGE, ServerProcess};

/// Sets of options of `barge serve`. `DIR` is a directory for files.
const OPTIONS: &[&[&str]] = &[
    &[],
    &["--nfs-delegations"],
    &["--nfs-delegations", "--identity=mapped-xattr"],
    &[
        "--identity=fixed",
        "--nfs-security-label",
        "--nfs-rpcbind=tcp:127.0.0.1:0",
    ],
    &["--quota=1G", "--quota-inodes=10000", "--limit=ops=100000"],
    &[
        "--client-limit=bytes=1G",
        "--memory=64M",
        "--9p-fd-passing",
        "-vv",
    ],
    &["--record-calls=DIR/calls", "--slow-ms=1", "--poll-us=50"],
    &[
        "--record-trace=DIR/trace",
        "--hide=*.key",
        "--no-zerocopy",
        "--workers=2",
    ],
    &[
        "--http=unix:DIR/http",
        "--control=unix:DIR/control",
        "--agent=unix:DIR/agent",
    ],
    &[
        "--virtiofs=DIR/virtiofs",
        "--processes=one",
        "--map-uid=0:0:1000",
    ],
    &[
        "--virtiofs=DIR/virtiofs",
        "--virtiofs-writeback",
        "--queue-affinity=0",
    ],
];

/// Starts a server with `options` in `dir`. Returns it with its address of NFS.
fn start(options: &[&str], dir: &Path) -> (ServerProcess, String) {
    fs::create_dir(dir.join("share")).expect("made");
    let at = |text: &str| text.replace("DIR", &dir.display().to_string());
    let own = [
        "serve",
        "--ready=json",
        "--nfs=tcp:127.0.0.1:0",
        "--9p=unix:DIR/9p",
        "--nfs-state-dir=DIR/state",
    ];
    let mut command = Command::new(BARGE);
    command.args(own.iter().chain(options).map(|option| at(option)));
    command.arg(at("DIR/share"));
    command.stderr(fs::File::create(dir.join("log")).expect("made"));
    let (served, ready) = ServerProcess::run_until_json(command);
    let endpoints = ready["endpoints"].as_array().expect("endpoints");
    let nfs = endpoints.iter().find(|one| one["protocol"] == "nfs");
    let nfs = nfs.expect("an endpoint")["address"].as_str();
    let nfs = nfs.expect("an address").trim_start_matches("tcp:");
    (served, nfs.to_owned())
}

/// Does with a share what programs do.
fn use_share(url: &str) -> std::io::Result<()> {
    let client = Client::open(url)?;
    client.create_dir("d")?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = client.open_with("d/f", &options)?;
    file.write_all_at(&[7; 100_000], 0)?;
    file.sync_all()?;
    file.set_len(50_000)?;
    let mut buffer = [0; 1000];
    file.read_at(&mut buffer, 10)?;
    drop(file);
    for _ in 0..2 {
        // The second open may come with a delegation.
        let file = client.open_file("d/f")?;
        file.read_at(&mut buffer, 0)?;
    }
    client.set_mode("d/f", 0o640)?;
    client.touch("d/f")?;
    client.symlink("f", "d/s")?;
    client.hard_link("d/f", "d/h")?;
    client.rename("d/h", "d/g")?;
    // Some protocols and options have none.
    let _ = client.set_xattr("d/f", "user.a", b"b");
    let _ = client.xattr("d/f", "user.a").and(client.xattrs("d/f"));
    client.space("d")?;
    client.read_link("d/s")?;
    assert_eq!(client.read_dir("d")?.len(), 3, "{url}");
    client.walk("d").for_each(drop);
    for name in ["d/f", "d/g", "d/s"] {
        client.remove_file(name)?;
    }
    client.remove_dir("d")?;
    client.sync()
}

#[test]
fn each_feature_works_under_the_default_filter() {
    if !super::can_run() {
        return;
    }
    for options in OPTIONS {
        let dir = tempfile::tempdir().expect("a directory");
        let (served, nfs) = start(options, dir.path());
        let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        let serving = served.serving_ids();
        let mut urls = vec![format!("9p+unix:{}", dir.path().join("9p").display())];
        let versions = ["3", "4.0", "4.1", "4.2"];
        urls.extend(versions.map(|version| format!("nfs://{nfs}/?vers={version}")));
        let virtiofs = dir.path().join("virtiofs");
        if virtiofs.exists() {
            urls.push(format!("virtiofs:{}", virtiofs.display()));
        }
        for url in urls {
            use_share(&url).unwrap_or_else(|error| panic!("{options:?} {url}: {error}\n{}", log()));
            assert!(!log().contains("seccomp"), "{options:?} {url}: {}", log());
            assert_eq!(
                served.serving_ids(),
                serving,
                "{options:?} {url}: {}",
                log()
            );
        }
        assert!(is_filtered(serving[0]), "{options:?}");
    }
}

#[test]
fn the_out_of_memory_killer_prefers_the_process_that_serves_to_its_broker() {
    let score = |id: u32| -> i32 {
        let file = Path::new("/proc")
            .join(id.to_string())
            .join("oom_score_adj");
        let text = fs::read_to_string(file).expect("it runs");
        text.trim().parse().expect("a number")
    };
    let served = ServerProcess::start(&["mem:"]);
    assert_ne!(served.serving_id(), served.id());
    let (broker, serving) = (score(served.id()), score(served.serving_id()));
    assert!(serving > broker || broker == 1000, "{serving} {broker}");
    assert_eq!(
        broker,
        score(std::process::id()),
        "the broker's is as before"
    );
}

/// Returns whether a process has a filter of system calls, from proc_pid_status(5).
fn is_filtered(id: u32) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("status"));
    status
        .expect("it runs")
        .lines()
        .any(|line| line == "Seccomp:\t2")
}

/// Does with a mounted directory what programs do.
fn use_mount(at: &Path) -> std::io::Result<()> {
    fs::create_dir(at.join("d"))?;
    fs::write(at.join("d/f"), [7; 100_000])?;
    let file = fs::File::options().write(true).open(at.join("d/f"))?;
    file.set_len(50_000)?;
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)?;
    file.lock()?;
    file.sync_all()?;
    drop(file);
    assert_eq!(fs::read(at.join("d/f"))?.len(), 50_000);
    std::os::unix::fs::symlink("f", at.join("d/s"))?;
    fs::hard_link(at.join("d/f"), at.join("d/h"))?;
    fs::rename(at.join("d/h"), at.join("d/g"))?;
    fs::copy(at.join("d/f"), at.join("d/c"))?;
    assert_eq!(fs::read_dir(at.join("d"))?.count(), 4);
    rustix::fs::statvfs(at)?;
    fs::remove_dir_all(at.join("d"))
}

#[test]
fn each_option_of_a_mount_works_under_the_default_filter() {
    if !super::can_run() || !crate::mount::may_mount() {
        return;
    }
    for options in [
        "rw",
        "cache=loose,cache_size=8M",
        "cache=readahead",
        "cache=always,writeback",
        "cache=metadata,sync,noatime",
        "notify=writes",
        "passthrough=off,notify=off,allow_other",
        "http=tcp:127.0.0.1:0,slow_ms=1",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        for made in ["share", "at"] {
            fs::create_dir(dir.path().join(made)).expect("made");
        }
        let share = dir.path().join("share").display().to_string();
        let at = dir.path().join("at");
        let mounted = crate::mount::Mounted::new(&["-o", options, &share], &at);
        let serving = mounted.serving_id();
        assert!(is_filtered(serving), "{options}");
        use_mount(&at).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!(mounted.serving_id(), serving, "{options}: another process");
        crate::mount::unmount(&at);
    }
}
