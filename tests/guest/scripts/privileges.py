#!/usr/bin/python3 -B
"""Set-id bits and file capabilities: each change of a file takes away from them what it takes away in a file system of the guest's own (tmpfs).

It is tried in the share itself, and in an overlayfs whose upper layer is in the share, against one whose upper layer is in memory.
"""

import ctypes
import mmap
import os
import shutil
import stat
import subprocess
import tempfile
import time

from checking import check, end, said, skip, tests

USER, GROUP, FURTHER, OTHER = 1234, 1234, 1235, 4321
CAPABILITY = "security.capability"
# VFS_CAP_REVISION_2 with CAP_NET_RAW permitted and effective (linux/capability.h).
VALUE = bytes.fromhex("0100000200200000000000000000000000000000")
SIZE = 8192
libc = ctypes.CDLL(None, use_errno=True)


def opened(path, flags, change):
    fd = os.open(path, flags)
    try:
        change(fd)
    finally:
        os.close(fd)


def fallocate(mode):
    def change(fd):
        if libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")
    return change


def direct(fd):
    page = mmap.mmap(-1, 4096)
    page.write(b"d" * 4096)
    os.pwritev(fd, [page], 0)


def mapped(fd):
    with mmap.mmap(fd, 4096, mmap.MAP_SHARED) as pages:
        pages[0] = 1
        pages.flush()


def copied(path):
    with open(path + ".from", "rb") as source:
        opened(path, os.O_WRONLY, lambda fd: os.copy_file_range(source.fileno(), fd, 4096))


def made_set_id_and_given(path):
    """By one process, which is not taken for a copy that overlayfs makes."""
    os.chmod(path, 0o6777)
    os.chown(path, OTHER, OTHER)


def given_twice(path):
    os.chown(path, OTHER, OTHER)
    os.chown(path, USER, GROUP)


CHANGES = {
    "nothing": lambda path: None,
    "write": lambda path: opened(path, os.O_WRONLY, lambda fd: os.pwrite(fd, b"x", 0)),
    "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"x")),
    "many writes": lambda path: opened(path, os.O_WRONLY, lambda fd: [os.pwrite(fd, b"x", at) for at in range(9)]),
    "open with O_TRUNC": lambda path: opened(path, os.O_WRONLY | os.O_TRUNC, lambda fd: None),
    "creat": lambda path: opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, lambda fd: None),
    "truncate": lambda path: os.truncate(path, 5),
    "ftruncate": lambda path: opened(path, os.O_WRONLY, lambda fd: os.ftruncate(fd, 5)),
    "fallocate": lambda path: opened(path, os.O_WRONLY, fallocate(0)),
    # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    "punching a hole": lambda path: opened(path, os.O_WRONLY, fallocate(3)),
    "copy_file_range": copied,
    "chown": lambda path: os.chown(path, OTHER, OTHER),
    "chown of the user": lambda path: os.chown(path, OTHER, -1),
    "chown of the group": lambda path: os.chown(path, -1, FURTHER),
    "chown to nobody": lambda path: os.chown(path, -1, -1),
    "fchown": lambda path: opened(path, os.O_WRONLY, lambda fd: os.fchown(fd, OTHER, OTHER)),
    "two chowns": given_twice,
    "chmod and chown": made_set_id_and_given,
    "chmod": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) ^ 0o001),
    "utime": lambda path: os.utime(path, (1, 2)),
    "link": lambda path: os.link(path, path + ".link"),
    "rename": lambda path: os.rename(path, path + ".renamed") or os.rename(path + ".renamed", path),
}

# Without execution by the group, the set-gid bit is none.
MODES = (0o6777, 0o4755, 0o2776, 0o2766)


def as_user(change, path):
    """Whether a user without privileges can do it: 0, or an error's number."""
    child = os.fork()
    if child == 0:
        os.setgroups([FURTHER])
        os.setresgid(GROUP, GROUP, GROUP)
        os.setresuid(USER, USER, USER)
        try:
            change(path)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state(path):
    found = os.stat(path)
    try:
        capable = os.getxattr(path, CAPABILITY) == VALUE
    except OSError:
        capable = False
    return oct(stat.S_IMODE(found.st_mode)), capable, found.st_uid, found.st_gid


def cases():
    for name in CHANGES:
        for mode in MODES:
            for capable in (False, True):
                for owner in (0, USER):
                    for user in (False, True):
                        yield name, mode, capable, owner, user


