#!/usr/bin/python3 -B
"""A single export with a name (`share=DIR`), at `/` and at `/share`: both are mounted at once, show the same files, stay usable
while both are walked side by side, and unmount. ROUNDS: how often they are walked."""

import os
import subprocess
import tempfile
import threading

from checking import check, end, said, skip, tests

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

ROUNDS = int(os.environ.get("ROUNDS", "5"))
HERE = os.path.relpath(os.getcwd(), "/mnt")


def mount():
    """Mounts the export by its name with the options of the share's mount; returns the directory."""
    with open("/proc/self/mounts") as mounts:
        device, _, kind, options = next(fields for fields in map(str.split, mounts) if fields[1] == "/mnt")[:4]
    at = tempfile.mkdtemp(dir="/run")
    said("mount", "-i", "-t", kind, "-o", options, device.removesuffix("/") + "/share", at)
    return at


def find(directory):
    """The names below a directory, from find(1)."""
    return sorted(said("find", directory, "-mindepth", "1", "-printf", "%P %y %s\\n").splitlines())


def stats(directory):
    return {name: (found.st_ino, found.st_size, found.st_mode) for name, found in
            ((name, os.stat(f"{directory}/{name}")) for name in os.listdir(directory))}


def same_files():
    check("names", find(at + "/" + HERE), find("."))
    check("attributes", stats(f"{at}/{HERE}/one"), stats("one"))
    check("the roots", os.stat(at).st_ino, os.stat("/mnt").st_ino)
    with open(f"{at}/{HERE}/one/made", "w") as file:
        file.write("through the name")
    with open("one/made") as file:
        check("a file made through the name", file.read(), "through the name")
    os.rename("one/made", "two/moved")
    check("its new name", os.stat(f"{at}/{HERE}/two/moved").st_size, 16)
    os.unlink(f"{at}/{HERE}/two/moved")
    check("a removed file", os.path.exists("two/moved"), False)


def side_by_side():
    expected, wrong = find("."), []

    def walk(directory):
        for _ in range(ROUNDS):
            try:
                if find(directory) != expected:
                    wrong.append(f"{directory}: other names")
            except RuntimeError as error:
                wrong.append(str(error))

    walks = [threading.Thread(target=walk, args=(directory,)) for directory in (".", f"{at}/{HERE}") * 2]
    for thread in walks:
        thread.start()
    for thread in walks:
        thread.join()
    check("walked side by side", wrong, [])


def working_directory():
    """A directory in use stays where its process entered it."""
    entered = os.getcwd() + "/one/deep"
    os.chdir(entered)
    os.stat(f"{at}/{HERE}/one/deep/file-0")
    check("the working directory", os.getcwd(), entered)
    check("above it", os.stat("..").st_ino, os.stat("/mnt/" + HERE + "/one").st_ino)
    os.chdir("/mnt/" + HERE)


for directory in ("one/deep", "two/deep"):
    os.makedirs(directory)
    for number in range(50):
        with open(f"{directory}/file-{number}", "w") as file:
            file.write("x" * number)
at = mount()
tests(same_files, side_by_side, working_directory)
for round in range(2):
    done = subprocess.run(["umount", at], capture_output=True, text=True)
    check("umount", (done.returncode, done.stderr), (0, ""))
    check("the share after it", os.path.exists("one/deep/file-1"), True)
    if round == 0:
        at = mount()
        check("mounted again", stats(f"{at}/{HERE}/one"), stats("one"))
end("a named export at its name and at the root")
