//! Quotas of shares: writers of several protocols reach the limit at once, and acknowledged data
//! stays.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::thread;

use barge_client::{Client, OpenOptions};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};
use crate::small_disk::SmallDisk;
use crate::status::{get, http};

const MIB: u64 = 1 << 20;

/// Starts a server of `tree` with these options, and returns it with URLs of its protocols.
fn serve(tree: &Path, options: &[&str]) -> (ServerProcess, Vec<String>) {
    let mut command = Command::new(BARGE);
    command
        .args([
            "serve",
            "--9p",
            "tcp:127.0.0.1:0",
            "--nfs",
            "tcp:127.0.0.1:0",
        ])
        .args(["--sandbox", "none", "--ready", "json", "--squash", "none"])
        .args(options)
        .arg(tree);
    let (served, ready) = ServerProcess::run_until_json(command);
    let endpoints = ready["endpoints"].as_array().expect("endpoints");
    let addr = |protocol: &str| {
        let mut all = endpoints.iter().filter(|one| one["protocol"] == protocol);
        let addr = all.next().expect("an endpoint")["address"].as_str();
        addr.expect("an address")
            .trim_start_matches("tcp:")
            .to_owned()
    };
    let urls = vec![
        format!("9p://{}/", addr("9p")),
        format!("nfs://{}/?vers=3", addr("nfs")),
        format!("nfs://{}/?vers=4.2", addr("nfs")),
    ];
    (served, urls)
}

/// Returns the bytes that du(1) counts below `dir`, and the number of files and directories.
fn usage(dir: &Path) -> (u64, u64) {
    rustix::fs::sync();
    let du = |option: &str| {
        let args = ["--summarize", "--block-size=1", option];
        let run = Command::new("du").args(args).arg(dir).output();
        let text = stdout_of(&run.expect("runs"));
        let number = text.split_whitespace().next().expect("a number").to_owned();
        number.parse::<u64>().expect("a number")
    };
    (du("--one-file-system"), du("--inodes"))
}

/// Writes files of `bytes` to `url` until one fails, and returns the size that each has according
/// to the replies.
fn fill(url: &str, prefix: &str, bytes: usize) -> (Vec<(String, u64)>, ErrorKind) {
    let client = Client::open(url).expect("connects");
    let block = vec![7; 64 << 10];
    let mut files = Vec::new();
    for number in 0.. {
        let name = format!("{prefix}{number}");
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        let file = match client.open_with(&name, &options) {
            Ok(file) => file,
            Err(error) => return (files, error.kind()),
        };
        let mut size = 0;
        let mut failed = None;
        while size < bytes as u64 && failed.is_none() {
            match file.write_at(&block, size) {
                Ok(written) => size += written as u64,
                Err(error) => failed = Some(error.kind()),
            }
        }
        if let Err(error) = file.sync_all() {
            panic!("{name}: {error}: written data was lost");
        }
        files.push((name, size));
        if let Some(kind) = failed {
            return (files, kind);
        }
    }
    unreachable!("the quota was not reached")
}

