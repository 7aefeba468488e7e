#!/usr/bin/python3 -B
"""Several sources as one share: the share is one of them, memory another, and beside the mount of the share alone there is one of both. Each is a mount of its own
there, and what is locked in either place is locked in the other."""

import fcntl
import os
import subprocess
import tempfile

from checking import check, end, skip

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

at = tempfile.mkdtemp(dir="/run")
here = os.getcwd()


def attempt(function, *args):
    try:
        return function(*args)
    except OSError as error:
        return error.strerror


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


subprocess.run(["mount", "-t", "virtiofs", "bundle", at], check=True)
one, two = f"{at}/one/{os.path.relpath(here, '/mnt')}", f"{at}/two"

check("names", sorted(os.listdir(at)), ["one", "two"])
# Whoever only asks for attributes of the last name mounts nothing.
places = [os.stat(f"{path}/.") for path in [at, f"{at}/one", two]]
check("devices", len({place.st_dev for place in places}), 3)
check("numbers", len({place.st_ino for place in places}), 3)
check("above", os.stat(f"{two}/..").st_ino, places[0].st_ino)
with open("/proc/self/mounts") as mounts:
    check("mounts", sorted(fields[1] for fields in map(str.split, mounts) if fields[1].startswith(at)), [at, f"{at}/one", two])
check("space", os.statvfs(one).f_blocks, os.statvfs(here).f_blocks)

write(f"{one}/file", "by the bundle")
check("the share has it", read("file"), "by the bundle")
write(f"{two}/file", "in memory")
check("memory has it", read(f"{two}/file"), "in memory")

read_only, across, busy = "Read-only file system", "Invalid cross-device link", "Device or resource busy"
check("making", attempt(os.mkdir, f"{at}/new"), read_only)
check("removing", attempt(os.rmdir, two), busy)
check("renaming", attempt(os.rename, two, f"{at}/three") in (busy, across), True)
check("moving across", attempt(os.rename, f"{one}/file", f"{two}/moved"), across)
check("linking across", attempt(os.link, f"{one}/file", f"{two}/linked"), across)
check("moving up", attempt(os.rename, f"{one}/file", f"{at}/moved"), across)

for first, second in [(f"{one}/file", "file"), ("file", f"{one}/file")]:
    for lock in [fcntl.lockf, fcntl.flock]:
        with open(first, "r+") as holder, open(second, "r+") as other:
            lock(holder, fcntl.LOCK_EX)
            check(f"{lock.__name__} of {second}", attempt(lock, other, fcntl.LOCK_SH | fcntl.LOCK_NB), "Resource temporarily unavailable")
            lock(holder, fcntl.LOCK_UN)
            check(f"{lock.__name__} of {second}, free", attempt(lock, other, fcntl.LOCK_EX | fcntl.LOCK_NB), None)
os.unlink("file")
subprocess.run(["umount", at], check=True)
end("two mounts in one share, and their locks seen in both")
