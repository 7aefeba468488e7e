#!/usr/bin/env python3
"""An installed program that runs the real one up to the report that it serves, and fails then.

It stands between the program that it replaces and the real one: it has the other end of the socket
over which the real one reports.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

REAL = "@REAL@"
FAILURE = "@FAILURE@"

if "BARGE_UPGRADE_CHECK" in os.environ:
    sys.exit(0)
manifest = json.loads(os.pread(int(os.environ["BARGE_UPGRADE"]), 1 << 26, 0))
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.dup2(there.fileno(), manifest["predecessor"]["channel"])
there.close()
real = subprocess.Popen([REAL] + sys.argv[1:], close_fds=False)
report = here.recv(1 << 16)
with open("@REPORT@", "wb") as file:
    file.write(report)
if FAILURE == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(1000)
