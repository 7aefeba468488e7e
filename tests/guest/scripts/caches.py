#!/usr/bin/python3 -B
"""Page coalescing's jobs (fio's equivalent of those that it was first measured with in Linux's 9P client) by the kernel's own 9P client in each of its cache modes, and by
`barge mount`, all of one server, and by a virtio disk with ext4. Caches of the guest are emptied before each.

ROUNDS: how often each is measured, by turns, after one round that does not count. SIZE: of the file, MiB. BARGE: the program."""

import json
import os
import subprocess

from checking import said
from measuring import Measured

ROUNDS, SIZE, BARGE = int(os.environ["ROUNDS"]), int(os.environ["SIZE"]), os.environ["BARGE"]
SECONDS = 2
JOBS = [(f"{kind}{what} {block}", f"{prefix}{what}", block) for kind, prefix in (("", ""), ("random ", "rand")) for block in ("1M", "4K") for what in ("write", "read")]
port = said("host", "cat $RUN/port").strip()


def ninep(options):
    return ["mount", "-t", "9p", "-o", f"trans=tcp,port={port},version=9p2000.L,{options}", "10.0.2.2"]


def fuse(options):
    return [BARGE, "mount", "-o", options, f"9p://10.0.2.2:{port}/"]


PAGED, DISK = "v9fs, a page each", "virtio block, ext4"
MOUNTS = {
    "barge mount, loose": fuse("cache=loose"),
    "barge mount": fuse("cache=mmap"),
    PAGED: ninep("msize=4120,cache=none"),
    "v9fs none": ninep("msize=1048576,cache=none"),
    "v9fs readahead": ninep("msize=1048576,cache=readahead"),
    "v9fs mmap": ninep("msize=1048576,cache=mmap"),
    "v9fs loose": ninep("msize=1048576,cache=loose"),
    "v9fs fscache": ninep("msize=1048576,cache=fscache,cachetag=barge"),
    DISK: ["mount", "-t", "ext4", "/dev/vda"],
}
at = "/run/caches"
os.mkdir(at)
shared = os.path.relpath(os.getcwd(), "/mnt")


def measure(name, kind, block):
    """MB/s, the time of fsync in it, between a mount and its end."""
    said(*mounts[name], at)
    file = os.path.join(at, "." if name == DISK else shared, "out" if kind == "write" else "data")
    if kind == "write" and os.path.exists(file):
        os.unlink(file)
    said("sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches")
    report = said(
        "fio", "--name=bench", f"--filename={file}", f"--size={SIZE}M", f"--rw={kind}", f"--bs={block}", "--ioengine=psync", "--thread", "--invalidate=0", "--end_fsync=1",
        "--randseed=7", f"--runtime={SECONDS}", "--output-format=json",
    )
    side = "read" if kind.endswith("read") else "write"
    said("umount", at)
    return json.loads(report)["jobs"][0][side]["bw_bytes"] / 1e6


def is_known(command):
    """Whether this kernel has the mode."""
    known = subprocess.run([*command, at], capture_output=True).returncode == 0
    if known:
        said("umount", at)
    return known


said("host", f"dd if=/dev/urandom of=data bs=1M count={SIZE} 2>&1")
mounts = {name: command for name, command in MOUNTS.items() if is_known(command)}
said(*mounts[DISK], at)
said("cp", "data", at)
said("umount", at)
names = list(mounts)
measured = Measured(
    "Page coalescing's jobs, by the kernel's 9P client and by barge mount",
    [
        f"fio in a guest, Linux {os.uname().release}, a file of {SIZE} MiB in the host's memory, at most {SECONDS} s each, {ROUNDS} rounds",
        "the guest is emulated, and 9P goes through QEMU's network: what counts is what stands side by side",
    ],
    names,
    [at for at, name in enumerate(names) if name.startswith("v9fs ")],
    names.index(DISK),
)
for job, kind, block in JOBS:
    results = {name: [] for name in mounts}
    for turn in range(1 + ROUNDS):
        for name in names[:: -1 if turn % 2 else 1]:
            rate = measure(name, kind, block)
            if turn > 0:
                results[name].append(rate)
    measured.row(job, "MB/s", list(results.values()))
measured.end()
