#!/usr/bin/python3 -B
"""The server reads its file again, and again, under programs that have files open and locked: what the file says now holds for what is open, what makes no sense
changes nothing, and no program sees an error but those that it says. TURNS: how often."""

import errno
import itertools
import multiprocessing
import os
import subprocess
import time

from checking import check, end, skip
from locking import FREE, WRITE, lock, on_host

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

TURNS = int(os.environ.get("TURNS", "3"))
HOST_LOCKS = os.environ.get("HOST_LOCKS", "yes") == "yes"
SIZE = 1 << 20
TEXT = os.urandom(SIZE)
numbers = itertools.count()


def attempt(function, *args):
    """'done', or the error's name."""
    try:
        function(*args)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


def reload(edit):
    """Has the server read a file that `edit` of sed has changed."""
    subprocess.run(["host", f'sed -i "{edit}" "$RUN/barge.toml" && kill -HUP "$(cat "$RUN/server.pid")"'], check=True)


def write():
    os.pwrite(file.fileno(), b"x" * 100, 0)
    os.fsync(file.fileno())


def make():
    # A new name each time: a change of the configuration may prevent the removal.
    name = f"new-{next(numbers)}"
    open(name, "w").close()
    os.unlink(name)


def until(expected, function):
    """The server says nothing of when it has read its file."""
    began = time.monotonic()
    while (got := attempt(function)) != expected and time.monotonic() - began < 20:
        time.sleep(0.05)
    return got


def read_on(over, rounds):
    """Reads what it has open, from the server each time."""
    with open("kept", "rb", buffering=0) as kept:
        while not over.is_set():
            os.posix_fadvise(kept.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, SIZE, 1 << 16):
                if os.pread(kept.fileno(), 1 << 16, at) != TEXT[at : at + (1 << 16)]:
                    raise SystemExit(f"reload: other bytes at {at}")
            rounds.value += 1


with open("kept", "wb") as kept:
    kept.write(TEXT)
file = open("file", "w+b", buffering=0)
check("a lock", lock(file, WRITE, 10, 10), "got")
over, rounds = multiprocessing.Event(), multiprocessing.Value("i", 0)
reader = multiprocessing.Process(target=read_on, args=(over, rounds))
reader.start()
for _ in range(TURNS):
    check("writing", attempt(write), "done")
    reload("s/^read-only = .*/read-only = true/")
    check("making, read-only", until("EROFS", make), "EROFS")
    check("writing, read-only", attempt(write), "EROFS")
    reload("s/^read-only = .*/read-only = perhaps/")
    before = rounds.value
    while reader.is_alive() and rounds.value < before + 2:
        time.sleep(0.05)
    check("making, by a file that makes no sense", attempt(make), "EROFS")
    reload("s/^read-only = .*/read-only = false/")
    check("making again", until("done", make), "done")
    check("writing again", attempt(write), "done")
    if HOST_LOCKS:
        check("the lock, on the host", on_host(WRITE, 15, 1), "refused")
over.set()
reader.join()
check("the reader", reader.exitcode, 0)
check("what was written", open("file", "rb").read(), b"x" * 100)
check("unlocking", lock(file, FREE, 10, 10), "got")
end(f"{TURNS} times read-only and back under open files, {rounds.value} times read meanwhile")
