"""What fcntl(2), flock(2) and a program on the host say of a lock, in words, and turns at a lock."""

import errno
import fcntl
import os
import struct
import subprocess

READ, WRITE, FREE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
OFD_SETLK = 37


def lock(fd, kind, start, length, command=fcntl.F_SETLK):
    """'got', 'refused', or the error's name."""
    try:
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
        return "got"
    except OSError as error:
        return "refused" if error.errno in (errno.EAGAIN, errno.EACCES) else errno.errorcode[error.errno]


def holder(fd, start, length):
    """What F_GETLK says about a write lock: free, the range that is in the way, or the error's name."""
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except OSError as error:
        return errno.errorcode[error.errno]
    kind, _, at, size, _ = struct.unpack("hhqqi4x", answer)
    return "free" if kind == fcntl.F_UNLCK else (at, size)


def flock(fd, how):
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return "got"
    except OSError as error:
        return "refused" if error.errno == errno.EAGAIN else errno.errorcode[error.errno]


def on_host(kind, start, length, name="file"):
    """Tries an OFD lock of the file `name` on the host: what a program there would meet."""
    program = f"""import fcntl, struct
try:
    fcntl.fcntl(open("{name}", "r+b"), {OFD_SETLK}, struct.pack("hhqqi4x", {kind}, 0, {start}, {length}, 0))
    print("got")
except OSError:
    print("refused")"""
    return subprocess.run(["host", f"/usr/bin/python3 -c '{program}'"], capture_output=True, text=True).stdout.strip()


def take_turn(file):
    """Adds one to the number in a file if its lock is free: none is lost if the lock has one owner at a time."""
    got = lock(file, WRITE, 0, 8)
    if got != "got":
        if got != "refused":
            raise OSError(f"the lock of turns: {got}")
        return False
    number = int(os.pread(file.fileno(), 8, 0))
    os.pwrite(file.fileno(), b"%08d" % (number + 1), 0)
    os.fsync(file.fileno())
    if lock(file, FREE, 0, 8) != "got":
        raise OSError("unlocking turns")
    return True
