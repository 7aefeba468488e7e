#!/usr/bin/python3 -B
"""Works on the share while the guest migrates, until the file `stop` exists, and then checks that nothing was lost.

Prints a line for each turn. SNAPSHOT=1: the share of a restored guest is a copy, in which the host sees no locks of it.
"""
import fcntl
import hashlib
import mmap
import os
import random
import sqlite3
import subprocess
import sys

from locking import WRITE, on_host

# More than a process reads at once.
NAMES = 3000
snapshot = os.environ.get("SNAPSHOT") == "1"


def expect(condition, *what):
    if not condition:
        print("failed:", *what, flush=True)
        os._exit(1)


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
dice = random.Random(1)
contents = {}
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
    print("turn", turn, flush=True)
    turn += 1

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
expect(on_host(WRITE, 0, 100, "open/kept") == "refused", "the host sees no lock")
fcntl.lockf(kept, fcntl.LOCK_UN, 100)
expect(os.waitpid(waiter, 0)[1] == 0, "the waiting lock")
expect(on_host(WRITE, 0, 100, "open/kept") == "got", "the host still sees a lock")
print("turns:", turn, file=sys.stderr, flush=True)
