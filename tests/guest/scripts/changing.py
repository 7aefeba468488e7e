#!/usr/bin/python3 -B
"""Runs on the host: changes files in the directory `DIRECTORY`, and measures when the guest has seen each change.

changing.py ADDRESS FILES DIRECTORY: prints a port of ADDRESS. The guest connects and sends a byte for each change that it has seen; the next change follows. Each file
is made, written, renamed and removed, after a byte that the guest returns at once. In the end the guest gets the times of each kind, from the beginning of the change on the
host to the arrival of the byte, as a line of JSON: they include the way back, and ECHO is both ways alone."""

import json
import os
import socket
import sys
import time


def write(path):
    with open(path, "a") as file:
        file.write("text")


# Each kind of event, and the change of a file that raises it.
CHANGES = {
    "CREATE": lambda path: os.mknod(path, 0o644),
    "MODIFY": write,
    "MOVED_TO": lambda path: os.rename(path, path + ".renamed"),
    "DELETE": lambda path: os.remove(path + ".renamed"),
}


def main(address, files, directory):
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    listener.settimeout(60)
    guest, _ = listener.accept()
    guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = {kind: [] for kind in ["ECHO", *CHANGES]}
    for number in range(files):
        began = time.monotonic()
        guest.sendall(b"?")
        guest.recv(1)
        times["ECHO"].append(time.monotonic() - began)
        for kind, change in CHANGES.items():
            began = time.monotonic()
            change(f"{directory}/{number % 4}/{number}")
            if not guest.recv(1):
                sys.exit("the guest is gone")
            times[kind].append(time.monotonic() - began)
    guest.sendall(json.dumps(times).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
