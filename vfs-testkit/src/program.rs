//! Programs that tests write or copy, and then execute.
//!
//! A file that this process has open for writing is also open in each child that another thread
//! starts meanwhile, until that child executes its program. For as long, executing the file fails
//! (`ETXTBSY`). So another process writes it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program, which can be executed at once. Panics if that fails.
#[track_caller]
pub fn write_program(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) {
    let path = path.as_ref();
    let mut shell = Command::new("sh")
        .args(["-c", r#"cat >"$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh(1) starts");
    let mut input = shell.stdin.take().expect("piped");
    let written = input.write_all(contents.as_ref());
    drop(input);
    let status = shell.wait().expect("a child");
    assert!(status.success(), "{}: {status}", path.display());
    written.expect("written");
}

/// Copies a program, which can be executed at once. Panics if that fails.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let mut copy = Command::new("cp");
    let copied = copy.arg("--preserve=mode").args([from, to]).status();
    let status = copied.expect("cp(1) starts");
    assert!(status.success(), "{}: {status}", to.display());
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::SetOnDrop;

    /// Starts programs in other threads while it executes those that `make` makes at a path. They
    /// are large, so that others start while they are written.
    fn execute_among_forks(make: impl Fn(&Path)) {
        const THREADS: usize = 4;
        const PROGRAMS: usize = 50;
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("program");
        // While the kernel copies these arguments, the child has all files of this process open.
        let arguments = vec!["x".repeat(100 << 10); 12];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = SetOnDrop(&stop);
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let ran = Command::new("true").args(&arguments).status();
                        assert!(ran.expect("runs").success());
                    }
                });
            }
            for _ in 0..PROGRAMS {
                make(&program);
                let mut command = Command::new(&program);
                let ran = command.arg("--help").stdout(Stdio::null()).status();
                assert!(ran.expect("not ETXTBSY").success());
                std::fs::remove_file(&program).expect("removed");
            }
        });
    }

    #[test]
    fn a_copied_program_can_be_executed_while_other_threads_start_programs() {
        let this = std::env::current_exe().expect("this test");
        execute_among_forks(|at| copy_program(&this, at));
    }

    #[test]
    fn a_written_program_can_be_executed_while_other_threads_start_programs() {
        let script = format!("#!/bin/sh\nexit\n{}", "#".repeat(8 << 20));
        execute_among_forks(|at| write_program(at, &script));
    }
}
