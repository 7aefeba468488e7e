#!/usr/bin/python3 -B
"""inotify in the guest for changes on the host, with barge-agent: each kind of change, what comes back, what must stay, many changes, and the time until each of them is seen. CHANGES, MEASURED: how many. READ_ONLY: the guest cannot write."""

import errno
import json
import os
import socket
import statistics
import subprocess
import time

from agents import HOST, LOCAL, PORT, READ_ONLY, Agent, Watch, listen_address
from changing import CHANGES as KINDS
from checking import check, end, said, skip, tests

if LOCAL:
    skip("this takes a guest")
CHANGES = int(os.environ.get("CHANGES", "1000"))
MEASURED = int(os.environ.get("MEASURED", "400"))
# Half of the events are to come within this, seconds.
MEDIAN = float(os.environ.get("MEDIAN", "0.2"))
# Those of single changes within this, and 95 % of many.
LIMIT = float(os.environ.get("LIMIT", "1"))
# 9P's cache=loose does not read again what it has. SELF: objects that are gone are reported themselves, and those below them, also if the guest may have noticed that
# already, as NFS clients do.
RENAMED = os.environ.get("UNLINKED") == "renamed"
STALE = os.environ.get("CACHE") == "loose"
SELF = os.environ.get("SELF", "yes") == "yes"

times = []


def change(watch, command, *wanted, limit=LIMIT):
    """Has the host run a command, and waits for the events."""
    settle(watch)
    watch.seen = []
    said("host", command)
    took, seen = watch.wait(wanted)
    times.append(took)
    check(f"{command}: within {limit} s", took < limit, True)
    return seen


def kinds():
    said("host", "mkdir -p d/sub")
    settle()
    watch = Watch("d", "d/sub")
    change(watch, "touch d/a", ("CREATE", "d/a"))
    check("the file", os.path.getsize("d/a"), 0)
    change(watch, "echo text >>d/a", ("MODIFY", "d/a"))
    check("contents after the event", STALE or open("d/a").read(), STALE or "text\n")
    change(watch, "chmod 600 d/a", ("ATTRIB", "d/a"))
    check("mode after the event", os.stat("d/a").st_mode & 0o777, 0o600)
    seen = change(watch, "mv d/a d/b", ("MOVED_FROM", "d/a"), ("MOVED_TO", "d/b"))
    cookies = {cookie for kind, _, cookie in seen if kind.startswith("MOVED")}
    check("one cookie", len(cookies), 1)
    check("names after a rename", sorted(os.listdir("d")), ["b", "sub"])
    change(watch, "mv d/b d/sub/c", ("MOVED_FROM", "d/b"), ("MOVED_TO", "d/sub/c"))
    check("contents after renames", STALE or open("d/sub/c").read(), STALE or "text\n")
    change(watch, "rm d/sub/c", ("DELETE", "d/sub/c"))
    check("names after a removal", os.listdir("d/sub"), [])
    change(watch, "mkdir d/dir", ("CREATE,DIR", "d/dir"))
    change(watch, "ln -s target d/link", ("CREATE", "d/link"))
    check("the link", os.readlink("d/link"), "target")
    change(watch, "mkfifo d/pipe", ("CREATE", "d/pipe"))
    change(watch, "rmdir d/dir", ("DELETE,DIR", "d/dir"))
    change(watch, "rm d/link d/pipe", ("DELETE", "d/link"), ("DELETE", "d/pipe"))
    change(watch, "printf 1 >d/new && mv d/new d/over && printf 22 >d/new && mv d/new d/over", ("MOVED_TO", "d/over"))
    check("contents after a replacement", STALE or open("d/over").read(), STALE or "22")
    watch.close()


def replaced():
    """A file that is replaced by renames is there at any time."""
    said("host", "mkdir r && echo 0 >r/file")
    settle()
    host = subprocess.Popen(["host", "for i in $(seq 200); do echo $i >r/new && mv r/new r/file; done"])
    missed = read = 0
    while host.poll() is None:
        try:
            with open("r/file") as file:
                file.read()
            read += 1
        except FileNotFoundError:
            missed += 1
        except OSError as error:
            # v3 cannot read a file that has been replaced.
            if error.errno != errno.ESTALE:
                raise
    check(f"reads of a file that is replaced, of {read}", missed, 0)
    settle()
    check("contents in the end", open("r/file").read(), "200\n")


def known():
    """The guest's kernel has cached what changes, and a program has it open."""
    said("host", "mkdir k && echo one >k/open && echo two >k/watched && ln k/watched k/linked")
    settle()
    with open("k/open") as file:
        check("read", [file.read(), open("k/watched").read()], ["one\n", "two\n"])
        watch = Watch("k", "k/watched")
        change(watch, "ln k/open k/again", ("CREATE", "k/again"))
        file.seek(0)
        check("an open file with a further name", file.read(), "one\n")
        # NFS renames it to a name of its own, and reports that.
        change(watch, "rm k/open k/again", *([] if RENAMED else [("DELETE", "k/open")]), ("DELETE", "k/again"))
        file.seek(0)
        if not RENAMED:
            check("an open file without a name", file.read(), "one\n")
    change(watch, "rm k/watched", ("DELETE", "k/watched"))
    check("the other name", open("k/linked").read(), "two\n")
    watch.add("k/linked")
    change(watch, "rm k/linked", ("DELETE", "k/linked"), *([("DELETE_SELF", "k/linked")] if SELF else []))
    watch.close()


def removed_tree():
    said("host", "mkdir -p t/a/b && touch t/a/b/f")
    settle()
    check("the tree", os.listdir("t/a/b"), ["f"])
    os.stat("t/a/b/f")
    watch = Watch("t", "t/a", "t/a/b")
    inner = [("DELETE,DIR", "t/a/b"), ("DELETE", "t/a/b/f")] if SELF else []
    change(watch, "rm -r t/a", ("DELETE,DIR", "t/a"), *inner, limit=2 * LIMIT)
    check("names after the removal", os.listdir("t"), [])
    watch.close()


