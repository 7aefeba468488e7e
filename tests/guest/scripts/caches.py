#!/usr/bin/python3 -B
"""Page coalescing's jobs (fio's equivalent of those that it was first measured with in Linux's 9P client) by the kernel's own 9P client in each of its cache modes, and by
`barge mount`, all of one server, and by a virtio disk with ext4. Each job begins with a mount that was just made, so with nothing in any cache of the guest.

ROUNDS: how often each is measured, by turns. SIZE: of the file, MiB. BARGE: the program."""

import json
import os
import shlex
import subprocess

from checking import said
from measuring import ROUNDS, Measured

SIZE, BARGE = int(os.environ["SIZE"]), os.environ["BARGE"]
SECONDS, REPORT = 1, "/tmp/report"
JOBS = [(f"{kind}{what} {block}", f"{prefix}{what}", block) for kind, prefix in (("", ""), ("random ", "rand")) for block in ("1M", "4K") for what in ("write", "read")]
port = said("host", "cat $RUN/port").strip()


def ninep(options):
    return ["mount", "-t", "9p", "-o", f"trans=tcp,port={port},version=9p2000.L,{options}", "10.0.2.2"]


def fuse(options):
    return [BARGE, "mount", "-o", options, f"9p://10.0.2.2:{port}/"]


PAGED, DISK = "v9fs, uncoalesced", "virtio block, ext4"
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
at, shared = "/run/caches", os.path.relpath(os.getcwd(), "/mnt")
os.mkdir(at)


def measure(name):
    """What fio says of each job, in order. One fio does them all: it takes longer to begin than a job does."""
    # fio looks at the files before any job begins. Its names of jobs become words of the commands.
    said(*MOUNTS[name], at)
    mount = shlex.join([*MOUNTS[name], at])
    command = ["fio", "--ioengine=psync", "--thread", "--invalidate=0", "--end_fsync=1", "--randseed=7", f"--size={SIZE}M", f"--runtime={SECONDS}", "--output-format=json", f"--output={REPORT}"]
    for job, kind, block in JOBS:
        file = os.path.join(at, "." if name == DISK else shared, "out" if kind == "write" else "data")
        removed = f" && rm -f {file}" if kind == "write" else ""
        command += ["--name=" + job.replace(" ", "-"), "--stonewall", f"--filename={file}", f"--rw={kind}", f"--bs={block}"]
        command += [f"--exec_prerun=umount {at}; {mount}{removed}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/tmp")
    subprocess.run(["umount", at])
    with open(REPORT) as report:
        text = report.read()
    # What it says of its commands comes first.
    said_first, brace, text = text.partition("{")
    if not brace:
        raise RuntimeError(f"fio: {said_first}{done.stderr}")
    return json.loads(brace + text)["jobs"]


def rate(job, kind):
    """MB/s, the time of fsync in it."""
    if job["error"]:
        raise RuntimeError(os.strerror(job["error"]))
    return job["read" if kind.endswith("read") else "write"]["bw_bytes"] / 1e6


def is_known(command):
    """Whether this kernel has the mode."""
    known = subprocess.run([*command, at], capture_output=True).returncode == 0
    if known:
        said("umount", at)
    return known


said("host", f"dd if=/dev/urandom of=data bs=1M count={SIZE} 2>&1")
names = [name for name, command in MOUNTS.items() if is_known(command)]
said(*MOUNTS[DISK], at)
said("cp", "data", at)
said("umount", at)
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
results = {job: {name: [] for name in names} for job, _, _ in JOBS}
for _, name in measured.turns(warm=0):
    try:
        done = measure(name)
    except (RuntimeError, ValueError, LookupError) as error:
        measured.fail(name, "all", error)
        continue
    for (job, kind, _), found in zip(JOBS, done):
        try:
            results[job][name].append(rate(found, kind))
        except (RuntimeError, LookupError) as error:
            measured.fail(name, job, error)
        measured.row(job, "MB/s", list(results[job].values()))
    measured.tell()
measured.end()
