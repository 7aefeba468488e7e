#!/usr/bin/python3 -B
"""Measures one file through several mounts by turns, with fio: random writes of 1 MiB and random reads of 4 KiB, direct, one at a time.

The share is mounted here already (9P); TAGS: virtiofs devices of the same share. ROUNDS: how often each is measured, after one round that does not count.
SECONDS: how long. SIZE: of the file, MiB."""

import json
import os
import statistics

from checking import said

ROUNDS, SECONDS, SIZE = (int(os.environ[name]) for name in ("ROUNDS", "SECONDS", "SIZE"))
# Name, fio's options, what a result is called, and which part of fio's report it is.
LOADS = [
    ("1 MiB writes", ["--rw=randwrite", "--bs=1M"], "MiB/s", lambda job: job["write"]["bw_bytes"] / (1 << 20)),
    ("4 KiB reads", ["--rw=randread", "--bs=4k"], "IOPS", lambda job: job["read"]["iops"]),
]


def measure(directory, options):
    report = said(
        "fio", "--name=bench", f"--filename={directory}/bench.data", f"--size={SIZE}M", "--ioengine=libaio", "--iodepth=1", "--numjobs=1", "--direct=1",
        "--time_based", f"--runtime={SECONDS}", "--randrepeat=0", "--output-format=json", *options,
    )
    return json.loads(report)["jobs"][0]


mounts = {"barge, 9P": os.getcwd()}
for tag in os.environ["TAGS"].split(","):
    at = f"/run/bench-{tag}"
    os.mkdir(at)
    said("mount", "-t", "virtiofs", tag, at)
    mounts[f"{tag}, virtiofs"] = at
said("dd", "if=/dev/zero", "of=bench.data", "bs=1M", f"count={SIZE}")

print(f"fio on {os.uname().release}, file of {SIZE} MiB, {ROUNDS} rounds of {SECONDS} s: median (least to most)\n")
print("| | " + " | ".join(mounts) + " |\n|---|" + "---|" * len(mounts))
for load, options, unit, value in LOADS:
    results = {name: [] for name in mounts}
    for turn in range(1 + ROUNDS):
        # The first of one round is the last of the next.
        for name in sorted(mounts, reverse=turn % 2 == 1):
            measured = value(measure(mounts[name], options))
            if turn > 0:
                results[name].append(measured)
    cells = [f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})" for each in results.values()]
    print(f"| {load}, {unit} | " + " | ".join(cells) + " |", flush=True)
for tag in os.environ["TAGS"].split(","):
    said("umount", f"/run/bench-{tag}")
os.unlink("bench.data")
