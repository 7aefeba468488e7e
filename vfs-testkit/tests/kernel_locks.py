#!/usr/bin/python3 -B
"""Lets processes lock bytes of files in DIR at random, and prints what the kernel did.

kernel_locks.py DIR SEED STEPS exclusive|any

A step is a line "OWNER FILE KIND START LENGTH RESULT", in which KIND is r, w or u and RESULT is got, waits or deadlock. A line "OWNER got" or "OWNER deadlock" is
the result of an earlier step that waited. With `exclusive` each lock is of one byte and for writing, so that a request waits for one owner at a time: Linux
follows only one. /proc/locks tells that a process waits."""

import errno
import fcntl
import os
import random
import select
import struct
import sys
import time

DIR, SEED, STEPS, KINDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
OWNERS, FILES, BYTES = 5, 2, 3
TYPES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}


class Owner:
    def __init__(self, number):
        self.number, self.waits = number, False
        (commands, self.commands), (self.results, results) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.commands)
            serve(commands, results)
        os.close(commands)
        os.close(results)

    def send(self, file, kind, start, length):
        os.write(self.commands, f"{file} {kind} {start} {length}\n".encode())

    def result(self, patience):
        ready, _, _ = select.select([self.results], [], [], patience)
        return os.read(self.results, 100).decode().strip() if ready else None


def serve(commands, results):
    files = [os.open(f"{DIR}/{file}", os.O_RDWR | os.O_CREAT) for file in range(FILES)]
    for line in os.fdopen(commands):
        file, kind, start, length = line.split()
        request = struct.pack("hhqqi4x", TYPES[kind], os.SEEK_SET, int(start), int(length), 0)
        try:
            fcntl.fcntl(files[int(file)], fcntl.F_SETLKW, request)
            result = "got"
        except OSError as error:
            result = "deadlock" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
        os.write(results, result.encode() + b"\n")
    os._exit(0)


def waiting():
    """The processes that wait for a lock."""
    with open("/proc/locks") as locks:
        lines = [line.split() for line in locks]
    return {int(words[5]) for words in lines if words[1] == "->"}


def settled(owner):
    """The owner's result, or None if it waits."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        result = owner.result(0.001)
        if result:
            return result
        if owner.pid in waiting():
            return None
    raise SystemExit("a process neither waits nor has a result")


def main():
    choice = random.Random(SEED)
    owners = [Owner(number) for number in range(OWNERS)]
    for _ in range(STEPS):
        free = [owner for owner in owners if not owner.waits]
        if not free:
            break
        owner, file = choice.choice(free), choice.randrange(FILES)
        kind = choice.choice("uww" if KINDS == "exclusive" else "urrww")
        start = choice.randrange(BYTES)
        length = 1 if KINDS == "exclusive" and kind != "u" else choice.randrange(1, BYTES + 1)
        owner.send(file, kind, start, length)
        result = settled(owner)
        print(owner.number, file, kind, start, length, result or "waits", flush=True)
        owner.waits = result is None
        # Those that were woken get their locks one after the other.
        changed = True
        while changed:
            changed = False
            for other in owners:
                if other.waits and other is not owner and (result := settled(other)):
                    print(other.number, result, flush=True)
                    other.waits, changed = False, True
    for owner in owners:
        os.kill(owner.pid, 9)
        os.waitpid(owner.pid, 0)


main()
