#!/usr/bin/python3 -B
"""The server is killed in the midst of work and begins again: no program sees an error, what was synchronized is there, and who had a lock has it, also to programs
on the host. KILLS: how often. KILL: the command that kills the server, by default that of server.pid, or replaces it; $BARGE in it is the program."""

import fcntl
import multiprocessing
import os
import random
import subprocess
import sys
import time

from checking import check, end, skip
from locking import FREE, WRITE, flock, lock, on_host

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

KILLS = int(os.environ.get("KILLS", "3"))
KILL = os.environ.get("KILL", 'kill -KILL "$(cat "$RUN/server.pid")"').replace("$BARGE", os.environ.get("BARGE", ""))
HOST_LOCKS = os.environ.get("HOST_LOCKS", "yes") == "yes"
# By v4.0 no client says that it has reclaimed all, so that grace lasts for a lease of 10 s, and Linux asks again after 15 s at most.
GRACE = 40 if "vers=4.0" in open("/proc/mounts").read() else 8


def attempt(function, *args):
    try:
        return function(*args)
    except OSError as error:
        return os.strerror(error.errno)


def elsewhere(function):
    """What the function says in another process."""
    with multiprocessing.Pool(1) as pool:
        return pool.apply(function)


def file_elsewhere():
    with open("file", "r+b") as file:
        return lock(file, WRITE, 15, 1), lock(file, WRITE, 30, 1)


def whole_elsewhere():
    with open("whole", "r+b") as file:
        return flock(file, fcntl.LOCK_EX)


def fio(name, over, runs, *options):
    """Writes and verifies until the end; a file is made by the first run."""
    command = f"fio --name={name} --filename={name}.data --size=4M --rw=randrw --verify=crc32c --verify_fatal=1 --verify_state_save=0 --thread --ioengine=psync"
    while not over.is_set():
        done = subprocess.run([*command.split(), "--bsrange=4k-64k", *options], capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            sys.exit(f"restart: fio: {name} failed")
        runs.value += 1


def journal(over, lines):
    """Appends numbers, and says of each that it is synchronized."""
    with open("journal", "ab", buffering=0) as file:
        while not over.is_set():
            file.write(b"%07d\n" % lines.value)
            os.fsync(file.fileno())
            lines.value += 1


def write_locked(file):
    """Comes to an end when the lock is there again: what is written names it."""
    os.pwrite(file.fileno(), b"x", 15)
    os.fsync(file.fileno())
    return "written"


def make(name):
    """How long it takes to make a file."""
    began = time.monotonic()
    with open(name, "x") as file:
        file.write(name)
    return time.monotonic() - began


def kill(number):
    check("killed", subprocess.run(["host", KILL]).returncode, 0)
    began = time.monotonic()
    check("a write of what is locked", attempt(write_locked, file), "written")
    back = time.monotonic() - began
    if HOST_LOCKS:
        check("the lock, on the host", on_host(WRITE, 15, 1), "refused")
    if number % 2:
        # The next comes while others may not lock yet.
        return f"{back:.0f}"
    took = make(f"new{number}")
    check("a short time of grace", took < GRACE or took, True)
    check("the lock, elsewhere, and what is free", elsewhere(file_elsewhere), ("refused", "got"))
    check("the lock of all, elsewhere", elsewhere(whole_elsewhere), "refused")
    return f"{back:.0f}+{took:.0f}"


for name in "file", "whole":
    with open(name, "w") as made:
        made.write("." * 100)
file, whole = open("file", "r+b"), open("whole", "r+b")
check("a lock", lock(file, WRITE, 10, 10), "got")
check("a lock of all", flock(whole, fcntl.LOCK_EX), "got")
over = multiprocessing.Event()
buffered, direct, lines = [multiprocessing.Value("i", 0) for _ in range(3)]
programs = [
    multiprocessing.Process(target=fio, args=("buffered", over, buffered, "--fsync=16")),
    multiprocessing.Process(target=fio, args=("direct", over, direct, "--direct=1")),
    multiprocessing.Process(target=journal, args=(over, lines)),
]
for program in programs:
    program.start()
times = []
for number in range(KILLS):
    time.sleep(random.uniform(0.5, 3))
    times.append(kill(number))
time.sleep(1)
before = buffered.value, direct.value
while all(program.is_alive() for program in programs) and (buffered.value == before[0] or direct.value == before[1]):
    time.sleep(0.1)
over.set()
for program in programs:
    program.join()
    check("a program", program.exitcode, 0)
expected = "".join(f"{line:07}\n" for line in range(lines.value))
check("the journal", open("journal").read() == expected, True)
check("the journal, on the host", subprocess.check_output(["host", "cat journal"], text=True) == expected, True)
check("unlocking", lock(file, FREE, 10, 10), "got")
check("what was locked, elsewhere", elsewhere(file_elsewhere), ("got", "got"))
if HOST_LOCKS:
    check("what was locked, on the host", on_host(WRITE, 15, 1), "got")
end(f"went on after {KILLS} kills: seconds until a lock was there again, and a file could be made: {' '.join(times)};"
    f" {buffered.value} and {direct.value} runs of fio, {lines.value} lines")
