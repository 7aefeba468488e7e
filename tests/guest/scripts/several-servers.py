#!/usr/bin/python3 -B
"""A client that reaches a share at several addresses: trunking, several connections, and referrals to several servers.

BARGE: the program. The servers run in the guest."""

import hashlib
import os
import tempfile
import time

from checking import check, end, tests
from mounting import Mounted
from serving import Served, print_log_on_failure

ONE, TWO, NONE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
ESTABLISHED = "01"

top = tempfile.mkdtemp(dir="/run")
state = f"--nfs-state-dir={top}/state"


def connections():
    """The number of connections to port 2049 of each address."""
    counts = {}
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        _, _, remote, status, *_ = line.split()
        address, port = remote.split(":")
        if status == ESTABLISHED and int(port, 16) == 2049:
            address = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
            counts[address] = counts.get(address, 0) + 1
    return counts


def wait_until_closed():
    """Waits for the connections of a mount that has ended: the kernel closes them after umount(8)."""
    end_of_wait = time.monotonic() + 20
    while connections() and time.monotonic() < end_of_wait:
        time.sleep(0.05)


def mounted(path, options, address=ONE):
    return Mounted(f"{address}:{path}", f"addr={address},clientaddr={ONE},vers=4.2,hard,timeo=50,{options}", "nfs4")


def work(label, at):
    """Writes files, and reads them again past the page cache."""
    sums = {}
    for number in range(16):
        data = os.urandom(1 << 20)
        sums[f"f{number}"] = hashlib.sha256(data).digest()
        with open(f"{at}/f{number}", "wb") as file:
            file.write(data)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")
    for name, expected in sums.items():
        with open(f"{at}/{name}", "rb") as file:
            check(f"{label}: {name}", hashlib.sha256(file.read()).digest() == expected, True)
        os.unlink(f"{at}/{name}")


def trunking():
    """The server tells its own addresses as those of replicas, and the client finds that they are one server."""
    share = tempfile.mkdtemp(dir=top)
    line = f"data localhost(rw,no_root_squash,replicas=/data@{ONE}+{TWO})"
    with Served(f"data={share}", "--nfs", f"tcp:{ONE}:2049", "--nfs", f"tcp:{TWO}:2049", "--export", line, state):
        with mounted("/data", "trunkdiscovery,max_connect=4") as at:
            check("trunking: connections", sorted(connections()), [ONE, TWO])
            work("trunking", at)
        wait_until_closed()
        with mounted("/data", "max_connect=4") as at:
            check("without trunkdiscovery: connections", sorted(connections()), [ONE])


def several_connections():
    share = tempfile.mkdtemp(dir=top)
    with Served(share, "--nfs", f"tcp:{ONE}:2049", state):
        with mounted("/", "nconnect=4") as at:
            work("nconnect", at)
            check("nconnect: connections", connections(), {ONE: 4})


def referral():
    """The first server of a referral does not answer, the second one does."""
    share = tempfile.mkdtemp(dir=top)
    with open(f"{share}/here", "w") as file:
        file.write("text")
    far = Served(f"data={share}", "--nfs", f"tcp:{TWO}:2049", f"--nfs-state-dir={top}/far")
    near = Served("a=mem:", f"data=refer:/data@{NONE}+{TWO}", "--nfs", f"tcp:{ONE}:2049", state)
    with far, near, mounted("/", "soft") as at:
        check("referral", open(f"{at}/data/here").read(), "text")
        check("referral: connections", sorted(connections()), [ONE, TWO])


tests(trunking, several_connections, referral)
print_log_on_failure()
end("by several addresses, connections and servers")
