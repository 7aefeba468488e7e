#!/usr/bin/python3 -B
"""inotify in the guest for changes on the host, with barge-agent: each kind of change, what comes back, what must stay, and many changes. CHANGES: how many. READ_ONLY: the guest cannot write.

AGENT: the program. BARGE is not needed."""

import ctypes
import os
import select
import struct
import subprocess
import time

from checking import check, end, said, skip, tests

CHANGES = int(os.environ.get("CHANGES", "1000"))
AGENT = os.environ.get("AGENT") or os.path.join(os.path.dirname(os.environ.get("BARGE", "/")), "barge-agent")
if os.environ.get("BARGE_LOCAL") or not os.access(AGENT, os.X_OK):
    skip("this takes a guest and barge-agent")
# Events are to come within this, seconds.
LIMIT = float(os.environ.get("LIMIT", "1"))
# 9P's cache=loose does not read again what it has. SELF: objects that are gone are reported themselves, and those below them, also if the guest may have noticed that
# already, as NFS clients do.
READ_ONLY = os.environ.get("READ_ONLY") == "yes"
RENAMED = os.environ.get("UNLINKED") == "renamed"
STALE = os.environ.get("CACHE") == "loose"
SELF = os.environ.get("SELF", "yes") == "yes"

NAMES = {
    0x2: "MODIFY", 0x4: "ATTRIB", 0x8: "CLOSE_WRITE", 0x40: "MOVED_FROM", 0x80: "MOVED_TO", 0x100: "CREATE", 0x200: "DELETE", 0x400: "DELETE_SELF", 0x800: "MOVE_SELF",
    0x4000: "Q_OVERFLOW", 0x8000: "IGNORED",
}  # fmt: skip
MASK = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
# The host, in every network of a guest.
HOST = "10.0.2.2"
# A port of virtio-serial, which one agent can open.
PORT = "/run/barge/barge.agent"
ISDIR = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches directories and files."""

    def __init__(self, *paths):
        self.fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.paths = {}
        self.seen = []
        for path in paths:
            self.add(path)

    def add(self, path):
        wd = libc.inotify_add_watch(self.fd, path.encode(), MASK)
        if wd < 0:
            raise OSError(ctypes.get_errno(), path)
        self.paths[wd] = path

    def read(self, timeout):
        """Adds the events of the next read to those seen: (kind, path, cookie)."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return False
        data, at = os.read(self.fd, 1 << 20), 0
        while at < len(data):
            wd, mask, cookie, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length
            path = os.path.normpath(os.path.join(self.paths.get(wd, "?"), name))
            for bit, kind in NAMES.items():
                if mask & bit and kind != "IGNORED":
                    self.seen.append((kind + (",DIR" if mask & ISDIR else ""), path, cookie))
        return True

    def wait(self, wanted, limit=10):
        """Waits for these events, in any order. Returns how long it took, seconds, and all events; drops them."""
        began = time.monotonic()
        missing = set(wanted) - {event[:2] for event in self.seen}
        while missing and time.monotonic() - began < limit:
            known = len(self.seen)
            self.read(0.1)
            missing -= {event[:2] for event in self.seen[known:]}
        took = time.monotonic() - began
        if missing:
            raise RuntimeError(f"no event {sorted(missing)[:20]}, but {self.seen[-20:]}")
        self.seen, seen = [], self.seen
        return took, seen

    def close(self):
        os.close(self.fd)


def address():
    """The agent's address, and the share."""
    if os.path.exists(PORT):
        return PORT
    for line in said("host", "cat $RUN/server-1.log").splitlines():
        if "barge-agent --connect" in line:
            return line.split("--connect ")[1].split()[0].replace("127.0.0.1", HOST).replace("0.0.0.0", HOST)
    raise RuntimeError("the server names no address for agents")


def start(at="/mnt"):
    log = open("/run/agent.log", "w")
    options = ["--remount-rw"] if READ_ONLY else []
    agent = subprocess.Popen([AGENT, "--connect", address(), "--mount", f"={at}", "-v", *options], stdout=subprocess.PIPE, stderr=log, text=True)
    if agent.stdout.readline() != "ready\n":
        raise RuntimeError("the agent is not ready: " + open("/run/agent.log").read())
    return agent


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
    watch.wait([("CREATE", "s/before")])
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


def read_only_mount():
    """The agent's mount is read-only, and the file system is not."""
    at = "/run/read-only"
    os.mkdir(at)
    said("mount", "--bind", "/mnt", at)
    said("mount", "-o", "remount,bind,ro", at)
    agent = start(at)
    try:
        watch = Watch(".")
        change(watch, "touch by-read-only", ("CREATE", "by-read-only"))
        change(watch, "rm by-read-only", ("DELETE", "by-read-only"))
        watch.close()
        # The agent does not keep it busy.
        said("umount", at)
    finally:
        agent.terminate()
        agent.wait()


if not READ_ONLY and not os.path.exists(PORT):
    tests(read_only_mount)
agent = start()
try:
    tests(kinds, known, removed_tree, safe, *([] if READ_ONLY else [own]), many)
    check("the agent", agent.poll(), None)
finally:
    agent.terminate()
    agent.wait()
if os.environ.get("VERBOSE"):
    times.sort()
    print(f"agent: events after {times[len(times) // 2] * 1000:.0f} ms (median), {times[-1] * 1000:.0f} ms (largest)", open("/run/agent.log").read())
end(f"changes of the host within {LIMIT} s, {CHANGES} created and removed")
