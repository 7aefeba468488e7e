#!/usr/bin/python3 -B
"""Programs that lock files in the current directory. Prints what happens, without process ids and times: the same on every file system with locks.

A step that hangs is printed as such after PATIENCE seconds, and ends with its processes."""

import errno
import fcntl
import os
import select
import signal
import struct
import time

PATIENCE = 60
READ, WRITE, FREE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
OFD_SETLK = 37


def lock(fd, kind, start, length, command=fcntl.F_SETLK):
    """'got', or the error's name."""
    try:
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
        return "got"
    except OSError as error:
        return "refused" if error.errno in (errno.EAGAIN, errno.EACCES) else errno.errorcode[error.errno]


def wait(fd, kind, start, length):
    return lock(fd, kind, start, length, fcntl.F_SETLKW)


def opened(name="file"):
    return os.open(name, os.O_RDWR | os.O_CREAT)


class Other:
    """A process that does what it is told, and can be waited for."""

    pipes = set()

    def __init__(self, keep=()):
        (commands, self.commands), (self.results, results) = os.pipe(), os.pipe()
        Other.pipes |= {self.commands, self.results}
        self.pid = os.fork()
        if self.pid == 0:
            # Another process ends when its commands do.
            for pipe in Other.pipes:
                os.close(pipe)
            files = list(keep)
            for line in os.fdopen(commands):
                os.write(results, f"{eval(line, globals(), {'files': files})}\n".encode())
            os._exit(0)
        os.close(commands)
        os.close(results)

    def send(self, command):
        os.write(self.commands, command.encode() + b"\n")

    def result(self, patience=PATIENCE):
        ready, _, _ = select.select([self.results], [], [], patience)
        return os.read(self.results, 100).decode().strip() if ready else "hangs"

    def does(self, command):
        self.send(command)
        return self.result()

    def end(self):
        Other.pipes -= {self.commands, self.results}
        os.close(self.commands)
        if not select.select([self.results], [], [], PATIENCE)[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.results)
        os.waitpid(self.pid, 0)


def soon(attempt):
    """The result of an attempt, repeated until it is 'got': FUSE tells the server of a file's last close(2) without waiting for the reply."""
    deadline = time.monotonic() + PATIENCE
    while (result := attempt()) != "got" and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def told(*words):
    print(*words, flush=True)


def cycle(count, kind):
    """Processes that wait for each other in a circle: one is told, and ends; then the others get their locks one by one."""
    others = [Other() for _ in range(count)]
    for number, other in enumerate(others):
        other.does("files.append(opened())")
        told(count, kind, other.does(f"lock(files[0], {kind}, {number}, 1)"))
    for number, other in enumerate(others):
        other.send(f"wait(files[0], {WRITE}, {(number + 1) % count}, 1)")
    waiting = list(others)
    while waiting:
        ready, _, _ = select.select([other.results for other in waiting], [], [], PATIENCE)
        if not ready:
            told(count, kind, "hang")
            break
        other = next(other for other in waiting if other.results == ready[0])
        told(count, kind, other.result())
        waiting.remove(other)
        other.end()
    for other in waiting:
        os.kill(other.pid, signal.SIGKILL)
        other.end()


def upgrades():
    """Two readers of a range that both want to write it."""
    others = [Other() for _ in range(2)]
    for other in others:
        other.does("files.append(opened())")
        told("upgrade", other.does(f"lock(files[0], {READ}, 0, 10)"))
    for other in others:
        other.send(f"wait(files[0], {WRITE}, 0, 10)")
    ready, _, _ = select.select([other.results for other in others], [], [], PATIENCE)
    others.sort(key=lambda other: other.results not in ready)
    for other in others:
        told("upgrade", other.result() if ready else "hang")
        if ready:
            other.end()


def ofd_close():
    """Open file description locks end with close(2), though another process has the file open and locked."""
    keeper = Other()
    keeper.does("files.append(opened())")
    told("ofd", keeper.does(f"lock(files[0], {READ}, 50, 1, OFD_SETLK)"))
    kept = []
    for number in range(5):
        fd = opened()
        told("ofd", lock(fd, READ, 100, 1, OFD_SETLK), lock(fd, WRITE, 201 + number, 1, OFD_SETLK))
        os.close(fd)
        # Another open file takes the place of this one in the kernel's memory.
        kept += [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    kept += [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    fd = opened()
    told("ofd after close", [soon(lambda: lock(fd, WRITE, at, 1, OFD_SETLK)) for at in (100, 201, 202, 203, 204, 205)])
    told("ofd of the other", lock(fd, WRITE, 50, 1, OFD_SETLK))
    for one in [fd, *kept]:
        os.close(one)
    keeper.end()


def ofd_of_one_process():
    """Each open file has locks of its own, which end with its last descriptor."""
    first, second, third = opened(), opened(), opened()
    told("ofd twice", lock(first, WRITE, 0, 1, OFD_SETLK), lock(second, WRITE, 1, 1, OFD_SETLK), lock(third, WRITE, 0, 2, OFD_SETLK))
    copy = os.dup(first)
    os.close(first)
    told("ofd dup", lock(third, WRITE, 0, 1, OFD_SETLK))
    child = Other([copy])
    os.close(copy)
    told("ofd child", lock(third, WRITE, 0, 1, OFD_SETLK))
    told("ofd child unlocks", child.does(f"lock(files[0], {FREE}, 0, 1, OFD_SETLK)"), lock(third, WRITE, 0, 1, OFD_SETLK))
    child.end()
    os.close(second)
    told("ofd second", soon(lambda: lock(third, WRITE, 1, 1, OFD_SETLK)))
    os.close(third)


def processes():
    """Locks of a process end when it closes any descriptor of the file, and not when others do."""
    other = Other()
    other.does("files.append(opened())")
    first, second = opened(), opened()
    held = f"lock(files[0], {READ}, 0, 1)"
    told("process", lock(first, WRITE, 0, 1), other.does(held))
    child = Other([first])
    told("its child", child.does(f"lock(files[0], {WRITE}, 0, 1)"), child.does("os.close(files[0])"))
    told("after the child's close", other.does(held))
    os.close(os.dup(second))
    told("after the close of a copy", other.does(held))
    other.does(f"lock(files[0], {FREE}, 0, 0)")
    # The first file stays open in another child, which ends after the process has locked the file through the second one.
    last = Other([first])
    os.close(first)
    told("through the second", lock(second, WRITE, 0, 1))
    last.end()
    child.end()
    told("after the end of the first", other.does(held))
    os.close(second)
    told("after the end of the second", other.does(held))
    other.end()


def whole_files():
    """flock(2) belongs to the open file, with all its descriptors."""
    other = Other()
    other.does("files.append(opened())")
    attempt = "attempt(files[0])"
    first, second = opened(), opened()
    fcntl.flock(first, fcntl.LOCK_EX)
    told("flock", other.does(attempt), attempt_flock(second))
    child = Other([first])
    os.close(first)
    told("flock in the child", other.does(attempt))
    child.end()
    told("flock after its end", soon(lambda: other.does(attempt)))
    os.close(second)
    other.end()


def attempt(fd):
    result = attempt_flock(fd)
    if result == "got":
        fcntl.flock(fd, fcntl.LOCK_UN)
    return result


def attempt_flock(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "got"
    except OSError as error:
        return errno.errorcode[error.errno]


for count in (2, 3, 6):
    cycle(count, WRITE)
upgrades()
ofd_close()
ofd_of_one_process()
processes()
whole_files()
