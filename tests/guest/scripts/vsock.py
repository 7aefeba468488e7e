#!/usr/bin/python3 -B
"""9P over vsock, both ways: mounted by the command that barge prints, by a client in the guest, and from the host; a mount of barge-mount-9p outlives its connections.
SIZE: MiB of a large file. KILLS: how often the server is killed.

BARGE: the program."""

import fcntl
import hashlib
import multiprocessing
import os
import subprocess
import time

from checking import check, end, said, skip, tests
from serving import BARGE, Served, print_log_on_failure

PORT = 5640

# vhost-device-vsock 0.3.0 drops packets of a guest's whose data is in several descriptors, as Linux 6.12 sends them from 32 KiB on (docs/design/guests.md).
MSIZE = 16384
IN_PIECES = not os.uname().release.startswith("6.1.")
KILLS = int(os.environ.get("KILLS", "3"))
SIZE = int(os.environ.get("SIZE", "4")) << 20
if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


here = os.path.relpath(os.getcwd(), "/mnt")
at = "/run/by-vsock"


def mounted():
    """The share by the command that is printed, which names the kernel's trans=fd."""
    told = said("host", "cat $RUN/server-1.log")
    [command] = [line for line in told.splitlines() if "AF_VSOCK" in line]
    os.mkdir(at)
    options = f"cache=mmap,msize={MSIZE}"
    said("sh", "-c", command.replace('"/mnt"', f'"{at}"').replace("msize=1048600", options))
    [mount] = [line.split() for line in open("/proc/mounts") if f" {at} " in line]
    check("options", "trans=fd" in mount[3] and mount[2], "9p")
    data = os.urandom(SIZE)
    with open(f"{at}/{here}/large", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    check("seen on the host", said("host", "sha256sum large").split()[0], hashlib.sha256(data).hexdigest())
    said("host", "cp large copy")
    check("read", digest(f"{at}/{here}/copy"), hashlib.sha256(data).hexdigest())
    for number in range(300):
        open(f"{at}/{here}/{number}", "w").close()
    names = [name for name in os.listdir(f"{at}/{here}") if name.isdigit()]
    check("names", sorted(map(int, names)), list(range(300)))
    check("names by TCP", len([name for name in os.listdir(".") if name.isdigit()]), 300)
    with open(f"{at}/{here}/locked", "w") as ours, open("locked", "a") as others:
        fcntl.lockf(ours, fcntl.LOCK_EX)
        try:
            fcntl.lockf(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check("a lock by vsock, by TCP", "granted", "refused")
        except BlockingIOError:
            pass
    said("umount", at)
    os.rmdir(at)


def outlived():
    """A mount of barge-mount-9p, with a file that is written, outlives its server. The server is in the guest: vhost-device-vsock 0.3.0 does not reset all connections."""
    os.mkdir(at)
    os.mkdir("/run/served")
    connect = os.path.join(os.path.dirname(BARGE), "barge-mount-9p")
    address = "vsock:1:5641"
    over, lines, status = multiprocessing.Event(), multiprocessing.Value("i", 0), multiprocessing.Array("c", 100)

    def write_lines():
        """In a process of its own: one that starts a server while it has files of the mount would wait for that server."""
        try:
            with open(f"{at}/journal", "ab", buffering=0) as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                while not over.is_set():
                    file.write(b"%07d\n" % lines.value)
                    os.fsync(file.fileno())
                    lines.value += 1
                with open("/run/served/journal", "ab") as other:
                    try:
                        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        status.value = b"the lock is lost"
                    except BlockingIOError:
                        status.value = b"done"
        except OSError as error:
            status.value = error.strerror.encode()

    def ten_more():
        before = lines.value
        while lines.value < before + 10 and writer.is_alive():
            time.sleep(0.01)

    with Served("/run/served", "--trust-uids", "--9p", address) as server:
        said(connect, "-o", "cache=mmap", f"9p+{address}", at)
        writer = multiprocessing.Process(target=write_lines)
        writer.start()
        for _ in range(KILLS):
            ten_more()
            server.kill_and_restart()
        ten_more()
        over.set()
        writer.join()
        check("writing", status.value, b"done")
        written = open("/run/served/journal").read().split()
        check("journal", written == [f"{number:07d}" for number in range(lines.value)], True)
        said("umount", at)
        os.rmdir(at)


def by_our_client():
    """The kernel's sockets, by barge in the guest."""
    with open("text", "w") as file:
        file.write("text of the host")
    url = f"9p+vsock:{PORT}?aname={here}/"
    check("by barge", said(BARGE, "cat", url + "text"), "text of the host")
    said(BARGE, "cp", url + "large", "/run/large")
    check("copied by barge", digest("/run/large"), digest("large"))
    os.unlink("/run/large")
    done = subprocess.run([BARGE, "ls", "9p+vsock:9999"], capture_output=True, text=True)
    check("a port where nobody listens", (done.returncode, "cannot connect to vsock:9999" in done.stderr), (1, True))


def from_the_host():
    """A tree of the guest, served to its host."""
    os.mkdir("/run/tree")
    with open("/run/tree/text", "w") as file:
        file.write("text of the guest")
    with open("/run/tree/large", "wb") as file:
        file.write(os.urandom(SIZE))
    with Served("/run/tree", "--9p", "vsock:0") as server:
        [port] = [line.split("connect((2,")[1].split(")")[0] for line in server.output if "connect((2," in line]
        asked_by_the_host(port)


def asked_by_the_host(port):
    url = f"9p+vsock-uds:$RUN/vm:{port}?msize={MSIZE}&aname=/"
    check("by the host", said("host", f'{BARGE} cat "{url}text"'), "text of the guest")
    # Several replies leave by one call.
    if not IN_PIECES:
        told = said("host", f'{BARGE} cat "{url}large" | sha256sum')
        check("much by the host", told.split()[0], digest("/run/tree/large"))
    said("host", f'{BARGE} cp text "{url}back"')
    check("written by the host", open("/run/tree/back").read(), "text of the host")


tests(mounted, outlived, by_our_client, from_the_host)
print_log_on_failure()
end("9P both ways")
