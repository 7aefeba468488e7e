#!/usr/bin/python3 -B
"""Measures one file through several mounts by turns, with fio: random writes of 1 MiB and random reads of 4 KiB,
direct, one at a time, random writes of 4 KiB, direct, 16 at a time, and buffered writes of 4 KiB in a row.

The share is mounted here already (9P); TAGS: virtiofs devices of the same share. ROUNDS: how often each is measured, after one round that does not count.
SECONDS: how long. SIZE: of the file, MiB."""

import json
import os

from checking import said
from measuring import ROUNDS, Measured

SECONDS, SIZE = (int(os.environ[name]) for name in ("SECONDS", "SIZE"))
# fio's options, and what is told: a name, a unit and which part of fio's report it is.
LOADS = [
    (
        ["--rw=randwrite", "--bs=1M"],
        [
            ("1 MiB writes", "MiB/s", lambda job: job["write"]["bw_bytes"] / (1 << 20)),
            ("1 MiB writes, mean latency", "µs", lambda job: job["write"]["lat_ns"]["mean"] / 1000),
        ],
    ),
    (["--rw=randread", "--bs=4k"], [("4 KiB reads", "op/s", lambda job: job["read"]["iops"])]),
    (
        ["--rw=randwrite", "--bs=4k", "--iodepth=16"],
        [("4 KiB writes, depth 16", "op/s", lambda job: job["write"]["iops"])],
    ),
    (
        ["--rw=write", "--bs=4k", "--direct=0", "--ioengine=psync"],
        [("4 KiB writes, buffered", "op/s", lambda job: job["write"]["iops"])],
    ),
]


def measure(directory, options):
    report = said(
        "fio", "--name=bench", f"--filename={directory}/bench.data", f"--size={SIZE}M", "--ioengine=libaio", "--iodepth=1", "--numjobs=1", "--direct=1",
        "--time_based", f"--runtime={SECONDS}", "--randrepeat=0", "--output-format=json", *options,
    )
    return json.loads(report)["jobs"][0]


tags = os.environ["TAGS"].split(",")
mounts = {f"{tag}, virtiofs": f"/run/bench-{tag}" for tag in tags}
mounts["barge, 9P"] = os.getcwd()
for tag in tags:
    os.mkdir(f"/run/bench-{tag}")
    said("mount", "-t", "virtiofs", tag, f"/run/bench-{tag}")
said("dd", "if=/dev/zero", "of=bench.data", "bs=1M", f"count={SIZE}")

measured = Measured(
    "A file on a RAM disk of the host, by the kernel's clients of virtiofs and 9P",
    [
        f"fio in a guest, Linux {os.uname().release}, file of {SIZE} MiB, direct, libaio, {ROUNDS} rounds of {SECONDS} s",
        "the guest is emulated, and 9P goes through QEMU's network: what counts is what stands side by side",
    ],
    list(mounts),
    list(range(1, len(tags))),
)
for options, figures in LOADS:
    results = measured.by_turns(figures[0][0], lambda name: measure(mounts[name], options))
    for name, unit, value in figures:
        measured.row(name, unit, [[value(job) for job in jobs] for jobs in results])
    measured.tell()
for tag in tags:
    said("umount", f"/run/bench-{tag}")
os.unlink("bench.data")
measured.end()
