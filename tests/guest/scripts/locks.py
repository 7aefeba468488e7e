#!/usr/bin/python3 -B
"""Byte-range locks and flock between processes here, and byte-range locks between here and the host.

HOST_LOCKS=no leaves out the host, for servers which keep locks to themselves. A locked-out process polls, so mount with locktimeout=1."""

import errno
import fcntl
import os
import subprocess
import time

from checking import check, end
from locking import FREE, OFD_SETLK, READ, WRITE, flock, holder, lock, on_host



def elsewhere(function):
    """The function's text, from another process with a descriptor of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open("file", os.O_RDWR)
        os.write(write, str(function(fd)).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 1000).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return text


fd = os.open("file", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"0123456789" * 10)

check("a write lock on 10..20", lock(fd, WRITE, 10, 10), "got")
check("the same range elsewhere", elsewhere(lambda fd: lock(fd, WRITE, 10, 10)), "refused")
check("one byte of it elsewhere", elsewhere(lambda fd: lock(fd, READ, 19, 1)), "refused")
check("the byte before it", elsewhere(lambda fd: lock(fd, WRITE, 0, 10)), "got")
check("the byte after it", elsewhere(lambda fd: lock(fd, WRITE, 20, 1)), "got")
check("who is in the way", elsewhere(lambda fd: holder(fd, 0, 15)), "(10, 10)")
check("nobody is in the way", elsewhere(lambda fd: holder(fd, 50, 10)), "free")
check("to the end of the file", elsewhere(lambda fd: lock(fd, WRITE, 15, 0)), "refused")

check("unlocking the middle", lock(fd, FREE, 13, 4), "got")
check("the middle is free", elsewhere(lambda fd: lock(fd, WRITE, 13, 4)), "got")
check("the left rest is not", elsewhere(lambda fd: lock(fd, WRITE, 12, 1)), "refused")
check("the right rest is not", elsewhere(lambda fd: lock(fd, WRITE, 17, 1)), "refused")

check("turning into a read lock", lock(fd, READ, 10, 10), "got")
check("readers share", elsewhere(lambda fd: lock(fd, READ, 10, 10)), "got")
check("a writer does not", elsewhere(lambda fd: lock(fd, WRITE, 10, 10)), "refused")

other = os.open("file", os.O_RDWR)
os.close(other)
check("any close by the owner unlocks", elsewhere(lambda fd: lock(fd, WRITE, 0, 0)), "got")

# A lock that is waited for.
check("a lock to wait for", lock(fd, WRITE, 0, 0), "got")
pid = os.fork()
if pid == 0:
    own = os.open("file", os.O_RDWR)
    os._exit(0 if lock(own, WRITE, 5, 5, fcntl.F_SETLKW) == "got" else 1)
time.sleep(0.5)
check("the waiter waits", os.waitpid(pid, os.WNOHANG), (0, 0))
check("letting it go", lock(fd, FREE, 0, 0), "got")
check("the waiter got it", os.waitpid(pid, 0)[1], 0)

# Two processes that wait for each other: one of them is told, and lets go.
check("a lock for a deadlock", lock(fd, WRITE, 0, 1), "got")
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    own = os.open("file", os.O_RDWR)
    os.write(write, lock(own, WRITE, 50, 1).encode())
    result = lock(own, WRITE, 0, 1, fcntl.F_SETLKW)
    lock(own, FREE, 0, 0)
    os.write(write, result.encode())
    os._exit(0)
check("one for the other", os.read(read, 100), b"got")
mine = lock(fd, WRITE, 50, 1, fcntl.F_SETLKW)
lock(fd, FREE, 0, 0)
theirs = os.read(read, 100).decode()
os.waitpid(pid, 0)
os.close(read)
os.close(write)
check("one of both is told", sorted([mine, theirs]), sorted([errno.errorcode[errno.EDEADLK], "got"]))

if os.environ.get("HOST_LOCKS", "yes") != "yes":
    # The kernel here has the locks, so a signal ends a wait.
    check("a flock to wait for", flock(fd, fcntl.LOCK_EX), "got")
    pid = os.fork()
    if pid == 0:
        fcntl.flock(os.open("file", os.O_RDWR), fcntl.LOCK_EX)
        os._exit(0)
    time.sleep(0.5)
    os.kill(pid, 9)
    check("the waiter is killed", os.waitpid(pid, 0)[1], 9)
    check("no more flock", flock(fd, fcntl.LOCK_UN), "got")

# A process that dies leaves no lock.
pid = os.fork()
if pid == 0:
    lock(os.open("file", os.O_RDWR), WRITE, 0, 0)
    os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
check("after the owner's death", lock(fd, WRITE, 0, 0), "got")
lock(fd, FREE, 0, 0)

# flock belongs to the open file, not to the process.
second = os.open("file", os.O_RDWR)
check("flock", flock(fd, fcntl.LOCK_EX), "got")
check("flock through another open file", flock(second, fcntl.LOCK_EX), "refused")
check("flock elsewhere", elsewhere(lambda fd: flock(fd, fcntl.LOCK_SH)), "refused")
check("flock let go", flock(fd, fcntl.LOCK_UN), "got")
check("flock elsewhere after that", elsewhere(lambda fd: flock(fd, fcntl.LOCK_EX)), "got")
check("flock shared", flock(fd, fcntl.LOCK_SH), "got")
check("flock shared elsewhere", elsewhere(lambda fd: flock(fd, fcntl.LOCK_SH)), "got")
flock(fd, fcntl.LOCK_UN)
os.close(second)

if os.environ.get("HOST_LOCKS", "yes") == "yes":
    check("locked here", lock(fd, WRITE, 10, 10), "got")
    check("met on the host", on_host(WRITE, 15, 10), "refused")
    check("beside it on the host", on_host(WRITE, 20, 10), "got")
    check("unlocked here", lock(fd, FREE, 10, 10), "got")
    check("free on the host", on_host(WRITE, 15, 10), "got")
    # The host's program says when it has the lock, and lets go when its input, a pipe in the directory, ends.
    program = (
        f'import fcntl, struct; f = open("file", "r+b"); fcntl.fcntl(f, {OFD_SETLK}, struct.pack("hhqqi4x", {WRITE}, 0, 30, 10, 0)); '
        'open("held", "w"); open("release").read()'
    )
    subprocess.run(["host", f"mkfifo release; /usr/bin/python3 -c '{program}' >/dev/null 2>&1 & while [ ! -e held ]; do sleep 0.05; done"], check=True)
    check("locked on the host, met here", lock(fd, WRITE, 35, 1), "refused")
    check("the host's lock by F_GETLK", holder(fd, 0, 0), (30, 10))
    check("beside the host's lock", lock(fd, WRITE, 40, 10), "got")
    subprocess.run(["host", "echo >release; rm held release"], check=True)
    deadline = time.monotonic() + 10
    while lock(fd, WRITE, 35, 1) != "got" and time.monotonic() < deadline:
        time.sleep(0.1)
    check("after the host let go", lock(fd, WRITE, 30, 10), "got")

end("held where they should be")
