"""What fcntl(2), flock(2) and a program on the host say of a lock, in words."""

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
