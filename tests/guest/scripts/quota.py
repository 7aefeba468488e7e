#!/usr/bin/python3 -B
"""Two guests fill a share with a quota of 24 MiB at once: both get EDQUOT, files that were synchronized are complete, and df shows the quota as the size.

Space that one guest frees is the other's."""

import errno
import os

from checking import check, end, said

QUOTA = 24 << 20
GUEST = int(os.environ.get("GUEST", "1"))
SIZE = 1 << 20

# An uncached write of v9fs that fails returns 0 since 6.12, and fsync the error, or EIO.
with open("/proc/mounts") as mounts:
    V9FS = any(line.split()[1:3] == ["/mnt", "9p"] for line in mounts)
FULL = ["EDQUOT", "EIO"] if V9FS and not os.uname().release.startswith("6.1.") else ["EDQUOT"]


def pattern(number):
    return bytes([GUEST, number % 251]) * (SIZE // 2)


def fill(prefix):
    """Writes and synchronizes files until the quota is used up, and returns their names."""
    names = []
    for number in range(2 * QUOTA // SIZE):
        name = f"{prefix}-{number}"
        try:
            with open(name, "wb", buffering=0) as file:
                data = memoryview(pattern(number))
                written = 1
                while data and written:
                    written = file.write(data[:65536])
                    data = data[written:]
                os.fsync(file.fileno())
        except OSError as error:
            code = errno.errorcode[error.errno]
            check(f"{code}, the error of a full share", code in FULL, True)
            os.unlink(name)
            return names
        names.append(name)
    check("the quota", "not reached", "reached")
    return names


said("meet")
names = fill(f"guest{GUEST}")
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
    more = len(fill("more"))
    check(f"{more} files in the space of {freed}", freed <= more <= freed + 2, True)
said("meet")
end(f"guest {GUEST} wrote {len(names)} files of 1 MiB, and both no more than 24 MiB")
