#!/bin/bash
# A server in the guest shares a directory of ext4 that belongs to a project: --quota sets the limits of the project, and the kernel enforces them, also against programs of
# the guest itself. Nothing is counted by the server.
# BARGE: the program.
set -eu
[ -z "${BARGE_LOCAL:-}" ] || { echo "project-quota: this takes a guest"; exit 77; }
top=$(mktemp -d)
end() {
    kill "$pid" 2>/dev/null || :
    wait
    umount "$top" || :
}
trap end EXIT
fail() { echo "project-quota: $*"; cat "$top/log"; exit 1; }

mkfs.ext4 -q -F -O quota,project -E quotatype=prjquota /dev/vda
mount -o prjquota /dev/vda "$top"
mkdir "$top/share"
chattr -p 7 "$top/share"
chattr +P "$top/share"
chmod 777 "$top/share"
"$BARGE" serve share="$top/share" --9p tcp:127.0.0.1:5640 --http 5641 --squash none --quota 4M --quota-inodes 20 >"$top/log" 2>&1 &
pid=$!
until grep -q ready "$top/log"; do kill -0 $pid || fail "no server"; sleep 0.1; done
grep -q "limited project 7" "$top/log" || fail "the project has no limits"
! grep -q "counted in" "$top/log" || fail "the share was counted"

mkdir /run/quota
mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,cache=none,access=any 127.0.0.1 /run/quota
cd /run/quota/share 2>/dev/null || cd /run/quota
size=$(($(stat -f -c '%b * %S' .)))
[ "$size" = $((4 << 20)) ] || fail "the size of the share is $size"
head -c 8M /dev/zero >file 2>/dev/null && fail "8 MiB were written"
used=$(du -k "$top/share/file" | cut -f1)
[ "$used" -gt 3900 ] && [ "$used" -le 4096 ] || fail "$used KiB were written"
# The metrics have the kernel's count: the file, and the directory of the share.
exec 3<>/dev/tcp/127.0.0.1/5641
printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:5641\r\n\r\n' >&3
metrics=$(cat <&3)
exec 3>&-
for value in "limit_bytes $((4 << 20))" "limit_inodes 20" "inodes 2"; do
    grep -qxF "barge_quota_${value% *}{export=\"share\"} ${value#* }" <<<"$metrics" || fail "quota_$value: $(grep '^barge_quota' <<<"$metrics")"
done
bytes=$(sed -n 's/^barge_quota_bytes{export="share"} //p' <<<"$metrics")
[ "$bytes" -ge $((used << 10)) ] && [ "$bytes" -le $((4 << 20)) ] || fail "barge_quota_bytes is $bytes"
# The kernel refuses the host's own programs as well, without CAP_SYS_RESOURCE.
setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource head -c 1M /dev/zero >"$top/share/own" 2>/dev/null && fail "the project is not limited"
rm "$top/share/own" file
names=0
while touch "$names" 2>/dev/null; do names=$((names + 1)); [ $names -lt 30 ] || fail "30 files were made"; done
[ $names = 19 ] || fail "$names files were made"
cd /
umount /run/quota
echo "project-quota: $used KiB and $names files, as the project's limits say"
