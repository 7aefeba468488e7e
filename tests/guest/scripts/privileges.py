#!/usr/bin/python3 -B
"""Set-id bits and file capabilities: each change of a file takes away what it takes away in a file
system of the guest's own (tmpfs).

It is tried in the share itself, and in an overlayfs whose upper layer is in the share, against one
whose upper layer is in memory. UPPER: `no` where the share cannot be an upper layer.
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


def written(fd):
    for at in range(9):
        os.pwrite(fd, b"x", at)


def mapped(fd):
    with mmap.mmap(fd, 4096, mmap.MAP_SHARED) as pages:
        pages[0] = 1
        pages.flush()


def copied(path):
    with open(path + ".from", "r+b", buffering=0) as source:
        # Within the upper layer of an overlayfs.
        source.write(b".")
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
    "many writes": lambda path: opened(path, os.O_WRONLY, written),
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
    # To a further group the host lets nobody: FUSE says nothing of those.
    "chown of the group": lambda path: os.chown(path, -1, os.getegid()),
    "chown to nobody": lambda path: os.chown(path, -1, -1),
    "fchown": lambda path: opened(path, os.O_WRONLY, lambda fd: os.fchown(fd, OTHER, OTHER)),
    "two chowns": given_twice,
    "chmod and chown": made_set_id_and_given,
    "chmod": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) ^ 0o001),
    "utime": lambda path: os.utime(path, (1, 2)),
    "link": lambda path: os.link(path, path + ".link"),
    "rename": lambda path: os.rename(path, path + ".renamed") or os.rename(path + ".renamed", path),
}

CONTENTS = ("write", "append", "many writes", "fallocate", "punching a hole", "copy_file_range")
TRUNCATES = ("truncate", "ftruncate", "open with O_TRUNC", "creat")

# Without execution by the group, the set-gid bit is none. All files are the user's, who has a
# further group.
MODES = (0o6777, 0o2766)


def as_root(change, path):
    """Whether the super-user can do it: 0, or an error's number."""
    try:
        change(path)
        return 0
    except OSError as error:
        return error.errno


def as_user(change, path):
    """Whether a user without privileges can do it: 0, or an error's number."""
    child = os.fork()
    if child == 0:
        os.setgroups([FURTHER])
        os.setresgid(GROUP, GROUP, GROUP)
        os.setresuid(USER, USER, USER)
        os._exit(as_root(change, path))
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
                for user in (False, True):
                    yield name, mode, capable, user


def fill(directory):
    os.mkdir(directory)
    os.chmod(directory, 0o777)
    for number, (name, mode, capable, _) in enumerate(cases()):
        path = f"{directory}/{number}"
        for one in (path, path + ".from") if name == "copy_file_range" else (path,):
            with open(one, "wb") as file:
                file.write(b"." * SIZE)
            os.chown(one, USER, GROUP)
        os.chmod(path, mode)
        if capable:
            os.setxattr(path, CAPABILITY, VALUE)


def outcomes(directory):
    """What each change comes to in files made by `fill`."""
    found = []
    for number, (name, _, _, user) in enumerate(cases()):
        path = f"{directory}/{number}"
        result = (as_user if user else as_root)(CHANGES[name], path)
        found.append((result, state(path)))
    return found


def again(directory, found):
    """The same results with what the files are now."""
    return [(result, state(f"{directory}/{number}")) for number, (result, _) in enumerate(found)]


def compare(where, got, expected):
    for case, one, other in zip(cases(), got, expected):
        name, mode, capable, user = case
        by = "a user" if user else "the super-user"
        what = f"{where}: {name} by {by}, mode {mode:o}{', capabilities' if capable else ''}"
        # To the server the super-user's truncate(2) is that of a user through an overlayfs, and what
        # the kernel sends before a change of contents means both bits and capabilities.
        if not user and (name in TRUNCATES or (capable and name in CONTENTS)) and one != other:
            one = one[0], oct(int(one[1][0], 8) | mode & 0o6000), *one[1][1:]
            other = other[0], *other[1]
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
    compare("share, later", again("plain", expected), expected)


def unusual():
    """Changes that tmpfs of Linux 6.1 lacks, or that take away more than in a local file system."""
    for name, change in (("O_DIRECT", direct), ("mmap", mapped)):
        flags = os.O_RDWR | (os.O_DIRECT if change is direct else 0)
        for user in (False, True):
            bits, capable = f"{name}-{user}-bits", f"{name}-{user}-capable"
            for path, mode in ((bits, 0o6777), (capable, 0o777)):
                with open(path, "wb") as file:
                    file.write(b"." * SIZE)
                os.chmod(path, mode)
            os.setxattr(capable, CAPABILITY, VALUE)
            for path in (bits, capable):
                do = lambda path: opened(path, flags, change)
                check(name, (as_user if user else as_root)(do, path), 0)
            # A shared mapping leaves set-id bits everywhere, but capabilities only in memory.
            mode = oct(0o777 if user and change is direct else 0o6777)
            check(f"set-id bits after {name}, user {user}", state(bits)[0], mode)
            names = said("host", f"getfattr -m - {capable}")
            check(f"capabilities on the host after {name}", CAPABILITY in names, False)


def stale():
    """The guest does not know yet that the host has set bits."""
    for name in ("write", "many writes", "fallocate", "copy_file_range", "open with O_TRUNC"):
        path = f"stale-{name.split()[0]}-{len(name)}"
        for one in (path, path + ".from"):
            with open(one, "wb") as file:
                file.write(b"." * SIZE)
            os.chmod(one, 0o777)
        said("host", f"chmod 6777 {path}")
        check(f"a stale {name}", as_user(CHANGES[name], path), 0)
        mode = said("host", f"stat -c %a {path}").strip()
        check(f"the host's mode after a stale {name}", mode, "777")


def programs():
    """A program that its user has written to does not run as its owner, at once."""
    def prints():
        who = {"user": USER, "group": GROUP, "extra_groups": []}
        return subprocess.check_output(["./identity", "-u"], text=True, **who).strip()

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
        names = [f"{where}/{name}{len(options)}" for name in ("upper", "work", "merged")]
        for name in names:
            os.mkdir(name)
        upper, work, merged = names
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount = ("mount", "-t", "overlay", "overlay", "-o", f"{layers},{options}", merged)
        said(*mount)
        first = outcomes(merged)
        said("umount", merged)
        # As it is in the upper layer.
        said(*mount)
        found.append((first, again(merged, first)))
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
    # The upper layer of an overlayfs takes CAP_SYS_ADMIN of the server.
    upper = [overlays] if os.environ.get("UPPER") != "no" else []
    tests(share, unusual, stale, programs, *upper)
finally:
    said("umount", top)
end("privileges go and stay as they do in memory")
