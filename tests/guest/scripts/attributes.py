#!/usr/bin/python3 -B
"""Extended attributes and ACLs: what is set here the host has and the other way round, and ACLs let in and keep out whom they name.

XATTR: 'no' where there are no extended attributes. ACL: 'posix' (setfacl(1)), 'nfs4' (nfs4_setfacl(1)) or 'no'.
UMASK: 'client' where the client takes its umask away whatever a directory hands on.
"""

import errno
import hashlib
import os
import subprocess
import time

from checking import check, end

XATTR = os.environ.get("XATTR", "yes") == "yes"
ACL = os.environ.get("ACL", "posix")
FRIEND, STRANGER = 1234, 1235


def attempt(function, *args):
    """The value, or the error's name."""
    try:
        return function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stdout}"


def host(command):
    return run("host", command)


def changed_on_host(command):
    """A change on the host, and the time that attributes may be old."""
    host(command)
    time.sleep(1.1)


def attributes():
    open("file", "w").close()
    binary = bytes(range(256))
    os.setxattr("file", "user.binary", binary)
    check("a value", os.getxattr("file", "user.binary"), binary)
    check("it on the host", host("getfattr --only-values -n user.binary file | sha256sum").split()[0],
          hashlib.sha256(binary).hexdigest())
    check("one that is there", attempt(os.setxattr, "file", "user.binary", b"x", os.XATTR_CREATE), "EEXIST")
    check("one that is not", attempt(os.setxattr, "file", "user.none", b"x", os.XATTR_REPLACE), "ENODATA")
    check("to read one that is not", attempt(os.getxattr, "file", "user.none"), "ENODATA")
    check("replaced", attempt(os.setxattr, "file", "user.binary", b"short", os.XATTR_REPLACE), None)
    check("its value", os.getxattr("file", "user.binary"), b"short")
    names = [f"user.name-{number:03}" for number in range(60)]
    for name in names:
        os.setxattr("file", name, name.encode())
    listed = [name for name in os.listxattr("file") if name.startswith("user.")]
    check("all names", sorted(listed), sorted(names + ["user.binary"]))
    check("all values", all(os.getxattr("file", name) == name.encode() for name in names), True)
    for name in names:
        os.removexattr("file", name)
    check("what is removed", attempt(os.removexattr, "file", names[0]), "ENODATA")
    check("what is left on the host", host("getfattr -d file").count("="), 1)
    changed_on_host("setfattr -n user.binary -v theirs file")
    check("what the host sets", run("getfattr", "--only-values", "-n", "user.binary", "file"), "theirs")
    os.mkdir("directory")
    os.setxattr("directory", "user.of", b"a directory")
    check("a directory's", os.getxattr("directory", "user.of"), b"a directory")


def may(who, mode, path):
    """Whether a user opens a file."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(who)
        os.setuid(who)
        try:
            os.close(os.open(path, mode))
            os._exit(0)
        except OSError as error:
            os._exit(1 if error.errno == errno.EACCES else 2)
    return {0: True, 1: False}.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "another error")


def who_may(path):
    return {name: may(who, os.O_RDONLY, path) for name, who in (("friend", FRIEND), ("stranger", STRANGER))}


def let_in(path, inherited=False):
    """Lets the friend read what is at `path`, or what is made in it."""
    if ACL == "posix":
        return run("setfacl", "-m", f"{'d:' if inherited else ''}u:{FRIEND}:rX", path)
    return run("nfs4_setfacl", "-a", f"A:{'fdi' if inherited else ''}:{FRIEND}:RX", path)


def acls():
    with open("secret", "w") as file:
        file.write("secret")
    os.chmod("secret", 0o640)
    check("before", who_may("secret"), {"friend": False, "stranger": False})
    check("letting someone in", let_in("secret"), "")
    check("who may then", who_may("secret"), {"friend": True, "stranger": False})
    check("whom the host knows", f"user:{FRIEND}:r-" in host("getfacl -n secret"), True)
    shown = run("getfacl", "-n", "secret") if ACL == "posix" else run("nfs4_getfacl", "secret")
    check("whom it shows", str(FRIEND) in shown, True)
    check("the mode, with the mask", oct(os.stat("secret").st_mode & 0o707), oct(0o600))
    os.chmod("secret", 0o600)
    time.sleep(1.1)
    check("a mode that takes the mask away", who_may("secret"), {"friend": False, "stranger": False})
    check("what stays for the next", f"user:{FRIEND}:r-" in host("getfacl -n secret"), True)

    changed_on_host(f"setfacl -b secret; setfacl -m u:{STRANGER}:r secret")
    check("what the host sets", who_may("secret"), {"friend": False, "stranger": True})

    os.mkdir("shared", 0o755)
    check("handing on", let_in("shared", inherited=True), "")
    umask = os.umask(0o077)
    with open("shared/made", "w") as file:
        file.write("made")
    os.mkdir("shared/deeper")
    os.umask(umask)
    check("what is made", f"user:{FRIEND}:r-" in host("getfacl -n shared/made"), True)
    masked = os.environ.get("UMASK") == "client"
    check("who may, whatever the umask", may(FRIEND, os.O_RDONLY, "shared/made"), not masked)
    check("what goes on further", f"default:user:{FRIEND}:r-x" in host("getfacl -n shared/deeper"), True)
    check("what a directory hands on goes", run("setfacl", "-k", "shared") if ACL == "posix" else
          run("nfs4_setfacl", "-s", "A::OWNER@:RWX,A::GROUP@:RX,A::EVERYONE@:RX", "shared"), "")
    check("what is left of it", "default:" in host("getfacl -n shared"), False)
    with open("shared/plain", "w") as file:
        file.write("plain")
    check("what is made then", "user:" + str(FRIEND) in host("getfacl -n shared/plain"), False)


if XATTR:
    attributes()
if ACL != "no":
    acls()
end("both sides have the same, and who may is let in")