def fill(directory):
    os.mkdir(directory)
    os.chmod(directory, 0o777)
    for number, (_, mode, capable, owner, _) in enumerate(cases()):
        path = f"{directory}/{number}"
        for name in (path, path + ".from"):
            with open(name, "wb") as file:
                file.write(b"." * SIZE)
        os.chown(path, owner, owner)
        os.chmod(path, mode)
        if capable:
            os.setxattr(path, CAPABILITY, VALUE)


def outcomes(directory):
    """What each change comes to in files made by `fill`."""
    found = []
    for number, (name, _, _, _, user) in enumerate(cases()):
        path = f"{directory}/{number}"
        change = CHANGES[name]
        result = as_user(change, path) if user else change(path) and 0
        found.append((result, state(path)))
    return found


def compare(where, got, expected):
    for case, one, other in zip(cases(), got, expected):
        name, mode, capable, owner, user = case
        by = "a user" if user else "the super-user"
        what = f"{where}: {name} by {by}, mode {mode:o}, owner {owner}{', capabilities' if capable else ''}"
        check(what, one, other)


def memory():
    top = tempfile.mkdtemp()
    said("mount", "-t", "tmpfs", "memory", top)
    os.chmod(top, 0o777)
    return top


def share():
    fill(f"{top}/plain")
    fill("plain")
    expected = outcomes(f"{top}/plain")
    compare("share", outcomes("plain"), expected)
    # The guest's knowledge has expired: the same of the server's.
    time.sleep(1.1)
    compare("share, later", [(result, state(f"plain/{number}")) for number, (result, _) in enumerate(expected)], expected)


def unusual():
    """What tmpfs of Linux 6.1 does not have, and what is taken away beyond a local file system's."""
    for name, change in (("O_DIRECT", direct), ("mmap", mapped)):
        flags = os.O_RDWR | (os.O_DIRECT if change is direct else 0)
        for user in (False, True):
            path = f"{name}-{user}"
            with open(path, "wb") as file:
                file.write(b"." * SIZE)
            os.chmod(path, 0o6777)
            os.setxattr(path, CAPABILITY, VALUE)
            do = lambda path: opened(path, flags, change)
            check(f"{name}", as_user(do, path) if user else do(path), 0 if user else None)
            # A shared mapping leaves set-id bits everywhere.
            killed = user and change is direct
            check(f"set-id bits after {name}, user {user}", state(path)[0], oct(0o777 if killed else 0o6777))
            check(f"capabilities on the host after {name}", "security.capability" in said("host", f"getfattr -m - {path}"), False)


def stale():
    """The guest does not know yet that the host has set bits."""
    for name in ("write", "many writes", "fallocate", "copy_file_range", "open with O_TRUNC"):
        path = f"stale-{name.split()[0]}-{len(name)}"
        for one in (path, path + ".from"):
            with open(one, "wb") as file:
                file.write(b"." * SIZE)
        os.chmod(path, 0o777)
        said("host", f"chmod 6777 {path}")
        check(f"a stale {name}", as_user(CHANGES[name], path), 0)
        check(f"the host's mode after a stale {name}", said("host", f"stat -c %a {path}").strip(), "777")


def programs():
    """A program that its user has written to does not run as its owner, at once."""
    def prints():
        child = subprocess.run(["./identity", "-u"], user=USER, group=GROUP, extra_groups=[], capture_output=True, text=True)
        return child.stdout.strip()

    shutil.copy("/usr/bin/id", "identity")
    os.chmod("identity", 0o4777)
    check("a set-id program", prints(), "0")
    check("writing to it", as_user(CHANGES["append"], "identity"), 0)
    check("the program then", prints(), str(USER))


def overlay(options):
    """An overlayfs over files in memory, with its upper layer in memory and in the share."""
    lower, found = f"{top}/lower{len(options)}", []
    fill(lower)
    for where in (top, os.getcwd()):
        upper, work, merged = (f"{where}/{name}{len(options)}" for name in ("upper", "work", "merged"))
        for name in (upper, work, merged):
            os.mkdir(name)
        mount = ("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work},{options}", merged)
        said(*mount)
        first = outcomes(merged)
        said("umount", merged)
        # As it is in the upper layer.
        said(*mount)
        found.append((first, [(result, state(f"{merged}/{number}")) for number, (result, _) in enumerate(first)]))
        said("umount", merged)
    (expected, kept), (got, read_again) = found
    compare(f"overlayfs, {options}", got, expected)
    compare(f"overlayfs, {options}, once more", read_again, kept)


def overlays():
    overlay("metacopy=off")
    overlay("metacopy=on,redirect_dir=on")


if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")
top = memory()
try:
    tests(share, unusual, stale, programs, overlays)
finally:
    said("umount", top)
end("privileges go and stay as they do in memory")
