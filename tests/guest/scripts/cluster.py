#!/usr/bin/python3 -B
"""The hosts of the script `takeover`: two servers of one share, the etcd of three members that they share their state in, and a second client.

    cluster.py RUN SOCKET SCRIPT-NAME VERSION BARGE ARGUMENT...    serves until SIGTERM; needs root, and a mount namespace of its own
    cluster.py ask SOCKET COMMAND                                  runs one of Cluster's commands

Each server and each member has a network namespace. One bridge, that of the guests, joins guests, servers and the second client (10.0.2.0/24); another one joins servers
and members (10.0.3.0/24). The clients use the address SERVICE, which a thread for each server moves, as keepalived would: it adds the address and announces it
when the port is open, and removes it a moment after it was closed. A cable that is cut is a port that leaves its bridge: packets are lost without an error.

RUN/cluster is a shell script that asks. Commands print what they measured, in seconds or as JSON, or an error with status 1."""

import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from locking import FREE, WRITE, lock, take_turn

SERVICE, PORT = "10.0.2.3", 2049
MEMBERS = ["10.0.3.1", "10.0.3.2", "10.0.3.3"]
TTL = 2
# Time for what happens within seconds, on a busy machine.
PATIENCE = 60
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def wait_until(what, done, patience=PATIENCE):
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not after {patience} s")
        time.sleep(0.01)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Namespace:
    """A network namespace with a process that holds it."""

    all = []

    def __init__(self):
        own = os.readlink("/proc/self/ns/net")
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        self.link = f"/proc/{self.holder.pid}/ns/net"
        self.all.append(self)
        wait_until("a namespace", lambda: os.readlink(self.link) != own)
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *command]

    def run(self, *command):
        return run(*self.command(*command))

    def enter(self):
        """Moves the calling thread, and the programs that it starts, to the namespace."""
        with open(self.link) as file:
            if LIBC.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def listens(self):
        """Whether a program listens at the port of NFS: state 0A is LISTEN."""
        with open(f"/proc/{self.holder.pid}/net/tcp") as table:
            return any(re.match(rf"\s*\d+: \w+:{PORT:04X} \S+ 0A ", line) for line in table)


def connect(inside, bridge, port, namespace, device, address):
    """Connects a namespace to a bridge, which is in `inside` or the own one."""
    here = inside.run if inside else run
    here("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", str(namespace.holder.pid))
    here("ip", "link", "set", port, "master", bridge, "up")
    namespace.run("ip", "addr", "add", f"{address}/24", "dev", device)
    namespace.run("ip", "link", "set", device, "up")


def replies():
    """Calls the service once, with NULL of NFS v3."""
    try:
        with socket.socket() as call:
            call.settimeout(0.25)
            call.connect((SERVICE, PORT))
            call.sendall(struct.pack(">11I", 1 << 31 | 40, 7, 0, 2, 100003, 3, 0, 0, 0, 0, 0))
            return len(call.recv(28, socket.MSG_WAITALL)) == 28
    except OSError:
        return False


