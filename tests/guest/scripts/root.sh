#!/bin/bash
# The guest's root, which barge serves: Debian's own programs work in it, and it is the host's in names, attributes and bytes.
# TREES: which to compare.
set -eu
[ -z "${BARGE_LOCAL:-}" ] || { echo "root: this takes a guest"; exit 77; }
mounted=$(grep ' /run/root ' /proc/mounts)
case $mounted in *trans=virtio*) echo "root: it is QEMU's: $mounted" && exit 1 ;; esac

dpkg -l >packages
dpkg --verify coreutils libc6 perl-base
apt --version
apt-cache policy apt >policy
python3 -B -c 'import asyncio, ctypes, json, sqlite3, ssl, xml.etree; print("python", __import__("sys").version.split()[0])'
perl -MPOSIX -e 'print "perl $^V\n"'
printf '#include <stdio.h>\nint main(void) { return puts("gcc") < 0; }\n' >/tmp/program.c
gcc -O2 -o /tmp/program /tmp/program.c
/tmp/program
# Changes are the tmpfs's above it.
echo changed >/etc/barge-guest

# Times of access are left out; so are directories' sizes and counts of links, which a mount point changes.
list() { echo "find $1 -xdev \\( -type d -printf '%p %m %U %G %y\\n' -o -printf '%p %m %U %G %y %s %n %T@ %l\\n' \\) | sort | sha256sum"; }
sums() { echo "find $1 -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"; }
for tree in ${TREES:-/usr/bin /etc}; do
    for what in list sums; do
        here=$(cd /run/root && eval "$($what ".$tree")")
        there=$(host "cd / && $($what ".$tree")")
        [ "$here" = "$there" ] || { echo "root: $tree: $what differs from the host's"; exit 1; }
    done
done
echo "root: $(wc -l <packages) packages, and the host's bytes in ${TREES:-/usr/bin /etc}"
