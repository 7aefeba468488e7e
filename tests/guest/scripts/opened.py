#!/usr/bin/python3 -B
"""An open file stays what it is while its name is moved, removed or replaced: every call on the descriptor still means that file."""

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import stat
import subprocess

from checking import check, end



# Linux's v9fs keeps the superblock's granularity of a second: it cuts times before it sends them.
KIND = subprocess.check_output(["stat", "-f", "-c", "%T", "."], text=True).strip()
FRACTION = 0 if KIND == "v9fs" else 111_111_111


# Clients of NFS remove a file that is open by giving it another name.
UNLINKED = 1 if os.environ.get("UNLINKED") == "renamed" else 0


def attempt(what, function, *args):
    """The value, or the error as text: a test goes on after a failure."""
    try:
        return function(*args)
    except OSError as error:
        return f"{what}: {error.strerror}"


def exercise(label, fd, links):
    """All that a descriptor can do."""
    status = attempt("fstat", os.fstat, fd)
    if isinstance(status, str):
        check(f"{label}: fstat", status, "a status")
        return
    check(f"{label}: links", status.st_nlink, links)
    check(f"{label}: write", attempt("pwrite", os.pwrite, fd, b"written later", 100), 13)
    check(f"{label}: read back", attempt("pread", os.pread, fd, 13, 100), b"written later")
    check(f"{label}: size", os.fstat(fd).st_size, 113)
    check(f"{label}: fchmod", attempt("fchmod", os.fchmod, fd, 0o604), None)
    check(f"{label}: mode", stat.S_IMODE(os.fstat(fd).st_mode), 0o604)
    check(f"{label}: fchown", attempt("fchown", os.fchown, fd, 12, 34), None)
    check(f"{label}: owner", (os.fstat(fd).st_uid, os.fstat(fd).st_gid), (12, 34))
    times = (1_400_000_000_000_000_000 + FRACTION, 1_300_000_000_000_000_000 + 2 * FRACTION)
    check(f"{label}: futimens", attempt("utime", lambda: os.utime(fd, ns=times)), None)
    check(f"{label}: times", (os.fstat(fd).st_atime_ns, os.fstat(fd).st_mtime_ns), times)
    check(f"{label}: ftruncate", attempt("ftruncate", os.ftruncate, fd, 5), None)
    check(f"{label}: size after ftruncate", os.fstat(fd).st_size, 5)
    check(f"{label}: content after ftruncate", attempt("pread", os.pread, fd, 100, 0), b"conte")
    check(f"{label}: fsync", attempt("fsync", os.fsync, fd), None)
    if os.environ.get("XATTR", "yes") == "yes":
        check(f"{label}: fsetxattr", attempt("fsetxattr", os.setxattr, fd, "user.test", b"value"), None)
        check(f"{label}: fgetxattr", attempt("fgetxattr", os.getxattr, fd, "user.test"), b"value")


def fresh(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b"content")
    return fd


fd = fresh("plain")
exercise("an open file", fd, 1)
os.close(fd)

fd = fresh("before")
os.rename("before", "after")
exercise("a renamed file", fd, 1)
check("a renamed file: by name", os.stat("after").st_size, 5)
os.close(fd)

fd = fresh("gone")
os.unlink("gone")
exercise("an unlinked file", fd, UNLINKED)
check("an unlinked file: its name", attempt("stat", os.stat, "gone"), "stat: No such file or directory")
os.close(fd)

fd = fresh("replaced")
inode = os.fstat(fd).st_ino
other = fresh("other")
os.write(other, b" of the other")
os.rename("other", "replaced")
check("a replaced file: inode", attempt("fstat", lambda: os.fstat(fd).st_ino), inode)
exercise("a replaced file", fd, UNLINKED)
check("a replaced file: the new one", open("replaced", "rb").read(), b"content of the other")
os.close(fd)
os.close(other)

fd = fresh("again")
os.unlink("again")
second = fresh("again")
os.write(second, b" anew")
check("a name made again: old content", attempt("pread", os.pread, fd, 100, 0), b"content")
check("a name made again: new content", attempt("pread", os.pread, second, 100, 0), b"content anew")
check("a name made again: inodes differ", attempt("fstat", lambda: os.fstat(fd).st_ino != os.fstat(second).st_ino), True)
os.close(fd)
os.close(second)

os.mkdir("dir")
fd = fresh("dir/file")
os.rename("dir", "moved")
exercise("a file in a renamed directory", fd, 1)
os.close(fd)

fd = os.open("moved", os.O_RDONLY | os.O_DIRECTORY)
os.unlink("moved/file")
os.rmdir("moved")
# A directory cannot be given another name: to Linux 6.1 it is stale, whatever the server says.
if not UNLINKED:
    check("a removed directory: fstat", attempt("fstat", lambda: stat.S_ISDIR(os.fstat(fd).st_mode)), True)
    check("a removed directory: its entries", attempt("listdir", os.listdir, fd), [])
os.close(fd)

fd = fresh("secret")
os.fchmod(fd, 0)
check("a file of mode 000: write", attempt("pwrite", os.pwrite, fd, b"x", 0), 1)
check("a file of mode 000: read", attempt("pread", os.pread, fd, 1, 0), b"x")
os.close(fd)

# v9fs writes back pages of such a file to wherever the server appends them.
if KIND != "v9fs":
    fd = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"a" * 5000)
    with mmap.mmap(fd, 5000) as pages:
        pages[0] = ord("m")
        pages.flush()
        os.write(fd, b"b" * 5000)
        pages[4999] = ord("m")
        pages.flush()
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"p", 1)
    os.fsync(fd)
    expected = b"mp" + b"a" * 4997 + b"m" + b"b" * 5000
    check("a file open to append, mapped", os.pread(fd, 99999, 0) == expected, True)
    on_host = subprocess.run(["host", "sha256sum < log"], capture_output=True, text=True).stdout.split()[0]
    check("the same on the host", on_host, hashlib.sha256(expected).hexdigest())
    os.close(fd)

# An open for reading with O_TRUNC is undefined (POSIX), and FUSE's kernel sends it before it checks.
shutil.copy(shutil.which("sleep"), "program")
with open("program", "rb") as file:
    program = file.read()
running = subprocess.Popen(["./program", "600"])
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
    result = attempt("open", lambda: os.close(os.open("program", flags)))
    check(f"a running program: flags {flags:o}", result, "open: " + os.strerror(errno.ETXTBSY))
with open("program", "rb") as file:
    check("a running program keeps its contents", file.read() == program, True)
check("a running program runs on", running.poll(), None)
running.kill()
running.wait()

end("descriptors keep their files")
