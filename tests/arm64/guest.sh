#!/bin/busybox sh
# The first process of the arm64 guest. It tests, says 'N passed, N failed' and turns the machine off.
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
if [ -z "$IN_ROOT" ]; then
    # The first root cannot be left by pivot_root(2), which confined processes do.
    busybox mkdir -p /proc /new
    busybox mount -t tmpfs -o size=3G tmpfs /new
    busybox cp -a /bin /init /lib* /sbin /tests /usr /new/ 2>/dev/null
    busybox mkdir -p /new/dev /new/proc /new/sys /new/mnt /new/tmp /new/scratch /new/run /new/etc
    export IN_ROOT=1
    exec busybox switch_root /new /init
fi
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
echo nobody:x:65534:65534:nobody:/:/bin/false >>/etc/passwd
echo root:x:0: >/etc/group
while read -r module; do insmod "$module" || echo "FAILED: insmod $module"; done </tests/modules
mount -t ext4 /dev/vda /scratch
mkdir /scratch/tmp
export TMPDIR=/scratch/tmp HOME=/scratch
cd /scratch

. /tests/expect.sh
echo "kernel $(uname -r) on $(uname -m)"

# A tree with what a client can get wrong: many names, links, holes, modes.
mkdir -p /scratch/tree/deep/er
for number in $(seq 100); do echo "file $number" >/scratch/tree/deep/$number; done
head -c 5000000 /dev/urandom >/scratch/tree/random
truncate -s 10M /scratch/tree/hole
echo end >>/scratch/tree/hole
ln -s deep/7 /scratch/tree/link
chmod 640 /scratch/tree/deep/9
# The size of a directory depends on the file system.
sums() { (cd "$1" && find . ! -type d | sort | xargs sha256sum && find . ! -type d | sort | xargs stat -c '%n %f %s' && find . -type d | sort | xargs stat -c '%n %f'); }
sums /scratch/tree >/scratch/expected
same_as_tree() { sums "$1" >/scratch/found && cmp /scratch/expected /scratch/found; }

barge serve /scratch/tree --9p tcp:127.0.0.1:5640 --nfs tcp:127.0.0.1:2049 --virtiofs /run/virtiofs.sock >/scratch/said 2>/scratch/log &
server=$!
expect "barge serve with default options is ready" timeout 60 sh -c 'until grep -qx ready /scratch/said; do sleep 0.2; kill -0 $0 || exit 1; done' $server
cat /scratch/log
# What is in a process that serves: a filter of system calls, and a root of its own.
confined() {
    children=$(grep -l "^PPid:.$server$" /proc/[0-9]*/status)
    [ -n "$children" ] && ! grep -L '^Seccomp:.2$' $children | grep -q .
}
expect "its processes have a filter of system calls" confined
for url in 9p://127.0.0.1:5640/ nfs://127.0.0.1/ 'nfs://127.0.0.1/?vers=3' virtiofs:/run/virtiofs.sock; do
    mkdir -p /scratch/copy
    expect "barge cp $url" barge cp -qa "$url" /scratch/copy/tree
    expect "what $url has is what was copied" same_as_tree /scratch/copy/tree
    rm -rf /scratch/copy
done
# The shell of the guest waits for the mount, the work, and the unmount.
in_mount() {
    client=$1
    shift
    expect "$client: mounted" "$@"
    expect "$client: the same tree" same_as_tree /mnt
    mkdir /mnt/new && cp /mnt/random /mnt/new/copy && mv /mnt/new/copy /mnt/new/moved && sync
    expect "$client: a copy has the same bytes" cmp /scratch/tree/random /scratch/tree/new/moved
    rm -r /mnt/new
    expect "$client: unmounted" umount /mnt
}
in_mount "the kernel's 9P client" mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,msize=1048600 127.0.0.1 /mnt
in_mount "the kernel's NFS v3 client" mount -t nfs -o vers=3,addr=127.0.0.1,proto=tcp,nolock,port=2049,mountport=2049,mountproto=tcp 127.0.0.1:/ /mnt
in_mount "the kernel's NFS v4.2 client" mount -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,proto=tcp 127.0.0.1:/ /mnt
for url in /scratch/tree 9p://127.0.0.1:5640/ nfs://127.0.0.1/ virtiofs:/run/virtiofs.sock; do
    in_mount "barge mount $url" barge mount "$url" /mnt
done
kill $server
wait $server
expect "the server ends with status 0" test $? -eq 0
cat /scratch/log

expect "barge pack writes an image" barge pack --compress lz4 /scratch/tree /scratch/image.erofs
expect "barge check finds it right" barge check /scratch/image.erofs
expect "the kernel mounts it" mount -t erofs -o loop /scratch/image.erofs /mnt
expect "the image has the tree" same_as_tree /mnt
umount /mnt
expect "barge mount of the image" barge mount /scratch/image.erofs /mnt
expect "the mounted image has the tree" same_as_tree /mnt
umount /mnt

for test in /tests/*.test; do
    name=${test##*/}
    timeout 1200 "$test" --test-threads=2 >/scratch/output 2>&1
    status=$?
    # 'test result: ok. 12 passed; 0 failed; …'
    counts=$(sed -n 's/^test result: [^.]*\. \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' /scratch/output)
    echo "$name: ${counts:-ended with $status}"
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ $status -ne 0 ]; then
        [ "${counts#* }" != 0 ] || failed=$((failed + 1))
        sed -n '/^failures:/,$p' /scratch/output | head -80
    fi
done
(finish)
poweroff -f
