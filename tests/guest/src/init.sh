#!/bin/busybox sh
# Stage one, in the initramfs: modules, network, and a root made of the host's tree below a tmpfs. Then stage two takes over in that root.
export PATH=/bin
/bin/busybox --install -s /bin
. /barge/env

die() {
    echo "init: $*"
    poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $MODULES; do
    insmod "/barge/modules/$module.ko" || die "module $module"
done

# Patient, for an emulated processor may stand still for seconds.
echo 100 >/proc/sys/kernel/hung_task_timeout_secs
# NFS takes two clients of one name for one that has restarted.
hostname "barge-guest-$GUEST"
ip link set lo up
case $MACHINE in
    qemu) nic=eth0 ;;
    uml) nic=vec0 ;;
esac
if [ -e /sys/class/net/$nic ]; then
    ip addr add 10.0.2.$((14 + GUEST))/24 dev $nic
    ip link set $nic up
    ip route add default via 10.0.2.2
fi

mkdir /lower /cow /new
mount -t "$ROOT_TYPE" -o "$ROOT_OPTIONS" "$ROOT_DEVICE" /lower || die "no root"
mount -t tmpfs -o mode=755 cow /cow
mkdir /cow/upper /cow/work
mount -t overlay -o lowerdir=/lower,upperdir=/cow/upper,workdir=/cow/work root /new || die "no overlay"

mount -t tmpfs -o mode=755 run /new/run
mount -t tmpfs -o mode=1777 tmp /new/tmp
# A root that is not the host's has none of them.
eval "set -- $BELOW_TMPFS"
for dir; do
    [ ! -d "/lower$dir" ] || { mkdir -p "/new$dir" && mount --bind "/lower$dir" "/new$dir"; } || die "no $dir"
done
mount --move /dev /new/dev
mount --move /proc /new/proc
mount --move /sys /new/sys
mkdir -p /new/dev/pts /new/dev/shm /new/run/lock /new/run/root /new/mnt
mount --move /lower /new/run/root
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /new/dev/pts
mount -t tmpfs -o mode=1777 shm /new/dev/shm
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    ln -sf "/proc/self/${link#*:}" "/new/dev/${link%%:*}"
done

mv /barge /new/run/barge
cp /bin/busybox /new/run/barge/busybox
exec switch_root /new /bin/sh /run/barge/stage2
