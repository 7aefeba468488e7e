#!/usr/bin/python3 -B
"""A file of the host as a disk of the guest: by a virtio device, then by NBD. SIZE: MiB of a large file on it. KILLS: how often the process that serves
it is killed."""

import hashlib
import os
import subprocess
import time

from checking import check, end, said, skip, tests

KILLS = int(os.environ.get("KILLS", "3"))
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


def killed():
    """The process that serves the disk is killed in the midst of requests: QEMU connects to the next one, which serves again those without a reply."""
    command = f"fio --name=killed --filename={DISK} --offset=128M --offset_increment=16M --numjobs=4 --size=16M --rw=randwrite --verify=crc32c --verify_fatal=1 --verify_state_save=0"
    command += " --thread --direct=1 --ioengine=libaio --iodepth=16 --bsrange=4k-64k --fsync=8 --loops=10000"
    fio = subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for number in range(KILLS):
        if not goes_on(fio):
            break
        time.sleep(0.3)
        check("killed", subprocess.run(["host", 'pkill -KILL -P "$(cat "$RUN/drive.pid")"']).returncode, 0)
    ran_on = goes_on(fio)
    fio.terminate()
    output = fio.communicate()[0]
    check(f"fio after {KILLS} kills", ran_on or output, True)
    check("errors", "err= 0" in output or output, True)


def goes_on(fio):
    """Waits for further writes. A request that is lost stops them all."""
    before, end = written(), time.monotonic() + 60
    while written() == before and fio.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return written() != before and fio.poll() is None


def written():
    """Sectors that the disk has written."""
    with open("/sys/block/vda/stat") as file:
        return int(file.read().split()[6])


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


tests(by_virtio, straight, by_nbd, killed)
end("bytes, discards and zeros by both ways")
