//! Signals for programs that use a mount: `EINTR` for waits for locks only, and the end of a
//! program that waits for a server which does not answer.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfs_testkit::wait_until;

use crate::mount::{Mounted, may_mount};
use crate::served::{ServerProcess, has, stdout_of};

/// The kinds of mounts of a directory.
pub(crate) const KINDS: [&str; 6] = ["directory", "9p", "nfs3", "nfs4.0", "nfs4.2", "virtiofs"];

/// A mount of a directory, through a server unless the kind is `directory`.
pub(crate) struct Tree {
    // Before the server, without which it could not be unmounted.
    pub(crate) mounted: Mounted,
    server: Option<ServerProcess>,
    dir: TempDir,
}

impl Tree {
    pub(crate) fn new(kind: &str) -> Tree {
        Tree::with(kind, |source, at| Mounted::new(&[source], at))
    }

    /// Makes one whose source `mount` mounts at a directory.
    pub(crate) fn with(kind: &str, mount: impl FnOnce(&str, &Path) -> Mounted) -> Tree {
        let dir = tempfile::tempdir().expect("a directory");
        let [share, at, socket] = ["share", "at", "socket"].map(|name| dir.path().join(name));
        for made in [&share, &at] {
            fs::create_dir(made).expect("made");
        }
        let [share, socket] = [share, socket].map(|path| path.display().to_string());
        let unix = format!("unix:{socket}");
        let (server, source) = match kind {
            "directory" => (None, share.clone()),
            "9p" => (Some(["--9p", &unix]), format!("9p+unix:{socket}")),
            "virtiofs" => (Some(["--virtiofs", &socket]), format!("virtiofs:{socket}")),
            nfs => {
                let version = nfs.trim_start_matches("nfs");
                let source = format!("nfs+unix:{socket}?vers={version}");
                (Some(["--nfs", &unix]), source)
            }
        };
        let server = server.map(|[option, addr]| ServerProcess::start(&[option, addr, &share]));
        Tree {
            mounted: mount(&source, &at),
            server,
            dir,
        }
    }

    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    /// The directory on the server.
    pub(crate) fn share(&self) -> PathBuf {
        self.dir.path().join("share")
    }

    /// Sends a signal to all processes of the server.
    fn signal_server(&self, signal: Signal) {
        let server = self.server.as_ref().expect("a server");
        for id in [vec![server.id()], server.serving_ids()].concat() {
            kill(id, signal);
        }
    }
}

/// A server that stays stopped after a failure would keep the mount from ending.
impl Drop for Tree {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.signal_server(Signal::CONT);
        }
    }
}

fn kill(id: u32, signal: Signal) {
    let id = Pid::from_raw(id as i32).expect("a process");
    kill_process(id, signal).expect("it runs");
}

/// Returns whether tests may take minutes.
pub(crate) fn is_full() -> bool {
    std::env::var_os("BARGE_FULL").is_some_and(|value| value == "1")
}

fn python(script: &str, arguments: &[&str], dir: &Path) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", script]).args(arguments).current_dir(dir);
    python
}

/// Returns whether python3 is there, whose ctypes make system calls that are not repeated.
fn has_python() -> bool {
    let has = has("python3");
    if !has {
        eprintln!("skipped: this takes python3");
    }
    has
}

/// Makes system calls while a timer's signal arrives each millisecond, and prints those that fail.
/// The argument is 1 for SA_RESTART.
const CALLS: &str = r#"
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, sys.argv[1] == '0')
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
stat = ctypes.create_string_buffer(4096)
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result < 0:
        print(name, os.strerror(ctypes.get_errno()))
    return result
