#!/usr/bin/python3 -B
"""A tree with owners in extended attributes (security_model=mapped-xattr) that QEMU and barge share.

BARGE: the program."""

import json
import os
import shlex
import stat

from checking import check, end, said, skip, tests
from mounting import Mounted

BARGE = os.environ.get("BARGE")
if not BARGE:
    skip("BARGE is not set")


KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "pipe", stat.S_IFCHR: "character device"}


def seen(path):
    """What both must tell of a file."""
    status = os.lstat(path)
    device = [os.major(status.st_rdev), os.minor(status.st_rdev)] if stat.S_ISCHR(status.st_mode) else None
    return KINDS[stat.S_IFMT(status.st_mode)], stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, device


def shared_with_qemu():
    """A tree of QEMU's security_model=mapped-xattr is one of barge's --identity mapped-xattr, and the other way round."""

    def by_barge(arguments):
        """What barge says on the host; {} is where it serves the directory."""
        run = shlex.quote(f"{BARGE} {arguments}".replace("{}", "${BARGE_9P}"))
        told = said("host", f"{BARGE} serve --identity mapped-xattr --9p tcp:127.0.0.1:0 . --run {run}")
        return [line for line in told.splitlines() if line != "ready" and not line.startswith("mount ")]

    here = os.path.relpath(os.getcwd(), "/mnt")
    with Mounted("mapped", "trans=virtio,version=9p2000.L,access=client,msize=65536") as at:
        at = f"{at}/{here}"
        with open(f"{at}/file", "w") as file:
            file.write("by qemu")
        os.chown(f"{at}/file", 1234, 4321)
        os.chmod(f"{at}/file", 0o4751)
        os.mkdir(f"{at}/dir", 0o700)
        os.chown(f"{at}/dir", 77, 88)
        os.mknod(f"{at}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mkfifo(f"{at}/fifo", 0o600)
        os.symlink("some/where", f"{at}/link")
        for name in ["file", "dir", "null", "fifo", "link"]:
            told = json.loads(by_barge(f"stat --json {{}}{name}")[-1])
            check(f"{name}: barge sees what QEMU does", (told["kind"], int(told["mode"], 8), told["uid"], told["gid"], told.get("device")), seen(f"{at}/{name}"))
        check("link", sum("some/where" in line for line in by_barge("ls -l {}")), 1)
        by_barge("cp -p {}file {}copy")
        check("copy by barge", seen(f"{at}/copy"), seen(f"{at}/file"))
        check("its text", open(f"{at}/copy").read(), "by qemu")


tests(shared_with_qemu)
end("owners, modes, types and names are the same through both")
