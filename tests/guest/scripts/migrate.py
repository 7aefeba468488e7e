#!/usr/bin/python3 -B
"""Works on the share while the guest migrates, until the file `stop` exists, and then checks that nothing was lost.

fio with --verify and `git clone` with `git fsck` run all the time, also at the moments when the guest is stopped.

Prints a line for each turn. SNAPSHOT=1: the guest is restored from a file, with a copy of the share. HOST_LOCKS=0: the server keeps locks in the guest, where the host does
not see them.
"""
import fcntl
import hashlib
import mmap
import os
import random
import sqlite3
import subprocess
import sys
import tempfile

from locking import WRITE, on_host

# More than a process reads at once.
NAMES = 3000
# Files of the repository.
FILES = 40
FIO = "fio --name=fio --filename=fio.data --size=4M --rw=randwrite --bsrange=4k-64k --ioengine=psync --fsync=16 --verify=crc32c --verify_fatal=1 --thread"
CLONE = 'git clone -q "file://$PWD/origin" clone && git -C clone fsck --full --strict && test -z "$(git -C clone status --porcelain)" && rm -r clone'
snapshot = os.environ.get("SNAPSHOT") == "1"
host_locks = os.environ.get("HOST_LOCKS") != "0"


def expect(condition, *what):
    if not condition:
        print("failed:", *what, flush=True)
        os._exit(1)


class Load:
    """A command that runs again and again until `stop` exists."""

    def __init__(self, name, command, made):
        """`made` exists once it has begun."""
        self.name, self.made = name, made
        self.log = tempfile.TemporaryFile("w+")
        loop = f"until [ -e stop ]; do {command} || exit; echo complete; done"
        self.process = subprocess.Popen(["sh", "-c", loop], stdout=self.log, stderr=subprocess.STDOUT)

    def check(self, status):
        if status:
            self.log.seek(0)
            kernel = subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True).stdout
            lines = self.log.read().splitlines()[-5:] + kernel.splitlines()[-5:]
            expect(False, f"{self.name} ended with {status}:", " / ".join(lines))

    def runs(self):
        """Waits for the end of the last run, and returns the number of runs."""
        self.check(self.process.wait())
        self.log.seek(0)
        return self.log.read().splitlines().count("complete")


def make_repository():
    """Makes a repository with a commit of FILES files."""
    subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "-q", "--bare", "origin"], check=True)
    commit = "commit refs/heads/main\ncommitter a <a@example> 0 +0000\ndata 3\none"
    for number in range(FILES):
        text = "".join(f"{number} {line} {line * number}\n" for line in range(number % 97))
        commit += f"\nM 644 inline d{number // 20}/f{number}\ndata {len(text)}\n{text}"
    subprocess.run(["git", "-C", "origin", "fast-import", "--quiet"], input=commit + "\n", text=True, check=True)


os.makedirs("open")
kept = open("open/kept", "w+b")
kept.write(bytes(range(256)) * 64)
kept.flush()
inode = os.fstat(kept.fileno()).st_ino
fcntl.lockf(kept, fcntl.LOCK_EX, 100)
whole = open("open/whole", "w+b")
fcntl.flock(whole, fcntl.LOCK_EX)
log = os.open("open/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
mapped_file = open("open/mapped", "w+b")
mapped_file.truncate(1 << 16)
mapped = mmap.mmap(mapped_file.fileno(), 1 << 16)
readonly = open("open/readonly", "wb+")
readonly.write(b"still readable")
readonly.flush()
os.chmod("open/readonly", 0)
os.makedirs("many")
for number in range(NAMES):
    open(f"many/{number:04}", "w").close()
listing = os.scandir("many")
listed = [next(listing).name for _ in range(10)]
directory = os.open("open", os.O_RDONLY)

# A process that waits for a lock all the time.
waiter = os.fork()
if waiter == 0:
    with open("open/kept", "r+b") as other:
        try:
            fcntl.lockf(other, fcntl.LOCK_EX, 100)
        except OSError as error:
            print("failed: the waiting lock", error, flush=True)
            os._exit(1)
    os._exit(0)

database = sqlite3.connect("database", isolation_level=None)
database.execute("pragma journal_mode = truncate")
database.execute("create table rows (number integer primary key, text text)")
os.environ["GIT_CONFIG_GLOBAL"] = "/dev/null"
make_repository()
loads = [Load("fio", FIO, "fio.data"), Load("git clone", CLONE, "clone/.git")]
dice = random.Random(1)
contents = {}
started = False
ops = None
turn = 0
while not os.path.exists("stop"):
    if ops is None or ops.poll() is not None:
        expect(ops is None or ops.returncode == 0, "randomops")
        os.makedirs(f"ops{turn}")
        ops = subprocess.Popen(["randomops", "--ops", "2000", "--seed", str(turn)], cwd=f"ops{turn}")
    os.write(log, b"%d\n" % turn)
    database.execute("insert into rows values (?, ?)", (turn, "x" * dice.randrange(2000)))
    mapped[turn % (1 << 16)] = turn & 0xFF
    for _ in range(10):
        name = f"file{dice.randrange(20)}"
        with open(name + ".new", "wb") as new:
            contents[name] = dice.randbytes(dice.randrange(50000))
            new.write(contents[name])
        os.rename(name + ".new", name)
        name = dice.choice(sorted(contents))
        if dice.random() < 0.2:
            os.unlink(name)
            del contents[name]
        else:
            with open(name, "rb") as file:
                expect(hashlib.sha256(file.read()).digest() == hashlib.sha256(contents[name]).digest(), name, turn)
    expect(os.pread(kept.fileno(), 256, 256) == bytes(range(256)), "kept")
    readonly.seek(0)
    expect(readonly.read() == b"still readable", "readonly")
    expect(os.fstat(kept.fileno()).st_ino == os.stat("open/kept").st_ino == inode, "inode number")
    expect("log" in os.listdir(directory), "listing by descriptor")
    for load in loads:
        load.check(load.process.poll())
    started = started or all(os.path.exists(load.made) for load in loads)
    if started:
        print("turn", turn, flush=True)
    turn += 1

runs = ", ".join(f"{load.name}: {load.runs()}" for load in loads)
expect(ops.wait() == 0, "randomops")
with open("open/log") as file:
    expect(file.read().split() == [str(number) for number in range(turn)], "log")
expect(database.execute("pragma integrity_check").fetchall() == [("ok",)], "database")
expect(database.execute("select count(*) from rows").fetchall() == [(turn,)], "rows")
mapped.flush()
with open("open/mapped", "rb") as file:
    expect(file.read() == mapped[:], "mapped")
if not snapshot:
    listed += [entry.name for entry in listing]
    expect(sorted(listed) == [f"{number:04}" for number in range(NAMES)], "listing", len(listed))
expect(os.waitpid(waiter, os.WNOHANG) == (0, 0), "the lock was lost")
if host_locks:
    expect(on_host(WRITE, 0, 100, "open/kept") == "refused", "the host sees no lock")
fcntl.lockf(kept, fcntl.LOCK_UN, 100)
expect(os.waitpid(waiter, 0)[1] == 0, "the waiting lock")
expect(on_host(WRITE, 0, 100, "open/kept") == "got", "the host still sees a lock")
print(f"turns: {turn}, {runs}", flush=True)