#[test]
fn writers_of_all_protocols_stop_at_the_quota() {
    for mkfs in ["mkfs.ext4", "mkfs.xfs"] {
        let disk = SmallDisk::new(&[mkfs, "-q"], 400 * MIB);
        let tree = disk.path().join("share");
        fs::create_dir_all(tree.join("before")).expect("made");
        fs::write(tree.join("before/file"), vec![1; 3_000_000]).expect("written");
        let (served, urls) = serve(&tree, &["--quota", "64M"]);
        let filled = thread::scope(|scope| {
            let writers: Vec<_> = urls
                .iter()
                .enumerate()
                .map(|(number, url)| {
                    scope.spawn(move || fill(url, &format!("writer{number}-"), 1_500_000))
                })
                .collect();
            let filled = writers
                .into_iter()
                .map(|writer| writer.join().expect("written"));
            filled.collect::<Vec<_>>()
        });
        let mut sum = 0;
        for (files, kind) in filled {
            assert_eq!(kind, ErrorKind::QuotaExceeded, "{mkfs}");
            for (name, size) in files {
                let stored = fs::read(tree.join(&name)).expect("read");
                assert_eq!(stored.len() as u64, size, "{mkfs}: {name}");
                assert!(stored.iter().all(|byte| *byte == 7), "{mkfs}: {name}");
                sum += size;
            }
        }
        assert!((55 * MIB..64 * MIB).contains(&sum), "{mkfs}: {sum}");
        // The space of a removed file may be used again.
        let client = Client::open(&urls[0]).expect("connects");
        client.remove_file("before/file").expect("removed");
        let (files, kind) = fill(&urls[1], "again-", 1_500_000);
        assert_eq!(kind, ErrorKind::QuotaExceeded);
        let again: u64 = files.iter().map(|(_, size)| size).sum();
        assert!((2_800_000..3_400_000).contains(&again), "{mkfs}: {again}");
        let counted = urls.iter().map(|url| {
            let client = Client::open(url).expect("connects");
            let space = client.space("").expect("statistics");
            assert_eq!(space.total, 64 * MIB, "{mkfs}: {url}");
            (space.total - space.free, u64::from(space.block_size))
        });
        let counted: Vec<_> = counted.collect();
        drop(client);
        // XFS frees the space that it has allocated in advance when a file is closed.
        drop(served);
        let (bytes, inodes) = usage(&tree);
        assert!(bytes <= 64 * MIB, "{mkfs}: du counts {bytes}");
        for (counted, unit) in counted {
            let difference = counted.abs_diff(bytes);
            assert!(difference <= unit, "{mkfs}: {counted}, du counts {bytes}");
        }
        let limit = (inodes + 3).to_string();
        let (_served, urls) = serve(&tree, &["--quota", "128M", "--quota-inodes", &limit]);
        let (files, kind) = fill(&urls[2], "inodes-", 1000);
        assert_eq!(kind, ErrorKind::QuotaExceeded);
        assert_eq!(files.len(), 3, "{mkfs}");
    }
}

#[test]
fn bad_quotas_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, expected) in [
        (&["--quota", "0"][..], "expected a size"),
        (&["--quota", "much"], "expected a size"),
        (&["--quota-inodes", "0"], "0 is not in 1.."),
        (
            &["--quota", "1G", "--overlay", "changes"],
            "cannot be used with",
        ),
    ] {
        let mut command = Command::new(BARGE);
        command
            .args(["serve", "--9p", "tcp:127.0.0.1:0"])
            .args(args);
        let refused = command.arg(dir.path()).output().expect("runs");
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        let error = stderr_of(&refused);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_metrics_have_the_usage_and_the_limits_of_shares() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("before"), vec![1; 8192]).expect("written");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", "tcp:127.0.0.1:0", "--http", "0"]);
    command.args(["--sandbox", "none", "--quota", "1M", "--squash", "none"]);
    command.arg(&tree);
    let served = ServerProcess::run(command);
    let url = format!("9p://127.0.0.1:{}/", served.port());
    let client = Client::open(&url).expect("connects");
    client.write("/after", vec![2; 65536]).expect("written");
    let page = get(&http(&served), "/metrics");
    let value = |name: &str| {
        let line = format!("barge_{name}{{export=\"\"}} ");
        let mut values = page.lines().filter_map(|it| it.strip_prefix(&line));
        values.next().map(|it| it.parse::<u64>().expect("a number"))
    };
    let (bytes, inodes) = usage(&tree);
    assert_eq!(value("quota_bytes"), Some(bytes));
    assert_eq!(value("quota_limit_bytes"), Some(MIB));
    assert_eq!(value("quota_inodes"), Some(inodes));
    assert_eq!(value("quota_limit_inodes"), None);
}
