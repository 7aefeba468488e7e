#!/usr/bin/python3 -B
"""The server is killed in the midst of work and begins again: no program sees an error, what was synchronized is there, and who had a lock has it, also to programs
on the host. KILLS: how often. KILL: the command that kills the server, by default that of server.pid, or replaces it; $BARGE in it is the program.

CLUSTER: the command that controls two servers and their etcd (cluster.py). The active one is killed, a second client on the host competes for the locks, and in the end
etcd is cut off: first from the active server, then from both. LIMIT: seconds from a kill to the first reply of the other server."""

import fcntl
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time

from checking import check, end, skip
from locking import FREE, WRITE, flock, lock, on_host, take_turn

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

KILLS = int(os.environ.get("KILLS", "3"))
CLUSTER = os.environ.get("CLUSTER")
LIMIT = float(os.environ.get("LIMIT", "5"))
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


def rival(over, refused, turns):
    """Tries to get what the second client has locked, and takes turns with it."""
    with open("file", "r+b") as file, open("turns", "r+b", buffering=0) as shared:
        while not over.is_set():
            got = lock(file, WRITE, 45, 1)
            if got != "refused":
                sys.exit(f"restart: the lock of the second client: {got}")
            refused.value += 1
            turns.value += take_turn(shared)
            time.sleep(0.02)


def cluster(command):
    # In a directory of the guest: a shell looks at its own, and without etcd no server answers.
    done = subprocess.run(["host", f"{CLUSTER} {command}"], capture_output=True, text=True, cwd="/", env={**os.environ, "PWD": "/"})
    if done.returncode:
        raise RuntimeError(done.stdout.strip() or done.stderr)
    return done.stdout.strip()


def kill():
    if CLUSTER:
        resumed.append(float(cluster("kill")))
        check("seconds until the other server replied", resumed[-1] < LIMIT or resumed[-1], True)
    else:
        check("killed", subprocess.run(["host", KILL]).returncode, 0)


def check_service(number):
    """Seconds until the lock is there again, and until a file can be made."""
    began = time.monotonic()
    check("a write of what is locked", attempt(write_locked, file), "written")
    back = time.monotonic() - began
    if HOST_LOCKS:
        check("the lock, on the host", on_host(WRITE, 15, 1), "refused")
    if number % 2:
        # The next comes while others may not lock yet.
        return back, None
    names.append(f"new{len(names)}")
    took = make(names[-1])
    check("a short time of grace", took < GRACE or took, True)
    check("the lock, elsewhere, and what is free", elsewhere(file_elsewhere), ("refused", "got"))
    check("the lock of all, elsewhere", elsewhere(whole_elsewhere), "refused")
    return back, took


def lock_without_etcd(file):
    sys.exit(lock(file, WRITE, 60, 1) != "got")


def partitions():
    """etcd is cut off from the active server, and then has no majority. What was measured, in words."""
    cut = json.loads(cluster("cut"))
    check_service(1)
    last = cluster("isolate")
    waiting = multiprocessing.Process(target=lock_without_etcd, args=(file,))
    waiting.start()
    cluster("quiet")
    check("a lock is waited for without etcd", waiting.is_alive(), True)
    back = cluster("heal")
    waiting.join()
    check("a lock with etcd again", waiting.exitcode, 0)
    check_service(0)
    return f"; the server that was cut off answered for {cut['last']} s, the other one after {cut['first']} s; without a majority a server answered for {last} s, and again {back} s after it"


def summary(what, times):
    """Median and maximum."""
    return f"{what}: {statistics.median(times):.1f} s, at most {max(times):.1f} s" if times else f"{what}: not measured"


resumed, names = [], []
for name in "file", "whole":
    with open(name, "w") as made:
        made.write("." * 100)
with open("turns", "w") as made:
    made.write("0" * 8)
file, whole = open("file", "r+b"), open("whole", "r+b")
check("a lock", lock(file, WRITE, 10, 10), "got")
check("a lock of all", flock(whole, fcntl.LOCK_EX), "got")
over = multiprocessing.Event()
buffered, direct, lines, refused, turns = [multiprocessing.Value("i", 0) for _ in range(5)]
programs = [
    multiprocessing.Process(target=fio, args=("buffered", over, buffered, "--fsync=16")),
    multiprocessing.Process(target=fio, args=("direct", over, direct, "--direct=1")),
    multiprocessing.Process(target=journal, args=(over, lines)),
]
if CLUSTER:
    cluster("compete")
    programs.append(multiprocessing.Process(target=rival, args=(over, refused, turns)))
for program in programs:
    program.start()
times = []
for number in range(KILLS):
    time.sleep(random.uniform(0.5, 3))
    kill()
    times.append(check_service(number))
measured = partitions() if CLUSTER else ""
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
if CLUSTER:
    found = json.loads(cluster("finish"))
    check("the second client", found["errors"], [])
    check("turns", int(open("turns").read()), turns.value + found["turns"])
    check("both clients were refused", min(refused.value, found["refused"]) > 0, True)
    measured = (
        f"; {summary('first reply of the other server after a kill', resumed)}{measured}; locks refused: {refused.value} and, to the second client, {found['refused']};"
        f" turns: {turns.value} and {found['turns']}; leases lost: {found['lost']}"
    )
check("unlocking", lock(file, FREE, 10, 10), "got")
check("what was locked, elsewhere", elsewhere(file_elsewhere), ("got", "got"))
if HOST_LOCKS:
    check("what was locked, on the host", on_host(WRITE, 15, 1), "got")
back, made = [[time for time in column if time is not None] for column in zip(*times)]
end(f"went on after {KILLS} kills: {summary('a lock was there again after', back)}; {summary('a file could be made after further', made)};"
    f" {buffered.value} and {direct.value} runs of fio, {lines.value} lines{measured}")
