#!/usr/bin/python3
"""A tree of every kind of file, unpacked onto the share by tar and packed again, must be the same in all that tar carries.

FILES: as many regular files. The archive is made here and not from a file system, so it holds what we mean: owners, modes, times in nanoseconds,
extended attributes, symbolic and hard links, devices, pipes, long names."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile

FILES = int(os.environ.get("FILES", "20000"))
KINDS = {
    tarfile.DIRTYPE: "dir", tarfile.REGTYPE: "file", tarfile.SYMTYPE: "symlink", tarfile.LNKTYPE: "hard link", tarfile.CHRTYPE: "char device",
    tarfile.BLKTYPE: "block device", tarfile.FIFOTYPE: "fifo",
}


# Linux's v9fs keeps the superblock's granularity of a second: it cuts times before it sends them.
WHOLE_SECONDS = subprocess.check_output(["stat", "-f", "-c", "%T", "."]) == b"v9fs\n"


def member(name, kind, index, **more):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = [0o644, 0o600, 0o755, 0o4755, 0o2711, 0o444, 0o000, 0o1777][index % 8]
    info.uid, info.gid = [(0, 0), (1, 1), (65534, 65534), (12345, 54321), (0, 2000)][index % 5]
    fraction = 0 if WHOLE_SECONDS else index * 7_919_993 % 1_000_000_000
    info.pax_headers = {"mtime": f"{1_500_000_000 + index}.{fraction:09d}"}
    for key, value in more.items():
        setattr(info, key, value)
    return info

XATTR = os.environ.get("XATTR", "yes") == "yes"


def build(path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for index in range(FILES):
            top = f"tree/{index // 1000}"
            if index % 1000 == 0:
                tar.addfile(member(top, tarfile.DIRTYPE, index, mode=0o755))
            content = (f"{index} " * (index % 300)).encode()
            info = member(f"{top}/file{index}", tarfile.REGTYPE, index, size=len(content))
            if XATTR and index % 50 == 7:
                info.pax_headers["SCHILY.xattr.user.colour"] = f"blue{index}"
            if XATTR and index % 200 == 7:
                info.pax_headers["SCHILY.xattr.user.long"] = "x" * 1000
            tar.addfile(info, io.BytesIO(content))
            if index % 40 == 0:
                tar.addfile(member(f"{top}/link{index}", tarfile.SYMTYPE, index, linkname="../" * (index % 7) + f"file{index}", mode=0o777))
                tar.addfile(member(f"{top}/hard{index}", tarfile.LNKTYPE, index, linkname=f"{top}/file{index}"))
            if index % 400 == 1:
                tar.addfile(member(f"{top}/char{index}", tarfile.CHRTYPE, index, devmajor=1, devminor=3 + index % 5))
                tar.addfile(member(f"{top}/block{index}", tarfile.BLKTYPE, index, devmajor=7, devminor=300 + index % 100))
                tar.addfile(member(f"{top}/fifo{index}", tarfile.FIFOTYPE, index))
                tar.addfile(member(f"{top}/{'n' * 250}{index % 100000}"[: len(top) + 256], tarfile.REGTYPE, index))
                tar.addfile(member(f"{top}/dangling{index}", tarfile.SYMTYPE, index, linkname="d" * 900, mode=0o777))
        tar.addfile(member("tree/ein Name \u00fcber\nzwei Zeilen", tarfile.REGTYPE, 3))


def contents(path):
    """Every member with all that must be kept. A hard link is the file it is a link to: which of the names comes first is tar's choice."""
    table, groups = {}, {}
    with tarfile.open(path) as tar:
        for info in tar:
            name = info.name.rstrip("/")
            if info.type == tarfile.LNKTYPE:
                groups.setdefault(info.linkname, {info.linkname}).add(name)
                continue
            kind = KINDS.get(info.type, info.type)
            xattrs = {key: value for key, value in info.pax_headers.items() if key.startswith("SCHILY.xattr.user.")}
            # Python reads the time as a float; the header has it in full.
            seconds, _, fraction = info.pax_headers.get("mtime", str(info.mtime)).partition(".")
            mtime = f"{seconds}.{fraction:0<9}"
            digest = hashlib.blake2b(tar.extractfile(info).read(), digest_size=8).hexdigest() if kind == "file" else ""
            device = (info.devmajor, info.devminor) if "device" in kind else ()
            table[name] = (kind, oct(info.mode & 0o7777), info.uid, info.gid, mtime, info.linkname, device, digest, sorted(xattrs.items()))
    for first, names in groups.items():
        file = table[first] + (tuple(sorted(names)),)
        table.update((name, file) for name in names)
    return table


def main():
    there, back = (tempfile.NamedTemporaryFile(suffix=".tar") for _ in range(2))
    build(there.name)
    options = ["--xattrs", "--xattrs-include=user.*", "--numeric-owner"]
    subprocess.run(["tar", *options, "-xpf", there.name], check=True)
    subprocess.run(["tar", *options, "--format=pax", "-cf", back.name, "tree"], check=True)
    expected, got = contents(there.name), contents(back.name)
    # Directories which no member names have whatever the umask gave them.
    got = {name: value for name, value in got.items() if name in expected or value[0] != "dir"}
    wrong = [name for name in sorted(expected.keys() | got.keys()) if expected.get(name) != got.get(name)]
    for name in wrong[:10]:
        print(f"{name!r}\n  expected {expected.get(name)}\n  got      {got.get(name)}")
    if wrong:
        sys.exit(f"tree: {len(wrong)} of {len(expected)} members differ")
    subprocess.run(["rm", "-r", "tree"], check=True)
    print(f"tree: {len(expected)} members are the same after the way there and back")


main()
