#!/usr/bin/python3 -B
"""Shares with virtiofs sockets are added to the server and removed while the guest reads, verifies and writes files of its own share: it sees no error.

BARGE: the program. SHARES: how many."""

import os
import subprocess
import threading

from checking import check, end, skip

if os.environ.get("BARGE_LOCAL"):
    skip("this takes a guest")

SHARES = int(os.environ.get("SHARES", "40"))
TEXT = os.urandom(1 << 20)
stopped = threading.Event()
rounds = 0


def use():
    """Reads a file from the server and rewrites another one, again and again."""
    global rounds
    try:
        while not stopped.is_set():
            with open("read", "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                check("the file read", file.readall() == TEXT, True)
            number = str(rounds).encode()
            with open("new", "wb") as file:
                file.write(number)
                os.fsync(file.fileno())
            os.rename("new", "written")
            with open("written", "rb") as file:
                check("the file written", file.read(), number)
            rounds += 1
    except OSError as error:
        check("the share", str(error), "no error")


with open("read", "wb") as file:
    file.write(TEXT)
    os.fsync(file.fileno())
user = threading.Thread(target=use)
user.start()
command = f"""
set -e
ctl() {{ {os.environ["BARGE"]} ctl --control "unix:$RUN/control" "$@" >/dev/null; }}
mkdir "$RUN/other"
for number in $(seq {SHARES}); do
    ctl add "x$number=$RUN/other" --virtiofs "$RUN/x$number.sock"
    test -S "$RUN/x$number.sock"
    [ "$number" -le 5 ] || ctl remove "x$((number - 5))"
done
{os.environ["BARGE"]} ctl --control "unix:$RUN/control" list
"""
done = subprocess.run(["host", command], capture_output=True, text=True)
stopped.set()
user.join()
check(f"shares of the host: {done.stdout}{done.stderr}", done.returncode, 0)
check("the last share in the list", f"x{SHARES}" in done.stdout, True)
check("the use of the share meanwhile", rounds > 0, True)
end(f"{SHARES} shares came and all but 5 went, while files were used {rounds} times")
