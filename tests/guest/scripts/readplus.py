#!/usr/bin/python3 -B
"""Reads files of data and holes through two mounts by turns: the share as it is mounted here, by READ_PLUS, and from a second server, which refuses that, by READ.
What is read has to be what is there.

ROUNDS: how often each is read, after one round that does not count. SIZE: of each file, MiB."""

import os
import sys
import time
import zlib

from checking import said
from measuring import ROUNDS, Measured

SIZE = int(os.environ["SIZE"]) << 20
KIB = 1 << 10
LAYOUTS = [("whole data", SIZE, 0), ("whole hole", SIZE, None)]
LAYOUTS += [(f"{chunk}K {what} first", chunk * KIB, begin * chunk * KIB) for chunk in (4, 8, 16, 32) for begin, what in ((0, "data"), (1, "hole"))]


def content(chunk, begin):
    """Yields a file's pieces: where, and what."""
    if begin is not None:
        for at in range(begin, SIZE, chunk if chunk == SIZE else 2 * chunk):
            yield at, bytes([1 + at // chunk % 255]) * chunk


def make(name, chunk, begin):
    """Makes a file in the page cache of the host; says what its sum is."""
    whole = bytearray(SIZE)
    with open(name, "wb") as file:
        file.truncate(SIZE)
        for at, data in content(chunk, begin):
            os.pwrite(file.fileno(), data, at)
            whole[at : at + len(data)] = data
        os.fsync(file.fileno())
    return zlib.crc32(whole)


def measure(directory, name, expected):
    """MiB per second."""
    with open(f"{directory}/{name}", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pieces = []
        began = time.monotonic()
        while piece := file.read(1 << 20):
            pieces.append(piece)
        took = time.monotonic() - began
    got = 0
    for piece in pieces:
        got = zlib.crc32(piece, got)
    if got != expected:
        sys.exit(f"readplus: {directory}/{name}: what was read is not what is there")
    return (SIZE >> 20) / took


def operations(directory):
    """How often READ and READ_PLUS were called for a mount."""
    calls, here = {}, False
    for line in open("/proc/self/mountstats"):
        if line.startswith("device "):
            here = f" mounted on {directory} " in line
        words = line.split()
        if here and words and words[0] in ("READ:", "READ_PLUS:"):
            calls[words[0][:-1]] = int(words[1])
    return calls.get("READ", 0), calls.get("READ_PLUS", 0)


plain = "/run/plain"
os.mkdir(plain)
port = said("host", "cat $RUN/port2").strip()
said("mount", "-t", "nfs", "-o", f"vers=4.2,proto=tcp,port={port},actimeo=1", "10.0.2.2:/", plain)
top = os.getcwd()
mount = next(path for path in (top, os.path.dirname(top), "/mnt") if os.path.ismount(path))
beside = os.path.join(plain, os.path.relpath(top, mount))
mounts = {"READ_PLUS": top, "READ": beside}

measured = Measured(
    "Files of data and holes, by the kernel's client of NFS 4.2",
    [f"Linux {os.uname().release} in a guest, files of {SIZE >> 20} MiB in the host's page cache, {ROUNDS} rounds", "the guest is emulated"],
    list(mounts),
    [1],
)
for name, chunk, begin in LAYOUTS:
    expected = make(name, chunk, begin)
    results = measured.by_turns(name, lambda way: measure(mounts[way], name, expected))
    os.unlink(name)
    measured.row(name, "MiB/s", results)
    measured.tell()
if operations(mount)[1] == 0 or operations(plain)[0] == 0:
    sys.exit(f"readplus: READ and READ_PLUS were called {operations(mount)} and {operations(plain)} times: one mount for each was wanted")
said("umount", plain)
measured.end()
