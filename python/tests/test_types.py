"""The types of the package, as mypy sees them."""

import subprocess
import sys


def mypy(*arguments):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd="typed")


def test_a_program_that_uses_the_package_right():
    checked = mypy("mypy", "--strict", "--no-incremental", "right.py")
    assert checked.returncode == 0, checked.stdout


def test_each_mistake_is_found():
    checked = mypy("mypy", "--strict", "--no-incremental", "wrong.py")
    found = [line.split(":")[1] for line in checked.stdout.splitlines() if ": error:" in line]
    with open("typed/wrong.py") as file:
        expected = [str(n) for n, line in enumerate(file, 1) if line.rstrip().endswith("# error")]
    assert found == expected, checked.stdout


def test_the_stub_has_what_the_module_has():
    checked = mypy("mypy.stubtest", "barge._barge")
    assert checked.returncode == 0, checked.stdout + checked.stderr
