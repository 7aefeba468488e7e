#!/bin/sh
# The guest's root, an image that barge has packed: served as the share is, or a disk of which the kernel mounts it by itself. There is nothing
# in it but busybox, so this is for that.
set -eu
[ -z "${BARGE_LOCAL:-}" ] || { echo "image: this takes a guest"; exit 77; }
mounted=$(grep ' /run/root ' /proc/mounts)
case $mounted in *trans=virtio*) echo "image: the root is QEMU's: $mounted" && exit 1 ;; esac

# Directories' sizes and counts of links are each file system's own.
same="export LC_ALL=C
find . -type d -exec stat -c '%n %a %u %g %Y' {} + | sort
find . ! -type d -exec stat -c '%N %a %u %g %F %s %Y %h %t %T' {} + | sort
find . -type f -exec sha256sum {} + | sort"
here=$(cd /run/root && eval "$same")
# The host's own programs would tell it in other words.
there=$(host "PATH=\$RUN/tree/bin; cd \$RUN/tree; $same")
[ "$here" = "$there" ] || { echo "image: the root differs from what was packed"; exit 1; }
# Changes are the tmpfs's above it.
echo changed >/etc/new
! touch /run/root/etc/new 2>/dev/null || { echo "image: it can be written"; exit 1; }
echo "image: $(echo "$here" | wc -l) lines are the same by ${mounted%% *}"
