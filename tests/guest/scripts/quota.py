#!/usr/bin/python3 -B
"""Two guests fill a share with a quota of 24 MiB at once: both get EDQUOT, the host has each byte that was synchronized, df shows the quota as the size, and as used what
du counts on the host.

Space that one guest frees is the other's. The share is a file system of its own, mounted in the namespace of the server only."""

import errno
import hashlib
import os
import shlex
import time

from checking import check, end, said, skip

QUOTA = 24 << 20
GUEST = int(os.environ.get("GUEST", "1"))
SIZE = 1 << 20
# As much is synchronized at a time.
STEP = 256 << 10

# An uncached write of v9fs that fails returns 0 since 6.12, and fsync the error, or EIO.
with open("/proc/mounts") as mounts:
    V9FS = any(line.split()[1:3] == ["/mnt", "9p"] for line in mounts)
FULL = ["EDQUOT", "EIO"] if V9FS and not os.uname().release.startswith("6.1.") else ["EDQUOT"]


if os.environ.get("GUESTS") != "2":
    skip("this takes two guests")


def pattern(number):
    return bytes([GUEST, number % 251]) * (SIZE // 2)


def fill(prefix):
    """Writes files, synchronized in steps, until the quota is used up. Returns the number of bytes that were acknowledged of each."""
    acknowledged = {}
    for number in range(2 * QUOTA // SIZE):
        name = f"{prefix}-{number}"
        acknowledged[name] = 0
        try:
            with open(name, "wb", buffering=0) as file:
                data = memoryview(pattern(number))
                written = 1
                while data and written:
                    written = file.write(data[:STEP])
                    data = data[written:]
                    os.fsync(file.fileno())
                    acknowledged[name] += written
        except OSError as error:
            code = errno.errorcode[error.errno]
            check(f"{code}, the error of a full share", code in FULL, True)
            return acknowledged
    check("the quota", "not reached", "reached")
    return acknowledged


def on_host(command):
    """Runs a command on the host, where the share is."""
    inside = f"cd $RUN/share/{os.path.basename(os.getcwd())} && {command}"
    return said("host", f"nsenter --mount --target $(cat $RUN/server.pid) sh -c {shlex.quote(inside)}")


said("meet")
acknowledged = fill(f"guest{GUEST}")
said("meet")
sums = "".join(f"head -c {size} {name} | sha256sum; " for name, size in acknowledged.items())
expected = [hashlib.sha256(pattern(int(name.split("-")[1]))[:size]).hexdigest() for name, size in acknowledged.items()]
check("acknowledged bytes on the host", [line.split()[0] for line in on_host(sums).splitlines()], expected)


def free():
    """The free space according to df in the guest, and according to du on the host, in df's blocks. NFS clients count in blocks of a request, and round up."""
    stat = os.statvfs(".")
    return stat.f_bfree, -((int(on_host("du -s --block-size=1 ..").split()[0]) - QUOTA) // stat.f_frsize)


# XFS takes space back a while after a file is closed, which counts as used for du.
deadline = time.monotonic() + 30
while len(set(free())) > 1 and time.monotonic() < deadline:
    pass
df, du = free()
check("free space: df in the guest, du on the host", df, du)
check("used space within the quota", du >= 0, True)
said("meet")
# The last file is not whole.
partial = next((name for name, size in acknowledged.items() if size < SIZE), None)
if partial:
    os.unlink(partial)
names = [name for name in acknowledged if name != partial]
said("meet")
for name in names:
    with open(name, "rb") as file:
        check(name, file.read() == pattern(int(name.split("-")[1])), True)
stat = os.statvfs(".")
check("the size of the share", stat.f_blocks * stat.f_frsize, QUOTA)
files = [entry for entry in os.scandir(".") if entry.name.startswith("guest")]
used = sum(entry.stat().st_blocks * 512 for entry in files)
check("files of both guests within the quota", QUOTA - 3 * SIZE <= used <= QUOTA, True)
used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
check("the used space, according to df", QUOTA - 3 * SIZE <= used <= QUOTA, True)
freed = sum(entry.name.startswith("guest1") for entry in files)
said("meet")
if GUEST == 1:
    for name in names:
        os.unlink(name)
said("meet")
if GUEST == 2:
    more = sum(size == SIZE for size in fill("more").values())
    check(f"{more} files in the space of {freed}", freed <= more <= freed + 2, True)
said("meet")
end(f"guest {GUEST} wrote {len(names)} files of 1 MiB, and both no more than 24 MiB")