def safe():
    """Nothing on the host is removed or changed, whatever changes meanwhile."""
    said("host", "mkdir s")
    watch = Watch("s")
    said("host", "for i in $(seq 200); do echo $i >s/f; rm s/f; done; echo last >s/f; ln s/f s/g; stat -c '%i %Y %Z' s/f >s/before")
    # After the events of all changes before it; how long they take is not judged here.
    watch.wait([("CREATE", "s/before")], 60)
    settle(watch)
    check("the file that was created again", said("host", "cat s/f"), "last\n")
    check("its times", said("host", "stat -c '%i %Y %Z' s/f"), said("host", "cat s/before"))
    check("seen in the guest", [open("s/f").read(), sorted(os.listdir("s"))], ["last\n", ["before", "f", "g"]])
    watch.close()


def settle(watch=None):
    """Waits until all changes before have been repeated."""
    end = Watch(".")
    said("host", "touch settled && rm settled")
    end.wait([("DELETE", "settled")], 60)
    end.close()
    while watch and watch.read(0):
        pass


def own():
    """A change by a program of the guest raises its events once."""
    os.mkdir("o")
    watch = Watch("o")
    for number in range(20):
        with open(f"o/{number}", "w") as file:
            file.write("x")
        os.rename(f"o/{number}", f"o/to-{number}")
        os.unlink(f"o/to-{number}")
    settle(watch)
    counts = {kind: sum(event[0] == kind for event in watch.seen) for kind in ("CREATE", "MOVED_FROM", "DELETE")}
    check("events of own changes", counts, dict.fromkeys(counts, 20))
    watch.close()


def many():
    said("host", "mkdir m")
    watch = Watch("m")
    began = time.monotonic()
    numbers = range(1, CHANGES + 1)
    for command, kind in ((f"for i in $(seq {CHANGES}); do : >$i; done", "CREATE"), (f"seq {CHANGES} | xargs rm", "DELETE")):
        # The guest's own queue has room for 16384 events.
        host = subprocess.Popen(["host", "cd m && " + command])
        while host.poll() is None:
            watch.read(0.05)
        check(f"status of {kind}", host.returncode, 0)
        _, seen = watch.wait({(kind, f"m/{number}") for number in numbers}, 300)
        check("overflows", [event for event in seen if event[0] == "Q_OVERFLOW"], [])
    watch.close()
    if os.environ.get("VERBOSE"):
        print(f"agent: {CHANGES} files created and removed in {time.monotonic() - began:.1f} s")


def latency():
    """One change after the other: the time until the guest has seen it."""
    files = MEASURED // len(KINDS)
    said("host", "mkdir -p l/0 l/1 l/2 l/3 && mkfifo port")
    settle()
    directory = os.path.dirname(os.path.abspath(__file__))
    watch = Watch(*(f"l/{number}" for number in range(4)))
    said("host", f"{{ {directory}/changing.py {listen_address()} {files} l >port; }} >changing.log 2>&1 &")
    port = int(said("host", "head -n 1 port"))
    with socket.create_connection((HOST, port), 60) as host:
        host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(files):
            host.sendall(host.recv(1))
            path = f"l/{number % 4}/{number}"
            for kind in KINDS:
                renamed = ".renamed" if kind in ("MOVED_TO", "DELETE") else ""
                watch.wait([(kind, path + renamed)])
                host.sendall(b".")
        measured = json.loads(host.makefile().readline())
    watch.close()
    network = measured.pop("ECHO")
    said("host", "rm -r l port")
    for kind, each in measured.items():
        check(f"{kind}: half of the events within {MEDIAN} s", statistics.median(each) < MEDIAN, True)
        check(f"{kind}: 95 % of the events within {LIMIT} s", sorted(each)[len(each) * 95 // 100] < LIMIT, True)
    if os.environ.get("VERBOSE"):
        for kind, each in [*measured.items(), ("all", sum(measured.values(), [])), ("network", network)]:
            each = sorted(time * 1000 for time in each)
            late = sum(time > 200 for time in each)
            print(f"agent: {kind}: {len(each)} times, {statistics.median(each):.1f} ms (median), {each[len(each) * 99 // 100]:.1f} ms (99 %), {each[-1]:.1f} ms (largest), {late} over 200 ms")


def read_only_mount():
    """The agent's mount is read-only, and the file system is not."""
    at = "/run/read-only"
    os.mkdir(at)
    said("mount", "--bind", "/mnt", at)
    said("mount", "-o", "remount,bind,ro", at)
    with Agent(at):
        watch = Watch(".")
        change(watch, "touch by-read-only", ("CREATE", "by-read-only"))
        change(watch, "rm by-read-only", ("DELETE", "by-read-only"))
        watch.close()
        # The agent does not keep it busy.
        said("umount", at)


checks = [kinds, *([] if STALE else [replaced]), known, removed_tree, safe, *([] if READ_ONLY else [own]), many, latency]
if ONLY := os.environ.get("ONLY"):
    checks = [each for each in checks if each.__name__ in ONLY.split()]
elif not READ_ONLY and not os.path.exists(PORT):
    tests(read_only_mount)
with Agent():
    tests(*checks)
if os.environ.get("VERBOSE"):
    times = sorted(times) or [0]
    print(f"agent: events after {times[len(times) // 2] * 1000:.0f} ms (median), {times[-1] * 1000:.0f} ms (largest)", open("/run/agent.log").read())
end(f"changes of the host within {LIMIT} s, {CHANGES} created and removed")
