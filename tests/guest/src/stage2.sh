#!/bin/sh
# Stage two, in the guest's root as process 1: mount the share, run each case, tell the harness, power off.
. /run/barge/env
export PATH HOME=/root LC_ALL=C TERM=dumb BARGE_SCRIPTS GUEST GUESTS
cd /run/barge

case $MACHINE in
    qemu)
        for port in /sys/class/virtio-ports/*; do
            ln -s "/dev/${port##*/}" "$(cat "$port/name")"
        done
        ;;
    uml)
        # A serial line closes with its last opener.
        exec 3<>/dev/ttyS0 4<>/dev/ttyS1
        ./busybox stty raw -echo <&3 && ./busybox stty raw -echo <&4
        ln -s /dev/ttyS0 ctl && ln -s /dev/ttyS1 out
        # Long replies are files of the host.
        mkdir replies && ./busybox mount -i -t hostfs -o "ro,$DIR" none replies
        ;;
esac
exec >out 2>&1 </dev/null

# One line to the harness; the port takes one opener at a time.
say() {
    { flock 9 && echo "$*" >ctl; } 9>ctl.lock
}

finish() {
    say "$*"
    /run/barge/busybox poweroff -f
}

# The machine's clock starts with whole seconds. Set it a little ahead of the host's, lest files which the server stamps come from the future.
set_clock() {
    now=$(($(host 'date +%s%N') + 200000000))
    date -s "@${now%?????????}.${now#??????????}" >/dev/null
}

busy() {
    echo "processes which hold the share open:"
    for fd in /proc/[0-9]*/cwd /proc/[0-9]*/fd/*; do
        case $(readlink "$fd") in
            /mnt | /mnt/*) pid=${fd#/proc/} && echo "  ${pid%%/*}: $(tr '\0' ' ' <"/proc/${pid%%/*}/cmdline")" ;;
        esac
    done
}

# v3's locks need the client's own statd. It looks up the names of servers before it replies to one that has restarted: that takes longer than the server's patience if
# there is a name server that does not reply.
no_name_server() { sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf; }
case $MOUNT_TYPE,$MOUNT_OPTIONS, in
    nfs,*,nolock,*) ;;
    nfs,*vers=3,*) no_name_server && rpcbind && rpc.statd || finish "fault rpc.statd" ;;
esac

# The kernel has tlshd shake hands; until that listens, it mounts nothing.
tries=1
case ,$MOUNT_OPTIONS, in
    *,xprtsec=*)
        libs=$TLSHD/usr/lib/x86_64-linux-gnu
        "$libs/ld-linux-x86-64.so.2" --library-path "$libs" "$TLSHD/usr/sbin/tlshd" -s -c "$TLSHD/tlshd.conf" >/run/tlshd.log 2>&1 &
        tries=20
        ;;
esac

# The kernel's NFS server, with ext4 in memory as its tree. mountd, which would answer the server's questions about exports, and which v3 needs, is not there: the
# answers are entered before the questions. The flags of the export are those of "insecure,no_subtree_check,fsid=0" (linux/nfsd/export.h).
serve_nfs() {
    truncate -s 700M /tmp/disk && mkfs.ext4 -q /tmp/disk && /run/barge/busybox mount -o loop /tmp/disk /mnt && chmod 755 /mnt &&
        rpcbind && mount -t nfsd nfsd /proc/fs/nfsd || return 1
    never=2147483647 number=1
    while [ $number -le "$GUESTS" ]; do
        echo "nfsd 10.0.2.$((14 + number)) $never clients" >/proc/net/rpc/auth.unix.ip/channel || return 1
        number=$((number + 1))
    done
    echo "clients /mnt $never $((0x2402)) 65534 65534 0" >/proc/net/rpc/nfsd.export/channel &&
        echo "clients 1 \\x00000000 $never /mnt" >/proc/net/rpc/nfsd.fh/channel &&
        echo 10 >/proc/fs/nfsd/nfsv4leasetime && echo 10 >/proc/fs/nfsd/nfsv4gracetime && echo "-3 +4 +4.0 +4.1 +4.2" >/proc/fs/nfsd/versions &&
        echo "tcp 2049" >/proc/fs/nfsd/portlist && echo 8 >/proc/fs/nfsd/threads
}

mount_share() {
    case $MOUNT_TYPE in
        knfsd) serve_nfs 2>&1 ;;
        # The device is a program and its first arguments. It stays, and is not to hold our output.
        barge9p | fuse.barge) $MOUNT_DEVICE /mnt -o "$MOUNT_OPTIONS" 2>&1 ;;
        *) /run/barge/busybox mount -i -t "$MOUNT_TYPE" -o "$MOUNT_OPTIONS" "$MOUNT_DEVICE" /mnt 2>&1 ;;
    esac
}

while ! error=$(mount_share); do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || finish "fault mount: ${error:-failed} $(tail -n 3 /run/tlshd.log 2>/dev/null | tr '\n' ' ')"
    sleep 0.5
done

say ready
# The harness ends a guest that serves.
while [ "$MOUNT_TYPE" = knfsd ]; do sleep 1000; done
while read -r name dir; do
    mkdir -p "/mnt/$dir"
    chmod 755 "/mnt/$dir"
    set_clock
    echo "<5>barge-guest: case $name" >/dev/kmsg
    say "begin $name"
    (cd "/mnt/$dir" && exec timeout -k 10 "$CASE_TIMEOUT" sh "/run/barge/cases/$name")
    status=$?
    say "end $name $status"
done <cases/order
echo "<5>barge-guest: case -" >/dev/kmsg

# Whoever is about to end may do so.
if ! umount /mnt 2>/dev/null && sleep 2 && ! error=$(umount /mnt 2>&1); then
    busy
    finish "fault umount: $error"
fi
finish done
