#!/usr/bin/python3 -B
"""Two guests with one share: what one locks is refused to the other and to programs on the host, and all three write to one SQLite database.

FLOCK=no leaves out flock, which is a byte range to a 9P client and a thing of its own to others. ROWS: as many from each writer. TURNS: of reading what the
other has just written."""

import fcntl
import os
import sqlite3
import sys
from contextlib import closing

from checking import check, end, said, skip
from locking import FREE, READ, WRITE, flock, holder, lock, on_host

GUEST, GUESTS = (int(os.environ.get(name, "1")) for name in ("GUEST", "GUESTS"))
ROWS, TURNS = int(os.environ.get("ROWS", "100")), int(os.environ.get("TURNS", "20"))


def by_turns(*steps):
    """Steps of guest 1 and guest 2 alternately, each after the one before."""
    for number, step in enumerate(steps):
        if number % 2 == GUEST - 1:
            step()
        said("meet")


def ranges():
    fd = None

    def opened():
        nonlocal fd
        fd = os.open("file", os.O_RDWR | os.O_CREAT)

    def locked():
        opened()
        check("a write lock on 10..20", lock(fd, WRITE, 10, 10), "got")

    def refused():
        opened()
        check("the other's range", lock(fd, WRITE, 10, 10), "refused")
        check("a byte of it to read", lock(fd, READ, 19, 1), "refused")
        check("who is in the way", holder(fd, 0, 15), (10, 10))
        check("it on the host", on_host(READ, 15, 1), "refused")
        check("the byte before it", lock(fd, WRITE, 9, 1), "got")

    def split():
        check("the other's byte", lock(fd, READ, 9, 1), "refused")
        check("unlocking the middle", lock(fd, FREE, 13, 4), "got")

    def rests():
        check("the middle", lock(fd, WRITE, 13, 4), "got")
        check("the left rest", lock(fd, WRITE, 12, 1), "refused")
        check("the right rest", lock(fd, WRITE, 17, 1), "refused")

    def shared():
        check("turning into a read lock", lock(fd, READ, 10, 3), "got")

    def readers():
        check("reading together", lock(fd, READ, 10, 3), "got")
        check("writing alone", lock(fd, WRITE, 10, 3), "refused")
        os.close(fd)

    def closed():
        check("after the other has closed it", lock(fd, WRITE, 0, 0), "got")
        os.close(fd)

    def free():
        check("the whole on the host, when both have closed it", on_host(WRITE, 0, 0), "got")

    by_turns(locked, refused, split, rests, shared, readers, closed, free)


def waiting():
    """Guest 2 waits for what guest 1 holds."""
    with open("file", "r+b") as file:
        waiter = None

        def wait():
            nonlocal waiter
            waiter = os.fork()
            if waiter == 0:
                with open("file", "r+b") as own:
                    got = lock(own, WRITE, 5, 5, fcntl.F_SETLKW)
                    os.mkdir("granted")
                    os._exit(got != "got")

        def release():
            check("the waiter, before it is let", os.path.exists("granted"), False)
            check("letting it", lock(file, FREE, 0, 0), "got")

        by_turns(lambda: check("a lock to wait for", lock(file, WRITE, 0, 0), "got"), wait, release)
        if waiter is not None:
            check("the waiter", os.waitpid(waiter, 0)[1], 0)


def whole_files():
    with open("file", "r+b") as file:
        by_turns(
            lambda: check("flock", flock(file, fcntl.LOCK_EX), "got"),
            lambda: check("the other's flock", flock(file, fcntl.LOCK_SH), "refused"),
            lambda: check("sharing it", flock(file, fcntl.LOCK_SH), "got"),
            lambda: check("a shared flock", flock(file, fcntl.LOCK_SH), "got"),
            lambda: check("flock, shared by the other", flock(file, fcntl.LOCK_EX), "refused"),
        )


def write(database, who):
    with closing(sqlite3.connect(database, timeout=120, isolation_level=None)) as connection:
        for number in range(ROWS):
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", (who, number, "x" * (40 + number * 37 % 900)))


def database(mode):
    name = f"{mode}.db"
    if GUEST == 1:
        with closing(sqlite3.connect(name)) as connection:
            check("journal", connection.execute(f"PRAGMA journal_mode={mode}").fetchone(), (mode,))
            connection.execute("CREATE TABLE t (who INTEGER, n INTEGER, body TEXT, PRIMARY KEY (who, n))")
        said("host", f"mkfifo {mode}.end; {{ env ROWS={ROWS} {__file__} write {name} 3; echo $? >{mode}.end; }} >{mode}.log 2>&1 &")
    said("meet")
    write(name, GUEST)
    if GUEST == 1:
        check("the writer on the host", said("host", f"cat {mode}.end {mode}.log"), "0\n")
    said("meet")
    with closing(sqlite3.connect(name, timeout=120)) as connection:
        check(f"{mode}: integrity", connection.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
        counts = connection.execute("SELECT who, count(*) FROM t GROUP BY who").fetchall()
        check(f"{mode}: rows", counts, [(1, ROWS), (2, ROWS), (3, ROWS)])
    check(f"{mode}: the host's bytes", said("host", f"sha256sum {name}"), said("sha256sum", name))
    said("meet")


def ping_pong():
    """Connections that stay open: what the other has committed is there at once, and was not before."""
    with closing(sqlite3.connect("turns.db", timeout=120, isolation_level=None)) as connection:
        if GUEST == 1:
            connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body TEXT)")
            connection.execute("INSERT INTO t VALUES (0, '')")

        def turn(number):
            check(f"turn {number}", connection.execute("SELECT max(n), length(body) FROM t").fetchone(), (number, number * 50))
            connection.execute("INSERT INTO t VALUES (?, ?)", (number + 1, "y" * (number + 1) * 50))

        said("meet")
        by_turns(*[lambda number=number: turn(number) for number in range(TURNS)])


if sys.argv[1:2] == ["write"]:
    write(sys.argv[2], int(sys.argv[3]))
    sys.exit()
if GUESTS != 2:
    skip("this takes two guests")
ranges()
waiting()
if os.environ.get("FLOCK", "yes") == "yes":
    whole_files()
for mode in ["delete", "truncate"]:
    database(mode)
ping_pong()
end("of one mind with the other and with the host")
