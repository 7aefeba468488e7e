"""barge-agent in the guest, and inotify events. AGENT: the program; BARGE: that of its directory is the agent. READ_ONLY: the guest cannot write."""

import ctypes
import os
import select
import struct
import subprocess
import time

from checking import check, said, skip

AGENT = os.environ.get("AGENT") or os.path.join(os.path.dirname(os.environ.get("BARGE", "/")), "barge-agent")
LOCAL = bool(os.environ.get("BARGE_LOCAL"))
if not LOCAL and not os.access(AGENT, os.X_OK):
    skip("this takes barge-agent")
READ_ONLY = os.environ.get("READ_ONLY") == "yes"

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
    """The agent's address."""
    if os.path.exists(PORT):
        return PORT
    for line in said("host", "cat $RUN/server-1.log").splitlines():
        if "barge-agent --connect" in line:
            return line.split("--connect ")[1].split()[0].replace("127.0.0.1", HOST).replace("0.0.0.0", HOST)
    raise RuntimeError("the server names no address for agents")


def listen_address():
    """The host's own address that the guest reaches as HOST."""
    return HOST if HOST in said("host", "ip -4 addr || :") else "127.0.0.1"


class Agent:
    """barge-agent for the mount at `at`, for as long as a block lasts. It must not end before."""

    def __init__(self, at="/mnt"):
        self.at = at

    def __enter__(self):
        options = ["--remount-rw"] if READ_ONLY else []
        command = [AGENT, "--connect", address(), "--mount", f"={self.at}", "-v", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open("/run/agent.log", "w"), text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the agent is not ready: " + open("/run/agent.log").read())

    def __exit__(self, *_):
        check("the agent", self.process.poll(), None)
        self.process.terminate()
        self.process.wait()
