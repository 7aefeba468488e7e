#!/usr/bin/python3 -B
"""Measures each server of each protocol with default options, through a plain mount, by turns.

`$RUN/mounts` on the host: lines of a protocol, a column and a mount command without its directory,
with tabs between them. ROUNDS: measurements of each cell. SECONDS: the time of each load. SIZE: of
the file, MiB."""

import json
import os
import shlex
import statistics
import subprocess
import time

from checking import said
from measuring import ROUNDS, Measured

SECONDS, SIZE = (int(os.environ[name]) for name in ("SECONDS", "SIZE"))
MIB, DIRECTORY = 1 << 20, "/run/bench"
FILE, SCRATCH, LISTED, LISTED_FILES = "bench.data", "scratch", "listed", 500
TITLES = {"virtiofs": "virtiofs", "9p": "9P", "nfs": "NFS"}
# A row, its unit, fio's options and the figure of fio's report.
FIO = [
    ("1 MiB writes", "MiB/s", ["--rw=randwrite", "--bs=1M"], lambda job: job["write"]["bw_bytes"] / MIB),
    ("4 KiB reads", "op/s", ["--rw=randread", "--bs=4k"], lambda job: job["read"]["iops"]),
    ("4 KiB writes, depth 16", "op/s", ["--rw=randwrite", "--bs=4k", "--iodepth=16"], lambda job: job["write"]["iops"]),
    (
        "4 KiB writes, buffered, and fsync",
        "op/s",
        ["--rw=write", "--bs=4k", "--direct=0", "--ioengine=psync", "--end_fsync=1"],
        lambda job: job["write"]["iops"],
    ),
]
READ, CREATE, LIST = "1 MiB reads, buffered, in a row", "create, write 4 KiB, close, stat, unlink", f"ls -l of {LISTED_FILES} files"
ROWS = [(name, unit) for name, unit, _, _ in FIO] + [(READ, "MiB/s"), (CREATE, "op/s"), (LIST, "µs")]


def with_fio(seconds):
    """fio's jobs one after the other, in one process: its start takes long in an emulated guest."""
    command = [
        "fio", f"--filename={DIRECTORY}/{FILE}", f"--size={SIZE}M", "--ioengine=libaio", "--direct=1", "--thread", "--time_based", f"--runtime={seconds}",
        "--randrepeat=0", "--output-format=json",
    ]
    for name, _, options, _ in FIO:
        command += [f"--name={name}", "--stonewall", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"fio: {done.stderr}")
    jobs = json.loads(done.stdout)["jobs"]
    return {name: figure(job) for (name, _, _, figure), job in zip(FIO, jobs, strict=True)}


def read(seconds):
    """Reads the whole file again and again, of which the guest's page cache has nothing; MiB per second."""
    done, spent = 0, 0.0
    block = bytearray(MIB)
    while spent < seconds:
        with open(f"{DIRECTORY}/{FILE}", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.monotonic()
            while count := file.readinto(block):
                done += count
            spent += time.monotonic() - began
    return done / MIB / spent


def create(seconds):
    """Files per second."""
    content, done = bytes(4096), 0
    began = time.monotonic()
    while (spent := time.monotonic() - began) < seconds:
        names = [f"{DIRECTORY}/{SCRATCH}/{number}" for number in range(100)]
        for name in names:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(file, content)
            os.close(file)
            if os.stat(name).st_size != len(content):
                raise ValueError(f"{name} has not the size that was written")
        for name in names:
            os.unlink(name)
        done += len(names)
    return done / spent


def list_files():
    """Microseconds, of a mount that was just made."""
    began = time.monotonic()
    listing = subprocess.run(["ls", "-l", f"{DIRECTORY}/{LISTED}"], check=True, stdout=subprocess.PIPE).stdout
    took = time.monotonic() - began
    if listing.count(b"\n") != 1 + LISTED_FILES:
        raise ValueError(f"{listing.count(10)} lines of ls")
    return took * 1e6


def mounted(mount, load):
    said(*mount, DIRECTORY)
    try:
        return load()
    finally:
        said("umount", DIRECTORY)


def measure(mount, seconds):
    figures = {LIST: statistics.median(mounted(mount, list_files) for _ in range(3))}
    loads = {CREATE: create, READ: read}
    figures |= mounted(mount, lambda: with_fio(seconds) | {row: load(seconds) for row, load in loads.items()})
    return figures


# World-writable, for a server may squash root.
said(
    "host",
    f"umask 0; chmod 777 . && mkdir {SCRATCH} {LISTED} && dd if=/dev/zero of={FILE} bs=1M count={SIZE} status=none && cd {LISTED} && "
    f"for n in $(seq {LISTED_FILES}); do head -c 4096 /dev/zero >a-file-$n || exit; done",
)
os.mkdir(DIRECTORY)
protocols = {}
for line in said("host", "cat $RUN/mounts").splitlines():
    protocol, column, mount = line.split("\t")
    protocols.setdefault(protocol, {})[column] = shlex.split(mount)
for protocol, mounts in protocols.items():
    measured = Measured(
        f"{TITLES[protocol]} with default options, by the kernel's client and a plain mount",
        [
            f"Linux {os.uname().release} in a guest, file of {SIZE} MiB on a RAM disk of the host, {ROUNDS} rounds of {SECONDS} s",
            "fio's loads are direct, one at a time, unless they say otherwise; listings are of a mount that was just made",
            "the guest is emulated, and TCP goes through QEMU's network: what counts is what stands side by side",
            *(f"{column}: {shlex.join(mount)} DIR" for column, mount in mounts.items()),
        ],
        list(mounts),
        list(range(1, len(mounts))),
    )
    # Once before it counts: code that is translated stays so.
    measure(next(iter(mounts.values())), 1)
    results = measured.by_turns("loads", lambda column: measure(mounts[column], SECONDS), warm=0)
    for name, unit in ROWS:
        measured.row(name, unit, [[figures[name] for figures in runs] for runs in results])
    measured.end()
