"""What a script expects and what it gets: said where they differ, and the script's status in the end."""

import os
import subprocess
import sys
import traceback

NAME = os.path.basename(sys.argv[0]).removesuffix(".py")
if os.environ.get("GUESTS", "1") != "1":
    NAME += f", guest {os.environ['GUEST']}"
failures = 0


def check(what, got, expected):
    global failures
    if got != expected:
        failures += 1
        print(f"{NAME}: {what}: got {repr(got)[:300]}, expected {repr(expected)[:300]}")


def all_passed():
    return failures == 0


def tests(*functions):
    """Calls one after the other; one that cannot go on has failed."""
    for function in functions:
        try:
            function()
        except (OSError, RuntimeError, ValueError) as error:
            traceback.print_exc()
            check(function.__name__, str(error), "no error")


def said(*command):
    """A command's output; RuntimeError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def skip(why):
    print(f"{NAME}: {why}")
    sys.exit(77)


def end(passed):
    """Ends the script; `passed` is said if all was as expected."""
    if failures:
        sys.exit(f"{NAME}: {failures} failures")
    print(f"{NAME}: {passed}")