class Probe:
    """Calls the server of a host, from that host and as long as it has the address, until the block ends."""

    def __init__(self, server):
        # The time of the last call that was answered, and of the first reply.
        self.last = self.first = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.call, args=(server,), daemon=True)
        self.thread.start()

    def call(self, server):
        server.host.enter()
        while not self.over.wait(0.01):
            sent, moves = time.monotonic(), server.moves
            if server.has_address and replies() and server.moves == moves:
                self.last = sent
                self.first = self.first or time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Server:
    def __init__(self, number, command):
        self.number, self.command = number, command
        self.host = Namespace()
        # The server listens before its host has the address.
        self.host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind")
        self.process, self.stopping, self.lost, self.failure = None, False, 0, None
        # Whether the host has the address, and how often that has changed.
        self.has_address, self.moves = False, 0
        # Released if a server that was killed may begin again.
        self.again = threading.Semaphore(0)

    def start(self):
        for thread in self.supervise, self.move_address:
            threading.Thread(target=thread, daemon=True).start()

    def supervise(self):
        """Starts the server, again whenever it was killed or lost its lease, as systemd would."""
        while not self.stopping:
            self.process = subprocess.Popen(self.host.command(*self.command))
            status = self.process.wait()
            if self.stopping:
                return
            if status == -signal.SIGKILL:
                self.again.acquire()
            elif status == 1:
                self.lost += 1
            else:
                self.failure = f"server {self.number} ended with {status}"
                return

    def move_address(self):
        self.host.enter()
        listens = False
        while not self.stopping:
            # Of a killed server the kernel closes the listening socket first. The ends of its connections need the address to reach the clients, which otherwise
            # notice them when they send again: TCP waits longer each time, beyond the grace period. keepalived looks less often.
            before, listens = listens, self.host.listens()
            if listens and not self.has_address:
                run("ip", "addr", "add", f"{SERVICE}/24", "dev", "eth0")
                self.has_address = True
                self.announce()
            elif self.has_address and not listens and not before:
                self.has_address, self.moves = False, self.moves + 1
                run("ip", "addr", "del", f"{SERVICE}/24", "dev", "eth0")
            time.sleep(0.05)

    def announce(self):
        """Sends a gratuitous ARP request (RFC 5227): other hosts then replace the hardware address that they know."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as ether:
            ether.bind(("eth0", 0))
            hardware, address = ether.getsockname()[4], socket.inet_aton(SERVICE)
            head = struct.pack(">6s6sHHHBBH", b"\xff" * 6, hardware, 0x806, 1, 0x800, 6, 4, 1)
            ether.send(head + struct.pack(">6s4s6s4s", hardware, address, bytes(6), address))


class Rival:
    """The second client: `barge mount` of the share, and a program there that always tries to get the locks of the guest."""

    def __init__(self, run_dir, barge, version, name):
        self.dir = f"{run_dir}/rival"
        os.mkdir(self.dir)
        mount = [barge, "mount", "-f", "-o", "cache=none", f"nfs://{SERVICE}:{PORT}/?vers={version}", self.dir]
        self.mount = subprocess.Popen(mount, stdout=subprocess.PIPE)
        if self.mount.stdout.readline() != b"ready\n":
            raise RuntimeError("barge mount is not ready")
        own = f"{self.dir}/{name}"
        program = [sys.executable, "-B", __file__, "rival", own]
        self.program = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # The time of the last request of a lock that was granted, and the result.
        self.granted, self.result = None, None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        wait_until("the second client", lambda: self.granted or self.result)

    def read(self):
        for line in self.program.stdout:
            if line.startswith("{"):
                self.result = json.loads(line)
            else:
                self.granted = float(line)

    def finish(self):
        """Ends the program, and returns its result."""
        self.program.stdin.close()
        self.reader.join(PATIENCE)
        self.stop()
        return self.result or {"errors": ["the second client does not end"]}

    def stop(self):
        self.program.kill()
        self.program.wait()
        self.mount.terminate()
        self.mount.wait()


def rival(directory):
    """Holds bytes 40 to 49 of `file`, and tries to get those that the guest holds: 10 to 19, and all of `whole`. Takes turns with the guest at `turns`.

    Prints the time of each request that was granted, and in the end the numbers and what was wrong."""
    result = {"refused": 0, "turns": 0, "errors": []}

    def expect(what, got, expected):
        if got != expected:
            result["errors"].append(f"{what}: {got}")
            print(f"{time.monotonic():.2f} second client: {what}: {got}", file=sys.stderr)

    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    try:
        files = [open(f"{directory}/{name}", "r+b", buffering=0) for name in ("file", "whole", "turns")]
        sent = time.monotonic()
        expect("a free lock", lock(files[0], WRITE, 40, 10), "got")
        print(sent, flush=True)
        while not over.wait(0.02) and not result["errors"]:
            expect("the lock of the guest", lock(files[0], WRITE, 15, 1), "refused")
            expect("the lock of the guest of all", lock(files[1], WRITE, 0, 1), "refused")
            result["refused"] += 2
            sent = time.monotonic()
            if take_turn(files[2]):
                result["turns"] += 1
                print(sent, flush=True)
        # The guest is to see the first error only.
        over.wait()
        expect("unlocking", lock(files[0], FREE, 40, 10), "got")
    except OSError as error:
        result["errors"].append(str(error))
        print(f"second client: {error}", file=sys.stderr)
        over.wait()
    print(json.dumps(result), flush=True)


class Cluster:
    """The hosts. Its public methods without arguments are the commands."""

    def __init__(self, run_dir, name, version, barge, arguments):
        self.run_dir, self.name, self.version, self.barge = run_dir, name, version, barge
        self.rival, self.cut_off = None, None
        self.backbone = Namespace()
        self.backbone.run("ip", "link", "add", "etcd", "type", "bridge")
        self.backbone.run("ip", "link", "set", "etcd", "up")
        # In memory: a disk that other programs write to delays each renewal of the lease.
        os.mkdir(f"{run_dir}/etcd")
        run("mount", "-t", "tmpfs", "none", f"{run_dir}/etcd")
        self.members = [self.start_member(number) for number in (1, 2, 3)]
        url = f"etcd://{','.join(f'{member}:2379' for member in MEMBERS)}/guest"
        self.servers = []
        for number in 1, 2:
            state = ["--nfs-state", url, "--nfs-state-ttl", str(TTL), "--nfs-state-dir", f"{run_dir}/state-{number}"]
            server = Server(number, [barge, *arguments, *state])
            self.servers.append(server)
            connect(self.backbone, "etcd", f"server{number}", server.host, "eth1", f"10.0.3.{10 + number}")
            connect(None, "guests", f"server{number}", server.host, "eth0", f"10.0.2.{3 + number}")
        first, second = self.servers
        first.start()
        wait_until("a reply of the first server", replies)
        # The secret of file handles is the same.
        os.mkdir(f"{run_dir}/state-2", 0o700)
        run("cp", "-p", f"{run_dir}/state-1/handle-key", f"{run_dir}/state-2/")
        second.start()

    def start_member(self, number):
        address = MEMBERS[number - 1]
        host = Namespace()
        connect(self.backbone, "etcd", f"member{number}", host, "eth0", address)
        peers = ",".join(f"{peer}=http://{member}:2380" for peer, member in enumerate(MEMBERS, 1))
        command = ["etcd", "--name", str(number), "--data-dir", f"{self.run_dir}/etcd/{number}", "--initial-cluster", peers]
        for option, port in ("client", 2379), ("peer", 2380):
            for verb in "listen", "initial-advertise" if option == "peer" else "advertise":
                command += [f"--{verb}-{option}-urls", f"http://{address}:{port}"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "500"]
        with open(f"{self.run_dir}/etcd-{number}.log", "w") as log:
            return subprocess.Popen(host.command(*command), stdout=log, stderr=log)

    def check(self):
        for server in self.servers:
            if server.failure:
                raise RuntimeError(server.failure)

    def active(self):
        """Waits for a server that replies, and returns it and the other one."""
        wait_until("a reply", replies)
        first, second = self.servers
        return (first, second) if first.host.listens() else (second, first)

    def plug(self, cable, plugged):
        """Connects the cable of a server or member to the bridge of etcd, or cuts it."""
        self.backbone.run("ip", "link", "set", cable, *(["master", "etcd"] if plugged else ["nomaster"]))

    def kill(self):
        """Kills the active server. Prints the seconds until the first reply of the other one."""
        old, new = self.active()
        killed = time.monotonic()
        os.kill(old.process.pid, signal.SIGKILL)
        wait_until("a reply of the other server", lambda: new.host.listens() and replies())
        took = time.monotonic() - killed
        old.again.release()
        print(f"killed: the other server replies after {took:.2f} s", file=sys.stderr)
        return f"{took:.2f}"

    def compete(self):
        """Starts the second client."""
        self.rival = Rival(self.run_dir, self.barge, self.version, self.name)

    def cut(self):
        """Cuts the active server off from etcd until the other one serves. Prints the seconds until the last call that it answers, and until the first reply of the other one."""
        old, new = self.active()
        with Probe(old) as one, Probe(new) as two:
            wait_until("a reply", lambda: one.last)
            self.plug(f"server{old.number}", False)
            cut = time.monotonic()
            wait_until("a reply of the other server", lambda: two.first)
            last, first = one.last - cut, two.first - cut
            # None of the old one is late.
            time.sleep(TTL / 2)
            if one.last - cut != last:
                raise RuntimeError(f"the server without etcd answers after {one.last - cut:.2f} s, the other one after {first:.2f} s")
        self.plug(f"server{old.number}", True)
        if last > TTL or last > first:
            raise RuntimeError(f"the server without etcd stops after {last:.2f} s, the other one begins after {first:.2f} s")
        return json.dumps({"last": round(last, 2), "first": round(first, 2)})

    def isolate(self):
        """Cuts two of three members of etcd off. Prints the seconds until the last call that a server answers."""
        with Probe(self.servers[0]) as one, Probe(self.servers[1]) as two:
            self.active()
            wait_until("a reply", lambda: one.last or two.last)
            for number in 1, 2:
                self.plug(f"member{number}", False)
            self.cut_off = cut = time.monotonic()
            wait_until("silence", lambda: time.monotonic() > cut + TTL)
            last = max(probe.last or 0 for probe in (one, two)) - cut
        if last > TTL:
            raise RuntimeError(f"a server without etcd answers after {last:.2f} s")
        return f"{last:.2f}"

    def quiet(self):
        """Checks for a while that without etcd no server answers, and no lock was granted."""
        with Probe(self.servers[0]) as one, Probe(self.servers[1]) as two:
            time.sleep(TTL)
            if one.last or two.last or replies():
                raise RuntimeError("a server without etcd answers")
            granted = self.rival and self.rival.granted
            if granted and granted > self.cut_off + TTL:
                raise RuntimeError(f"a lock was granted {granted - self.cut_off:.2f} s after etcd was cut off")

    def heal(self):
        """Connects the members again. Prints the seconds until the next reply."""
        for number in 1, 2:
            self.plug(f"member{number}", True)
        healed = time.monotonic()
        self.active()
        return f"{time.monotonic() - healed:.2f}"

    def finish(self):
        """Ends the second client. Prints what it found, and how often a server lost its lease."""
        result = self.rival.finish()
        self.rival = None
        return json.dumps({**result, "lost": sum(server.lost for server in self.servers)})

    def stop(self):
        if self.rival:
            self.rival.stop()
        for server in self.servers:
            server.stopping = True
            server.again.release()
            server.process.terminate()
        statuses = [server.process.wait() for server in self.servers]
        for member in self.members:
            member.terminate()
            member.wait()
        for namespace in Namespace.all:
            namespace.holder.kill()
        self.check()
        if any(statuses):
            raise RuntimeError(f"the servers ended with {statuses}")


COMMANDS = "kill", "compete", "cut", "isolate", "quiet", "heal", "finish"


def serve(run_dir, path, name, version, barge, *arguments):
    def end(*_):
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    cluster = Cluster(run_dir, name, version, barge, arguments)
    try:
        with open(f"{run_dir}/cluster", "w") as script:
            script.write(f'exec {sys.executable} -B {__file__} ask {path} "$@"\n')
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{path}.new")
            listener.listen()
            # The harness waits for the socket.
            os.rename(f"{path}.new", path)
            while True:
                connection = listener.accept()[0]
                with connection, connection.makefile("rw") as peer:
                    answer(cluster, peer)
    finally:
        cluster.stop()


def answer(cluster, peer):
    command = peer.readline().strip()
    try:
        if command not in COMMANDS:
            raise RuntimeError(f"expected one of {COMMANDS}, got {command!r}")
        text = getattr(cluster, command)() or ""
        cluster.check()
        print(f"0 {text}", file=peer)
    except (OSError, RuntimeError) as error:
        print(f"1 {command}: {error}", file=peer)


def ask(path, command):
    with socket.socket(socket.AF_UNIX) as call:
        call.connect(path)
        with call.makefile("rw") as peer:
            print(command, file=peer, flush=True)
            status, _, text = peer.readline().strip().partition(" ")
    print(text)
    sys.exit(int(status or 1))


match sys.argv[1:]:
    case ["ask", path, command]:
        ask(path, command)
    case ["rival", directory]:
        rival(directory)
    case [run_dir, path, name, version, barge, *arguments]:
        serve(run_dir, path, name, version, barge, *arguments)
    case _:
        sys.exit(__doc__)
