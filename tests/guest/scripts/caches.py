#!/usr/bin/python3 -B
"""Page coalescing's jobs (fio's equivalent of those that it was first measured with in Linux's 9P client) by the kernel's own 9P client in each of its cache modes, and by
`barge mount`, all of one server. Caches of the guest are emptied before each.

ROUNDS: how often each is measured, by turns, after one round that does not count. SIZE: of the file, MiB. BARGE: the program."""

import json
import os
import statistics
import subprocess
import time

from checking import said

ROUNDS, SIZE, BARGE = int(os.environ["ROUNDS"]), int(os.environ["SIZE"]), os.environ["BARGE"]
SECONDS = 2
JOBS = [(f"{kind}{what} {block}", f"{prefix}{what}", block) for kind, prefix in (("", ""), ("random ", "rand")) for block in ("1M", "4K") for what in ("write", "read")]
port = said("host", "cat $RUN/port").strip()


def ninep(options):
    return ["mount", "-t", "9p", "-o", f"trans=tcp,port={port},version=9p2000.L,{options}", "10.0.2.2"]


def fuse(options):
    return [BARGE, "mount", "-o", options, f"9p://10.0.2.2:{port}/"]


# The first column is a client that asks for a page at a time.
MOUNTS = {
    "v9fs, a page each": ninep("msize=4120,cache=none"),
    "v9fs none": ninep("msize=1048576,cache=none"),
    "v9fs readahead": ninep("msize=1048576,cache=readahead"),
    "v9fs mmap": ninep("msize=1048576,cache=mmap"),
    "v9fs loose": ninep("msize=1048576,cache=loose"),
    "v9fs fscache": ninep("msize=1048576,cache=fscache,cachetag=barge"),
    "barge mount": fuse("cache=mmap"),
    "barge mount, loose": fuse("cache=loose"),
}
at = "/run/caches"
os.mkdir(at)
below = os.path.relpath(os.getcwd(), "/mnt")


def measure(command, kind, block):
    """MB/s, the time of fsync in it, between a mount and its end."""
    said(*command, at)
    said("sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches")
    file = os.path.join(at, below, "out" if kind == "write" else "data")
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
print(f"Linux {os.uname().release}, a file of {SIZE} MiB, at most {SECONDS} s each, {ROUNDS} rounds, MB/s: median (least to most)\n")
print("| | " + " | ".join(mounts) + " |\n|---|" + "---|" * len(mounts))
for job, kind, block in JOBS:
    results = {name: [] for name in mounts}
    for turn in range(1 + ROUNDS):
        for name in list(mounts)[:: -1 if turn % 2 else 1]:
            if kind == "write" and os.path.exists("out"):
                os.unlink("out")
            measured = measure(mounts[name], kind, block)
            if turn > 0:
                results[name].append(measured)
    cells = [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in results.values()]
    print(f"| {job} | " + " | ".join(cells) + " |", flush=True)
