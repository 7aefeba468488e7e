#!/usr/bin/python3 -B
"""Holes and what moves ranges, as cp(1), fallocate(1) and lseek(2) have them: the bytes are right in any case, and where the
protocol tells of holes (HOLES) they are where they should be, here and on the host.

SIZE: MiB of the large file. HOLES: 'no' where a protocol knows nothing of holes. COPY: 'yes' where the server copies for NFS's client. REFLINK: 'yes' where the share is a file system
that shares blocks, which is then seen from here alone.
"""

import fcntl
import hashlib
import os
import struct
import subprocess

from checking import check, end

HOLES = os.environ.get("HOLES", "yes") == "yes"
REFLINK = os.environ.get("REFLINK") == "yes"
SIZE = int(os.environ.get("SIZE", "24")) << 20
KIB, MIB = 1 << 10, 1 << 20


def run(*command):
    """Whether a command succeeds."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def on_host(command):
    return subprocess.check_output(["host", command], text=True).strip()


def data(path):
    """Where lseek(2) finds data."""
    found, at = [], 0
    fd = os.open(path, os.O_RDONLY)
    end = os.fstat(fd).st_size
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, at))
    os.close(fd)
    return found


def synced(path):
    """A file's blocks when it is written."""
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    return os.stat(path).st_blocks * 512


def holes():
    # cp(1) looks for zeros by what the mount says is a good I/O's size: 1 MiB by NFS.
    pieces = [0, 12 * MIB, 32 * MIB - 64 * KIB]
    with open("source", "wb") as file:
        for at in pieces:
            file.seek(at)
            file.write(os.urandom(64 * KIB))
        end = file.tell()
    with open("full", "wb") as file, open("source", "rb") as source:
        file.write(source.read())
    # It would rather clone than look for zeros.
    check("cp --sparse=always", run("cp", "--sparse=always", "--reflink=never", "full", "copied"), True)
    check("its bytes", digest("copied"), digest("full"))
    check("its size", os.stat("copied").st_size, end)
    if not REFLINK:
        check("its bytes on the host", on_host("sha256sum copied").split()[0], digest("full"))
    check("that it is sparse", synced("copied") < 8 * MIB, True)
    if not HOLES:
        return
    found = data("copied")
    within = all(any(start <= at and at + 64 * KIB <= end for start, end in found) for at in pieces)
    check("that all data is found", (within, found), (True, found))
    check("that holes are found", sum(end - start for start, end in found) < 8 * MIB, True)

    check("fallocate --punch-hole", run("fallocate", "-p", "-o", "0", "-l", "64K", "copied"), True)
    with open("copied", "rb") as file:
        check("what is punched", file.read(64 * KIB) == bytes(64 * KIB), True)
    check("where data begins then", data("copied")[0][0] >= 64 * KIB, True)
    check("fallocate", run("fallocate", "-l", "40M", "copied"), True)
    check("its size then", os.stat("copied").st_size, 40 * MIB)
    check("its space then", synced("copied") >= 39 * MIB, True)
    with open("copied", "rb") as file:
        file.seek(12 * MIB)
        with open("full", "rb") as full:
            full.seek(12 * MIB)
            check("what else is there", file.read(64 * KIB) == full.read(64 * KIB), True)
    fd = os.open("copied", os.O_RDONLY)
    try:
        os.lseek(fd, 40 * MIB, os.SEEK_DATA)
        check("SEEK_DATA at the end", "found", "ENXIO")
    except OSError as error:
        check("SEEK_DATA at the end", error.strerror, "No such device or address")
    os.close(fd)


def copied_by_server():
    """How many COPYs and CLONEs the mount has asked for, if it is one of NFS."""
    with open("/proc/self/mountstats") as stats:
        lines = [line.split() for line in stats]
    asked = {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[0] in ("COPY:", "CLONE:")}
    return asked.get("COPY:", 0), asked.get("CLONE:", 0)


def copies():
    with open("large", "wb") as file:
        for _ in range(SIZE // MIB):
            file.write(os.urandom(MIB))
    os.sync()
    before = copied_by_server()
    source = os.open("large", os.O_RDONLY)
    target = os.open("target", os.O_RDWR | os.O_CREAT, 0o644)
    at = 0
    while at < SIZE:
        count = os.copy_file_range(source, target, SIZE - at)
        if count == 0:
            break
        at += count
    check("copy_file_range", at, SIZE)
    check("what it copied", digest("target"), digest("large"))
    if os.environ.get("COPY") == "yes":
        check("that the server copied", copied_by_server() > before, True)
    # In the middle of another file.
    check("a part of it", os.copy_file_range(source, target, 70000, 5000, 100_001), 70000)
    part = os.pread(target, 70000, 100_001)
    check("its bytes", part == os.pread(source, 70000, 5000), True)
    check("the bytes before", os.pread(target, 100_001, 0) == os.pread(source, 100_001, 0), True)
    os.close(source)
    os.close(target)


def clones():
    free = lambda: os.statvfs(".").f_bfree * os.statvfs(".").f_frsize
    before = free()
    check("cp --reflink=always", run("cp", "--reflink=always", "large", "clone"), True)
    synced("clone")
    check("that it takes no space", before - free() < SIZE // 2, True)
    check("its bytes", digest("clone"), digest("large"))
    was = digest("large")
    fd = os.open("clone", os.O_RDWR)
    os.pwrite(fd, b"other", 0)
    os.fsync(fd)
    check("what it was made of", digest("large"), was)
    # FICLONERANGE: a MiB of the large file, a MiB further.
    source = os.open("large", os.O_RDONLY)
    fcntl.ioctl(fd, 0x4020940D, struct.pack("=qQQQ", source, 0, MIB, MIB))
    check("a part", os.pread(fd, MIB, MIB) == os.pread(source, MIB, 0), True)
    try:
        fcntl.ioctl(fd, 0x4020940D, struct.pack("=qQQQ", source, 1, 4096, 0))
        check("a part that is not aligned", "cloned", "EINVAL")
    except OSError as error:
        check("a part that is not aligned", error.strerror, "Invalid argument")
    os.close(source)
    os.close(fd)


holes()
copies()
if REFLINK:
    clones()
end("bytes and holes are where they should be")
