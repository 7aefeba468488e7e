#!/usr/bin/python3 -B
"""Mounts other than the usual one: Unix sockets and descriptors, the older dialects, and options that change what is seen.

BARGE: the program. The servers run in the guest."""

import fcntl
import os
import socket
import stat
import tempfile

from checking import check, end, tests
from mounting import Mounted
from serving import Served, print_log_on_failure

top = tempfile.mkdtemp(dir="/run")


def attempt(function, *args):
    try:
        return function(*args)
    except OSError as error:
        return error.strerror


def work(label, at, links=True, locks=True):
    """A bit of everything that the dialect has."""

    def path(*names):
        return os.path.join(at, *names)

    data = os.urandom(300_000)
    with open(path("f"), "wb") as file:
        file.write(data)
    with open(path("f"), "rb") as file:
        check(f"{label}: data", file.read() == data, True)
    os.truncate(path("f"), 1000)
    os.chmod(path("f"), 0o640)
    os.utime(path("f"), (1_600_000_000, 1_500_000_000))
    status = os.stat(path("f"))
    check(f"{label}: size, mode, time", (status.st_size, stat.S_IMODE(status.st_mode), int(status.st_mtime)), (1000, 0o640, 1_500_000_000))
    os.mkdir(path("d"))
    os.rename(path("f"), path("g"))
    if links:
        os.symlink("somewhere", path("d", "s"))
        check(f"{label}: link", os.readlink(path("d", "s")), "somewhere")
        os.unlink(path("d", "s"))
    for number in range(200):
        open(path("d", f"{number}"), "w").close()
    check(f"{label}: names", sorted(map(int, os.listdir(path("d")))), list(range(200)))
    for number in range(200):
        os.unlink(path("d", f"{number}"))
    check(f"{label}: a full directory", attempt(os.rmdir, at), "Device or resource busy")
    os.rmdir(path("d"))
    with open(path("g"), "r+b") as file:
        os.unlink(path("g"))
        file.write(b"after")
        file.flush()
        check(f"{label}: removed while open", os.fstat(file.fileno()).st_size, 1000)
        if locks:
            fcntl.lockf(file, fcntl.LOCK_EX)
    check(f"{label}: nothing is left", os.listdir(at), [])


def unix_socket():
    share, path = tempfile.mkdtemp(dir=top), f"{top}/socket"
    with Served(share, "--9p", f"unix:{path}"):
        with Mounted(path, "trans=unix,version=9p2000.L,cache=mmap") as at:
            work("unix", at)
        with Mounted(path, "trans=unix,version=9p2000.u") as at:
            work("9p2000.u", at, locks=False)
        with Mounted(path, "trans=unix,version=9p2000,noextend,uname=root") as at:
            work("9p2000", at, links=False, locks=False)


def descriptors():
    ours, theirs = socket.socketpair()
    share = tempfile.mkdtemp(dir=top)
    with Served(share, "--9p", f"fd:{theirs.fileno()}", fds=[theirs.fileno()]):
        theirs.close()
        number = ours.fileno()
        with Mounted("barge", f"trans=fd,rfdno={number},wfdno={number},version=9p2000.L") as at:
            work("fd", at)
        ours.close()


def options():
    share, path = tempfile.mkdtemp(dir=top), f"{top}/options"
    os.chmod(share, 0o777)
    with open(f"{share}/there", "w") as file:
        file.write("text")
    os.chown(f"{share}/there", 100_500, 100_600)
    mount = "trans=unix,version=9p2000.L"
    with Served(share, "--read-only", "--9p", f"unix:{path}"), Mounted(path, mount) as at:
        check("read-only: reading", open(f"{at}/there").read(), "text")
        refused = "Read-only file system"
        check("read-only: making", attempt(os.mkdir, f"{at}/d"), refused)
        check("read-only: opening to write", attempt(open, f"{at}/there", "a"), refused)
        check("read-only: removing", attempt(os.unlink, f"{at}/there"), refused)
        check("read-only: mode", attempt(os.chmod, f"{at}/there", 0), refused)
    with Served(share, "--squash", "root", "--anon-uid", "1234", "--anon-gid", "4321", "--9p", f"unix:{path}"), Mounted(path, f"{mount},access=client") as at:
        os.mkdir(f"{at}/squashed")
        made = os.stat(f"{share}/squashed")
        check("squashed root", (made.st_uid, made.st_gid), (1234, 4321))
        check("squashed root: another's file", attempt(open, f"{at}/there", "a"), "Permission denied")
    ids = "0:100000:65536"
    with Served(share, "--map-uid", ids, "--map-gid", ids, "--9p", f"unix:{path}"), Mounted(path, f"{mount},access=client") as at:
        status = os.stat(f"{at}/there")
        check("mapped: owner seen", (status.st_uid, status.st_gid), (500, 600))
        os.mkdir(f"{at}/mapped")
        made = os.stat(f"{share}/mapped")
        check("mapped: owner made", (made.st_uid, made.st_gid), (100_000, 100_000))
        # The client's root is somebody here, and no more than that.
        check("mapped: giving away", attempt(os.chown, f"{at}/mapped", 7, 8), "Operation not permitted")


def exports():
    one, two, path = tempfile.mkdtemp(dir=top), tempfile.mkdtemp(dir=top), f"{top}/exports"
    with Served(f"one={one}", f"two={two}", "--9p", f"unix:{path}"):
        mount = "trans=unix,version=9p2000.L,aname="
        with Mounted(path, f"{mount}one") as first, Mounted(path, f"{mount}two") as second:
            open(f"{first}/a", "w").close()
            check("two exports", (os.listdir(second), os.listdir(one), os.listdir(two)), ([], ["a"], []))
        with Mounted(path, mount.removesuffix(",aname=")) as whole:
            check("all exports", (sorted(os.listdir(whole)), os.listdir(f"{whole}/one")), (["one", "two"], ["a"]))
            check("all exports: numbers", len({os.stat(f"{whole}/{name}").st_ino for name in [".", "one", "two"]}), 3)
            check("all exports: moving across", attempt(os.rename, f"{whole}/one/a", f"{whole}/two/a"), "Invalid cross-device link")
            check("all exports: making", attempt(os.mkdir, f"{whole}/new"), "Read-only file system")
        check("no such export", attempt(Mounted(path, f"{mount}three").__enter__), f"mount -o {mount}three: No such file or directory")


tests(unix_socket, descriptors, options, exports)
print_log_on_failure()
end("by socket, by descriptor, by each dialect and option")
