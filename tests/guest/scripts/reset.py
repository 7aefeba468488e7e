#!/usr/bin/python3 -B
"""The machine is reset in the midst of its work, without a word to the server, and mounts the share again: what was synchronized is there, and nobody holds
any more what it had open and locked. RESETS: how often."""

import fcntl
import os
import subprocess
import zlib

from checking import all_passed, check, end, skip
from locking import WRITE, flock, lock, on_host

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

RESETS = int(os.environ.get("RESETS", "2"))


# The share's own, as files of other shares may be removed meanwhile.
REMOVED_SIZE = 100_000 + zlib.crc32(subprocess.check_output(["host", "pwd"])) % 100_000


def held_on_host():
    """How many descriptors of the removed file there are. Its path is another one in the root of the server."""
    command = f"find -L /proc/[0-9]*/fd -maxdepth 1 -type f -links 0 -size {REMOVED_SIZE}c 2>/dev/null | wc -l"
    return int(subprocess.check_output(["host", command]))


def synchronized(name, text):
    with open(name, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def busy(number, told):
    """Writes, reads and makes names until the end, and says once that it has begun."""
    with open(f"busy{number}", "w+b", buffering=0) as file:
        for turn in range(1 << 30):
            file.write(os.urandom(1 << 20))
            file.seek(0)
            file.read(1 << 20)
            os.mkdir(f"busy.d{number}")
            os.rename(f"busy.d{number}", f"busy.e{number}")
            os.rmdir(f"busy.e{number}")
            if turn == 2:
                os.write(told, b".")


def work_until_reset():
    removed = open("gone", "w+b")
    os.unlink("gone")
    removed.write(b"x" * REMOVED_SIZE)
    removed.flush()
    ranges, whole = open("ranges", "r+b"), open("file", "r+b")
    check("a lock before", lock(ranges, WRITE, 0, 0), "got")
    check("a flock before", flock(whole, fcntl.LOCK_EX), "got")
    check("a lock of bytes before", lock(whole, WRITE, 10, 10), "got")
    check("it on the host", on_host(WRITE, 15, 1), "refused")
    check("the removed file, held", held_on_host() > 0, True)
    if os.fork() == 0:
        # Waits for ever.
        with open("ranges", "r+b") as file:
            lock(file, WRITE, 5, 5, fcntl.F_SETLKW)
        os._exit(0)
    begun, told = os.pipe()
    for number in range(4):
        if os.fork() == 0:
            busy(number, told)
    for _ in range(4):
        os.read(begun, 1)
    if all_passed():
        with open("/proc/sysrq-trigger", "w") as trigger:
            trigger.write("b")


def look_after_reset(boot):
    check("what was synchronized", open("kept").read(), f"boot {boot - 1}\n" * 10_000)
    check("names", sorted(map(int, os.listdir("names"))), list(range(300)))
    check("what was held", held_on_host(), 0)
    check("what was locked, on the host", on_host(WRITE, 0, 0), "got")
    with open("ranges", "r+b") as ranges, open("file", "r+b") as whole:
        check("what was locked", lock(ranges, WRITE, 0, 0), "got")
        check("what was locked as a whole", flock(whole, fcntl.LOCK_EX), "got")
    check("what was being written", all(os.path.getsize(f"busy{number}") >= 2 << 20 for number in range(4)), True)
    for number in range(4):
        for what in "de":
            if os.path.exists(f"busy.{what}{number}"):
                os.rmdir(f"busy.{what}{number}")


try:
    boot = int(open("boot").read()) + 1
except FileNotFoundError:
    boot = 0
    os.mkdir("names")
    for name in [f"names/{number}" for number in range(300)] + ["ranges", "file"]:
        open(name, "w").close()
if boot:
    look_after_reset(boot)
if boot < RESETS and all_passed():
    synchronized("kept", f"boot {boot}\n" * 10_000)
    synchronized("boot", f"{boot}")
    work_until_reset()
end(f"all forgotten {RESETS} times")
