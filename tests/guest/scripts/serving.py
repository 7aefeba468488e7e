"""Servers in the guest itself.

BARGE: the program."""

import os
import subprocess
import tempfile

from checking import all_passed, check, skip

BARGE = os.environ.get("BARGE")
if not BARGE:
    skip("BARGE is not set")

log = tempfile.TemporaryFile("w+", dir="/run")


class Served:
    """`barge serve` for as long as a block lasts. `output` has the lines that it printed before it was ready."""

    def __init__(self, *args, fds=()):
        self.args, self.fds = args, fds

    def __enter__(self):
        self.process = subprocess.Popen([BARGE, "serve", *self.args], stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=self.fds)
        self.output = []
        for line in self.process.stdout:
            if line == "ready\n":
                return self
            self.output.append(line)
        raise RuntimeError(f"barge serve {' '.join(self.args)}: not ready")

    def kill_and_restart(self):
        self.process.kill()
        self.process.wait()
        self.__enter__()

    def __exit__(self, *_):
        self.process.terminate()
        check(f"status of barge serve {' '.join(self.args)}", self.process.wait(), 0)


def print_log_on_failure():
    """Prints what the servers have logged if a check has failed."""
    if not all_passed():
        log.seek(0)
        print(log.read())
