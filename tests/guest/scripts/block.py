#!/usr/bin/python3 -B
"""A file of the host as a disk of the guest: by a virtio device, then by NBD. SIZE: MiB of a large file on it."""

import hashlib
import os
import subprocess

from checking import check, end, said, skip, tests

SIZE = int(os.environ.get("SIZE", "8")) << 20
DISK = "/dev/vda"
if os.environ.get("BARGE_LOCAL") or not os.path.exists(DISK):
    skip("this takes a guest with a disk")



def setting(name):
    with open(f"/sys/block/vda/queue/{name}") as file:
        return int(file.read())


def blocks():
    """KiB that the file takes on the host."""
    return int(said("host", "sync -d $RUN/disk; stat -c %b $RUN/disk")) // 2


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


at = "/run/disk"
data = os.urandom(SIZE)


def by_virtio():
    check("bytes", int(said("blockdev", "--getsize64", DISK)), 256 << 20)
    check("physical block", setting("physical_block_size"), 4096)
    check("discards", setting("discard_max_bytes") > 0, True)
    check("zeroes", setting("write_zeroes_max_bytes") > 0, True)
    said("mkfs.ext4", "-q", DISK)
    os.mkdir(at)
    said("mount", DISK, at)
    with open(f"{at}/large", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    for number in range(500):
        with open(f"{at}/{number}", "w") as file:
            file.write(str(number))
    said("umount", at)
    check("errors", subprocess.run(["e2fsck", "-fn", DISK], capture_output=True).returncode, 0)
    said("mount", DISK, at)
    check("read again", digest(f"{at}/large"), hashlib.sha256(data).hexdigest())
    full = blocks()
    os.unlink(f"{at}/large")
    # Blocks are free once the journal says so.
    os.sync()
    said("fstrim", at)
    check("given back", full - blocks() > SIZE // 1024 * 3 // 4, True)
    with open(f"{at}/large", "wb") as file:
        file.write(data)
    said("umount", at)


def straight():
    """Without a file system: bytes where they belong, on the host as well, and past any cache of the guest."""
    block = os.urandom(1 << 20)
    with open("block", "wb") as file:
        file.write(block)
    said("dd", "if=block", f"of={DISK}", "bs=64k", "seek=4080", "oflag=direct", "conv=notrunc,fsync", "status=none")
    there = said("host", "tail -c +$((4080 * 65536 + 1)) $RUN/disk | head -c 1048576 | sha256sum").split()[0]
    check("on the host", there, hashlib.sha256(block).hexdigest())
    said("blkdiscard", "-z", "-o", str(4080 << 16), "-l", str(1 << 20), DISK)
    zeros = said("host", "tail -c +$((4080 * 65536 + 1)) $RUN/disk | head -c 1048576 | tr -d '\\0' | wc -c")
    check("zeros on the host", zeros.strip(), "0")


def by_nbd():
    """What was written by virtio, by the kernel's own client of the network block device."""
    told = said("host", "cat $RUN/server-2.log")
    [command] = [line.split() for line in told.splitlines() if line.startswith("nbd-client")]
    [server] = [line.split()[0] for line in open("/proc/mounts") if line.split()[1] == "/mnt"]
    [_, _, _, _, port, device] = command
    said("nbd-client", "-N", "disk", "-C", "2", server, port, device)
    try:
        said("mount", device, at)
        check("read by NBD", digest(f"{at}/large"), hashlib.sha256(data).hexdigest())
        with open(f"{at}/by-nbd", "wb") as file:
            file.write(data)
        said("umount", at)
    finally:
        said("nbd-client", "-d", device)
    said("blockdev", "--flushbufs", DISK)
    said("mount", DISK, at)
    check("written by NBD", digest(f"{at}/by-nbd"), hashlib.sha256(data).hexdigest())
    said("umount", at)
    check("errors", subprocess.run(["e2fsck", "-fn", DISK], capture_output=True).returncode, 0)


tests(by_virtio, straight, by_nbd)
end("bytes, discards and zeros by both ways")