for i in range(25):
    a, b = b'f%d' % i, b'g%d' % i
    fd = call('open', a, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    call('write', fd, b'x' * 30000, 30000)
    call('fsync', fd)
    call('ftruncate', fd, ctypes.c_long(100))
    call('flock', fd, 2)
    call('close', fd)
    fd = call('open', a, os.O_RDONLY)
    call('read', fd, stat, 100)
    call('close', fd)
    call('chmod', a, 0o600)
    call('rename', a, b)
    call('mkdir', a, 0o755)
    call('symlink', b'x', b'l')
    call('statfs', b'.', stat)
    for name in b, b'l':
        call('unlink', name)
    call('rmdir', a)
os.listdir('.')
# Without a handler, at the end of the program, it would end by the next one.
signal.setitimer(signal.ITIMER_REAL, 0)
"#;

#[test]
fn a_handled_signal_interrupts_no_call_on_any_mount() {
    if !may_mount() || !has_python() {
        return;
    }
    for kind in KINDS {
        let tree = Tree::new(kind);
        for restart in ["0", "1"] {
            let output = python(CALLS, &[restart], &tree.at()).output();
            let failures = stdout_of(&output.expect("runs"));
            assert_eq!(failures, "", "{kind}, SA_RESTART: {restart}");
        }
    }
}

/// Waits for a lock that another process has, while a timer's signal arrives. Prints the result
/// without SA_RESTART, and then waits with it.
const LOCKS: &str = r#"
import ctypes, fcntl, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
signals = 0
def handle(*_):
    global signals
    signals += 1
signal.signal(signal.SIGALRM, handle)
fd = os.open('f', os.O_RDWR)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
if libc.flock(fd, fcntl.LOCK_EX) < 0:
    print(os.strerror(ctypes.get_errno()), flush=True)
signal.siginterrupt(signal.SIGALRM, False)
if libc.flock(fd, fcntl.LOCK_EX) == 0:
    print('locked', flush=True)
signal.setitimer(signal.ITIMER_REAL, 0)
"#;

#[test]
fn a_handled_signal_ends_a_wait_for_a_lock_and_sa_restart_begins_it_again() {
    if !may_mount() || !has_python() {
        return;
    }
    for kind in ["directory", "9p", "nfs4.2", "virtiofs"] {
        let tree = Tree::new(kind);
        let file = fs::File::create(tree.at().join("f")).expect("made");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let mut waiter = python(LOCKS, &[], &tree.at())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(waiter.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("read");
        assert_eq!(line(), "Interrupted system call", "{kind}");
        drop(file);
        assert_eq!(line(), "locked", "{kind}");
        assert!(waiter.wait().expect("ends").success());
    }
}

/// Looks up a name on a mount whose server is stopped. The argument is what to do about signals.
const HANGS: &str = r#"
import os, signal, sys
# A shell has ignored some of them if it runs the tests in the background.
for number in signal.SIGINT, signal.SIGQUIT, signal.SIGTERM:
    signal.signal(number, signal.SIG_DFL)
if sys.argv[1] == 'handled':
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
if sys.argv[1] == 'blocked':
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGUSR1, lambda *_: None)
print('ready', flush=True)
os.path.exists('%s/missing-%d' % (sys.argv[2], os.getpid()))
"#;

/// A program that waits for a server.
struct Hanging(Child);

impl Hanging {
    fn new(at: &Path, signals: &str) -> Hanging {
        // A process in the mount would wait for the server already as it starts.
        let at = at.to_str().expect("text");
        let mut python = python(HANGS, &[signals, at], Path::new("/"));
        let mut child = python.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n");
        let hanging = Hanging(child);
        hanging.await_request();
        hanging
    }

    /// Starts a small one, which looks up `name`.
    fn small(at: &Path, name: &str) -> Hanging {
        let mut stat = Command::new("stat");
        stat.arg(at.join(name)).stdout(Stdio::null());
        Hanging(stat.spawn().expect("starts"))
    }

    /// Waits until the process waits for the reply to a request.
    fn await_request(&self) {
        let function = format!("/proc/{}/wchan", self.0.id());
        wait_until("it waits for the server", || {
            fs::read_to_string(&function).is_ok_and(|name| name == "request_wait_answer")
        });
    }

    /// Returns the time in which the process ends; `None` if it does not within 10 s.
    fn end_time(&mut self) -> Option<Duration> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if self.0.try_wait().expect("a child").is_some() {
                return Some(start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

#[test]
fn a_program_that_waits_for_a_stopped_server_can_be_killed() {
    if !may_mount() || !has_python() {
        return;
    }
    for kind in ["9p", "nfs3", "nfs4.2", "virtiofs"] {
        let tree = Tree::new(kind);
        // A connection that has served before.
        fs::create_dir(tree.at().join("before")).expect("made");
        tree.signal_server(Signal::STOP);
        let ending = [
            ("default", Signal::TERM),
            ("default", Signal::INT),
            ("default", Signal::QUIT),
            ("handled", Signal::KILL),
            ("handled", Signal::TERM),
        ];
        let mut waiting = ending.map(|(signals, _)| Hanging::new(&tree.at(), signals));
        for (waiting, (_, signal)) in waiting.iter().zip(ending) {
            kill(waiting.0.id(), signal);
        }
        for (waiting, what) in waiting.iter_mut().zip(ending) {
            let time = waiting.end_time();
            assert!(time.is_some(), "{kind}: {what:?} does not end it");
        }
        // A signal that is handled starts the questions; one that is blocked is no answer to them.
        let mut blocking = Hanging::new(&tree.at(), "blocked");
        for signal in [Signal::USR1, Signal::TERM] {
            kill(blocking.0.id(), signal);
        }
        std::thread::sleep(Duration::from_secs(3));
        assert!(blocking.0.try_wait().expect("a child").is_none(), "{kind}");
        tree.signal_server(Signal::CONT);
        assert!(blocking.0.wait().expect("ends").success(), "{kind}");
    }
}

#[test]
fn more_programs_than_workers_that_wait_for_a_stopped_server_can_be_killed() {
    if !may_mount() {
        return;
    }
    let tree = Tree::new("9p");
    fs::create_dir(tree.at().join("before")).expect("made");
    tree.signal_server(Signal::STOP);
    let mut all: Vec<_> = (0..40)
        .map(|number| Hanging::small(&tree.at(), &number.to_string()))
        .collect();
    all.iter().for_each(Hanging::await_request);
    let mut last = all.pop().expect("there are some");
    kill(last.0.id(), Signal::KILL);
    assert!(last.end_time().is_some(), "the last one does not end");
    for one in &all {
        kill(one.0.id(), Signal::KILL);
    }
    for one in &mut all {
        assert!(one.end_time().is_some(), "it does not end");
    }
    tree.signal_server(Signal::CONT);
    fs::create_dir(tree.at().join("after")).expect("made");
}

/// Makes a repository of `$2` files at `$1/repository`, and clones it with a progress bar, whose
/// timer's signals arrive in the middle of system calls, to `$3`.
const CLONE: &str = r#"
set -e
git init -q "$1/repository" && cd "$1/repository"
# Otherwise git packs the objects while they are copied.
git config gc.auto 0
for i in $(seq "$2"); do echo "$i" >"file-$i"; done
git add . && git -c user.name=a -c user.email=a@b commit -q -m all
git clone -q --progress --no-hardlinks . "$3/clone"
cd "$3/clone" && git fsck --strict && test -z "$(git status --porcelain)"
test "$(ls | wc -l)" = "$2"
"#;

#[test]
fn git_clones_with_a_progress_bar_onto_each_mount() {
    if !may_mount() || !has("git") {
        return;
    }
    let (kinds, files) = if is_full() {
        (&KINDS[1..], "12000")
    } else {
        (&KINDS[1..3], "1500")
    };
    for kind in kinds {
        let tree = Tree::new(kind);
        let mut script = Command::new("sh");
        script.args(["-c", CLONE, "sh"]).arg(tree.dir.path());
        let output = script.arg(files).arg(tree.at()).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {error}");
    }
}

/// Makes an image of a disk at `$1` in each format of QEMU, and compares them.
const IMAGES: &str = r#"
set -e
head -c 64M /dev/urandom >"$1/raw"
for format in qcow2 vmdk; do
    qemu-img convert -p -f raw -O $format "$1/raw" "$1/$format"
    qemu-img compare -p -f raw -F $format "$1/raw" "$1/$format"
done
"#;

/// Runs PostgreSQL in a directory of `$1`, at port `$2`: many transactions, a crash, and the sum of
/// all accounts afterwards.
const DATABASE: &str = r#"
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | head -1)
db=$1/db socket=$3
mkdir "$db" && chown postgres "$db" "$socket" && chmod 700 "$db"
as() { su postgres -c "$*"; }
options="-p $2 -c unix_socket_directories=$socket -c listen_addresses= -c wal_sync_method=fdatasync"
options="$options -c checkpoint_timeout=30s -c max_wal_size=64MB -c bgwriter_delay=10ms"
as "$bin/initdb -D $db/data -A trust >$socket/init 2>&1"
start() { as "$bin/pg_ctl -D $db/data -w -l $socket/log -o '$options' start >/dev/null"; }
start
as "$bin/pgbench -p $2 -h $socket -i -s 2 -q postgres >$socket/bench 2>&1"
as "$bin/pgbench -p $2 -h $socket -c 4 -j 2 -T 20 postgres >>$socket/bench 2>&1"
as "psql -q -p $2 -h $socket -c 'vacuum full' -c checkpoint postgres"
as "$bin/pg_ctl -D $db/data -m immediate stop >/dev/null"
start
sum() { as "psql -p $2 -h $socket -Atc 'select sum($1) from $3' postgres"; }
test "$(sum abalance "$2" pgbench_accounts)" = "$(sum bbalance "$2" pgbench_branches)"
as "$bin/pg_ctl -D $db/data -m fast stop >/dev/null"
! grep -E 'PANIC|Interrupted' $socket/log
"#;

#[test]
fn qemu_img_and_postgresql_run_on_each_mount() {
    if !is_full() {
        return eprintln!("skipped: BARGE_FULL=1 enables it");
    }
    let is_root = rustix::process::geteuid().is_root();
    if !may_mount() || !has("qemu-img") || !Path::new("/usr/lib/postgresql").exists() || !is_root {
        return eprintln!("skipped: this takes root, qemu-utils and postgresql");
    }
    for kind in &KINDS[1..] {
        let tree = Tree::with(kind, |source, at| {
            Mounted::new(&[source, "-o", "allow_other"], at)
        });
        let socket = tempfile::tempdir().expect("a directory");
        for dir in [tree.dir.path(), socket.path()] {
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(dir, open).expect("changed");
        }
        for script in [IMAGES, DATABASE] {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(tree.at());
            let output = command.arg("54399").arg(socket.path()).output();
            let output = output.expect("runs");
            assert!(
                output.status.success(),
                "{kind}: {}{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
                logs(socket.path()),
            );
        }
    }
}

/// Returns what the programs of [`DATABASE`] have written beside its socket.
fn logs(dir: &Path) -> String {
    let read = |name| fs::read_to_string(dir.join(name)).unwrap_or_default();
    ["init", "log", "bench"].map(read).concat()
}
