#!/usr/bin/python3 -B
"""A large directory is listed while both sides change it: what was there all the time is told exactly once, what was gone before never, and nothing twice.

FILES: how many names stay all the time."""

import ctypes
import os
import subprocess
from collections import Counter

from checking import check, end

FILES = int(os.environ.get("FILES", "2000"))
STEP = max(FILES // 40, 1)

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir.restype = ctypes.c_void_p
libc.readdir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.closedir.argtypes = [ctypes.c_void_p]
NAME_IN_DIRENT = 19



def host(command):
    subprocess.run(["host", command], check=True)


class Directory:
    """A directory stream with its positions, which Python's own have not."""

    def __init__(self, path):
        self.stream = libc.opendir(path.encode())
        if not self.stream:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)

    def __iter__(self):
        return self

    def __next__(self):
        ctypes.set_errno(0)
        entry = libc.readdir(self.stream)
        if entry:
            return ctypes.string_at(entry + NAME_IN_DIRENT).decode()
        if ctypes.get_errno():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "readdir")
        raise StopIteration

    def tell(self):
        return libc.telldir(self.stream)

    def seek(self, position):
        libc.seekdir(self.stream, position)

    def close(self):
        libc.closedir(self.stream)


def judge(what, names, gone):
    """Holds a listing against what stayed, and what went before it began."""
    seen = [name for name in names if name not in (".", "..")]
    kept = {name for name in seen if name.startswith("keep")}
    check(f"{what}: what stays", len(kept), FILES)
    check(f"{what}: told twice", [name for name, times in Counter(seen).most_common(5) if times > 1], [])
    check(f"{what}: gone before", sorted(set(seen) & gone)[:5], [])


def make(*sorts):
    """Names of each sort, FILES of `keep` and a tenth of the others, made on the host."""
    counts = {sort: FILES if sort == "keep" else FILES // 10 for sort in sorts}
    host(f"""python3 -c '
for sort, count in {repr(counts).replace("'", '"')}.items():
    for number in range(count):
        open("dir/%s-%06d" % (sort, number), "x").close()
'""")
    return {f"{sort}-{number:06}" for sort, count in counts.items() for number in range(count)}


host("mkdir dir")
make("keep", "mine", "yours", "old")
host("find dir -name 'old-*' -delete")
old = {f"old-{number:06}" for number in range(FILES // 10)}

# Both sides add, rename and remove while one listing goes on.
directory = Directory("dir")
names, positions = [], {}
turn = 0
while True:
    position = directory.tell()
    try:
        name = next(directory)
    except StopIteration:
        break
    names.append(name)
    if len(names) % STEP == 0:
        if name.startswith("keep"):
            positions[name] = position
        os.unlink(f"dir/mine-{turn:06}")
        open(f"dir/new-{turn:06}", "x").close()
        os.rename(f"dir/mine-{turn + FILES // 20:06}", f"dir/renamed-{turn:06}")
        if turn % 8 == 0:
            host(f"rm dir/yours-{turn:06}; mv dir/yours-{turn + FILES // 20:06} dir/theirs-{turn:06}; touch dir/added-{turn:06}")
        turn += 1
judge("changed while it is listed", names, old)
check("turns of changes", turn > 30, True)

# Positions mean what they meant before the changes. Linux's v9fs goes on with what it has at hand, wherever the stream was moved to.
if subprocess.check_output(["stat", "-f", "-c", "%T", "."]) != b"v9fs\n":
    for name, position in positions.items():
        directory.seek(position)
        check(f"after seeking to {name}", next(directory), name)

# A stream that begins anew tells what is there now.
directory.close()
directory = Directory("dir")
removed = {f"mine-{number:06}" for number in range(turn)}
now = list(directory)
judge("begun anew", now, old | removed)
check("begun anew: what was made here", {f"new-{number:06}" for number in range(turn)} - set(now), set())
directory.close()

# All of it goes while it is listed, and again as it is removed by its listing, as rm -r does.
directory = Directory("dir")
first = [next(directory) for _ in range(3)]
host("find dir -name 'keep-*' | tail -n +101 | xargs rm")
rest = list(directory)
check("removed by the host while it is listed: told twice", len(set(first + rest)), len(first + rest))
directory.close()
subprocess.run(["rm", "-r", "dir"], check=True)
check("after rm -r", os.path.exists("dir"), False)

end(f"{FILES} names, each told once")
