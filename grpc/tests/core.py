"""Calls barge-csi and barge-snapshotter over their Unix sockets with gRPC's C core: see `core`."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import grpc

TIMEOUT = 20
CSI = "/csi.v1."
SNAPSHOTS = "/containerd.services.snapshots.v1.Snapshots/"


@contextmanager
def running(command, socket, ready):
    """Runs a server until the block ends, from the line of its output with `ready` on."""
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in server.stdout:
            if ready in line:
                break
            print(line, end="")
        else:
            raise RuntimeError(f"{command[0]} ended")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            yield channel
    finally:
        server.terminate()
        server.communicate(timeout=TIMEOUT)
    if server.returncode:
        raise RuntimeError(f"{command[0]} ended with {server.returncode}")


def text(number, value):
    """Encodes a field of a message."""
    return bytes([number << 3 | 2, len(value)]) + value


def call(channel, method, request=b""):
    """Returns the encoded responses one after the other, or the code of the error."""
    try:
        return b"".join(channel.unary_stream(method)(request, timeout=TIMEOUT))
    except grpc.RpcError as error:
        return error.code()


def has(part):
    """Returns whether an answer is a response with these bytes."""
    return lambda answer: isinstance(answer, bytes) and part in answer


def is_error(name):
    """Returns whether an answer is the code of this error."""
    return lambda answer: answer is grpc.StatusCode[name]


def calls_of_csi(programs, work):
    socket = f"{work}/csi.sock"
    command = [f"{programs}/barge-csi", "--endpoint", f"unix://{socket}", "--node-id", "node-1",
               "--state-dir", f"{work}/state", "--allow-path", work]
    with running(command, socket, "serving CSI") as channel:
        # Later requests name the authority by its number in the table of the first one.
        for _ in range(3):
            info = call(channel, f"{CSI}Identity/GetPluginInfo")
            yield "the name of the plugin", info, has(b"barge")
        node = call(channel, f"{CSI}Node/NodeGetInfo")
        yield "the node", node, has(text(1, b"node-1"))
        stage = call(channel, f"{CSI}Node/NodeStageVolume", text(1, b"volume"))
        yield "an error", stage, is_error("INVALID_ARGUMENT")
        none = call(channel, f"{CSI}Node/None")
        yield "a method that is none", none, is_error("UNIMPLEMENTED")


def calls_of_snapshotter(programs, work):
    socket = f"{work}/snapshotter.sock"
    command = [f"{programs}/barge-snapshotter", "--root", f"{work}/root", "--address", socket]
    with running(command, socket, "ready") as channel:
        name = text(1, b"barge") + text(2, b"key")
        missing = call(channel, f"{SNAPSHOTS}Stat", name)
        yield "a snapshot that is none", missing, is_error("NOT_FOUND")
        mounts = call(channel, f"{SNAPSHOTS}Prepare", name)
        yield "the mounts of a snapshot", mounts, has(f"{work}/root".encode())
        stat = call(channel, f"{SNAPSHOTS}Stat", name)
        yield "the snapshot", stat, has(text(1, b"key"))
        listed = call(channel, f"{SNAPSHOTS}List", text(1, b"barge"))
        yield "a stream", listed, has(text(1, b"key"))
        removed = call(channel, f"{SNAPSHOTS}Remove", name)
        yield "a removal", removed, has(b"")


def main():
    programs = sys.argv[1]
    passed = failed = 0
    for calls in calls_of_csi, calls_of_snapshotter:
        with tempfile.TemporaryDirectory() as work:
            for what, answer, is_expected in calls(programs, os.path.realpath(work)):
                if is_expected(answer):
                    passed += 1
                else:
                    failed += 1
                    print(f"FAILED: {calls.__name__}: {what}: {answer!r}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
