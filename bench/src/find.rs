//! The table `find`: `barge mount` of 9P and of NFS, each listing a tree of many files as find(1)
//! does. find(1) uses names and file types only, but the kernel requests attributes with the first
//! names of a directory and caches them. So does the process that serves the mount; the table shows
//! its memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::context::Context;
use crate::mounted::Mounted;
use crate::process::{Process, free_port, peak_memory, require_root};
use crate::report::results::{Results, Row};
use crate::rounds::Rotation;
use crate::workspace::{SMALL_FILES_DIR, Workspace, file_name};
use command::Failure;

/// Files in each directory.
const FILES_PER_DIR: u32 = 100;

const COLUMNS: [&str; 2] = ["9P", "NFS"];

/// Servers of one tree, and the URLs to mount it from.
struct Fixture {
    workspace: Workspace,
    urls: [String; 2],
    _servers: [Process; 2],
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("bench find mounts")?;
    let args = &args.with_default_runs(3);
    let workspace = Workspace::new(args)?;
    let files =
        (args.options.files_in_tree).unwrap_or(if args.options.quick { 20_000 } else { 100_000 });
    fill(&workspace.share, files)
        .map_err(|error| Failure::new(format!("{}: {error}", workspace.share.display())))?;
    let notes = vec![
        format!(
            "{} runs each, alternating, below {}; each over a mount of its own",
            args.runs(),
            workspace.parent()
        ),
        format!(
            "{files} empty files, {FILES_PER_DIR} in a directory; 9P over a Unix socket, NFS 4.2 over loopback TCP"
        ),
        "memory: peak of the mount's process, without pages of files".into(),
    ];
    let fixture = Fixture::start(workspace)?;
    args.progress.plan(args.runs() * COLUMNS.len());
    let none = || vec![Vec::new(); COLUMNS.len()];
    let mut rows = vec![
        Row::new("find".into(), "file/s", none()),
        Row::new("memory".into(), "MiB", none()),
    ];
    let mut rotation = Rotation::of(COLUMNS.len());
    for round in 0..args.runs() {
        rotation.round(args, round, &mut rows, |rows, column| {
            let figures = fixture.measure(column, files);
            let failed = |why| format!("{}: {why}", COLUMNS[column]);
            for (row, figure) in rows.iter_mut().zip(figures.map_err(failed)?) {
                row.runs[column].push(figure);
            }
            Ok(())
        })?;
    }
    rows.retain(|row| args.selects(&row.name));
    Ok(Results {
        title: "find(1) on a mounted tree".into(),
        notes,
        missing: Vec::new(),
        servers: COLUMNS.map(str::to_owned).into(),
        peers: vec![1],
        limit: None,
        rows,
    })
}

impl Fixture {
    fn start(workspace: Workspace) -> Result<Fixture, Failure> {
        let socket = workspace.run_dir.join("9p");
        let port = free_port()?;
        let serve = |protocol, addr: String| {
            Process::serve(workspace.barge(), &workspace.share, &[protocol, &addr])
        };
        let servers = [
            serve("--9p", format!("unix:{}", socket.display()))?,
            serve("--nfs", format!("tcp:127.0.0.1:{port}"))?,
        ];
        Ok(Fixture {
            urls: [
                format!("9p+unix:{}", socket.display()),
                format!("nfs://127.0.0.1:{port}/"),
            ],
            workspace,
            _servers: servers,
        })
    }

    /// Lists the whole tree over a new mount; returns files a second, and the memory of the mount's
    /// process in MiB.
    fn measure(&self, column: usize, files: u32) -> Result<[f64; 2], String> {
        let at = self.workspace.run_dir.join("mounted");
        let mounted = Mounted::new(self.workspace.barge(), &self.urls[column], "ro", at)?;
        let started = Instant::now();
        let found = count(mounted.path()).map_err(|error| error.to_string())?;
        let rate = f64::from(found) / started.elapsed().as_secs_f64();
        if found != files {
            return Err(format!("expected {files} files, found {found}"));
        }
        let process = Path::new("/proc").join(mounted.pid().to_string());
        let memory = peak_memory(&process) as f64 / f64::from(1 << 20);
        mounted.unmount()?;
        Ok([rate, memory])
    }
}

/// Counts the files below `root` by the file types in the directory entries.
fn count(root: &Path) -> io::Result<u32> {
    let mut found = 0;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => dirs.push(entry.path()),
                false => found += 1,
            }
        }
    }
    Ok(found)
}

fn fill(share: &Path, files: u32) -> io::Result<()> {
    let dir_of = |number: u32| -> PathBuf {
        share
            .join(SMALL_FILES_DIR)
            .join((number / FILES_PER_DIR).to_string())
    };
    for number in 0..files {
        let dir = dir_of(number);
        if number % FILES_PER_DIR == 0 {
            fs::create_dir_all(&dir)?;
        }
        fs::File::create(dir.join(file_name(number as usize)))?;
    }
    Ok(())
}
