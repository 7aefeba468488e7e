#!/usr/bin/python3 -B
"""fio in the guest gets the operations and bytes per second that --limit and --client-limit allow, with direct I/O: no more than 5 % beyond them, or what a bucket saves, and at least the share LEAST
of them. RUNTIME: of each measurement, seconds. OPS, BYTES: the rates, which have to be well below what the guest gets without limits (MiB per second). OPTIONS: the limits
to set.

BARGE: the program."""

import json
import os

from checking import check, end, said, skip

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")
if os.uname().release.startswith("6.1.") and any(" /mnt 9p " in line for line in open("/proc/mounts")):
    skip("v9fs of 6.1 refuses direct I/O")
RUNTIME = int(os.environ.get("RUNTIME", "8"))
LEAST = float(os.environ.get("LEAST", "0.95"))
OPS, BYTES = int(os.environ.get("OPS", "100")), int(os.environ.get("BYTES", "8"))
OPTIONS = os.environ.get("OPTIONS", "--limit --client-limit").split()
SIZE = 64 << 20
FIO = "fio --name=limits --filename=data --size=64M --direct=1 --time_based --group_reporting --output-format=json".split()
# Each measurement: fio's options, the result, the limit, and what a request takes of it.
LOADS = {
    "4 KiB random reads": ("--rw=randread --bs=4k", "iops", f"ops={OPS}", OPS, 1),
    "1 MiB reads": ("--rw=read --bs=1M", "bw_bytes", f"bytes={BYTES}M", BYTES << 20, 1 << 20),
    "1 MiB writes": ("--rw=write --bs=1M", "bw_bytes", f"bytes={BYTES}M", BYTES << 20, 1 << 20),
}
# The seconds of a rate that a bucket saves.
BURST = 0.1


def limit(option, rates):
    said("host", f"{os.environ['BARGE']} ctl --control unix:$RUN/control limit '' {option} {rates}")


def rate(options, result, seconds):
    """Returns what fio gets, per second."""
    # The ramp uses up what the bucket has saved.
    output = said(*FIO, "--ioengine=psync", f"--runtime={seconds}", "--ramp_time=1", *options.split())
    job = json.loads(output[output.index("{") :])["jobs"][0]
    return job["write" if "write" in options else "read"][result]


with open("data", "wb") as file:
    for _ in range(SIZE >> 20):
        file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
for name, (options, result, rates, expected, request) in LOADS.items():
    # Within the time of a measurement a bucket lets its burst pass as well, and a request beyond.
    most = max(1.05, 1 + (BURST + request / expected) / RUNTIME)
    free = rate(options, result, 1)
    for option in OPTIONS:
        limit(option, rates)
        got = rate(options, result, RUNTIME)
        limit(option, "none")
        told = f"{name}, {option} {rates}: {got / expected * 100:.1f} % of the limit, {free / expected:.1f} times as much without"
        if os.environ.get("VERBOSE"):
            print(f"limits: {told}")
        check(f"{told}, at least {LEAST * 100:.0f} %, at most {most * 100:.0f} %", LEAST <= got / expected <= most, True)
    check(f"{name}: the guest can exceed the limit", free > 1.5 * expected, True)
os.unlink("data")
end("the limits are held")
