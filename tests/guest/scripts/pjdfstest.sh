#!/bin/sh
# pjdfstest as root on the share. Its failures must be those pjdfstest-skips.txt lists for this run; a listed test which passes fails too. One listed
# as failing sometimes may fail, and that is told.
# CACHE: the cache mode of the mount. FILTER: only tests with this in their name.
set -eu
kind=$(stat -f -c %T .)
vers=$(sed -n 's/^[^ ]* \/mnt nfs.*[ ,]\(vers=[0-9.]*\).*/\1/p' /proc/mounts)
source=$(sed -n 's/^\([a-z0-9]*\):[^ ]* \/mnt fuse.*/source=\1/p' /proc/mounts)
[ -z "${SOURCE:-}" ] || source="source=$SOURCE server=$SERVER"
tags=" any ${kind} ${vers} ${source} $(uname -r | cut -d. -f1,2) cache=${CACHE:-none} "

other=$(mktemp -d -p /dev/shm)
config=$(mktemp -p /dev/shm)
trap 'rm -rf "$other" "$config"' EXIT

# The listed tests of this run, "$1" being one more word which holds of it.
listed() {
    while IFS='|' read -r name where _; do
        case $name in '' | '#'*) continue ;; esac
        applies=yes
        for tag in $where; do
            case "$tags$1 " in *" $tag "*) ;; *) applies= ;; esac
        done
        [ -z "$applies" ] || echo $name
    done <"$BARGE_SCRIPTS/pjdfstest-skips.txt"
}

cat >"$config" <<END
[features]
secondary_fs = "$other"
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
expected_failures = [
$(listed '' | sed 's/.*/"&",/')
]
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
if pjdfstest -c "$config" -p . ${FILTER:-} >"$other/log" 2>&1; then
    grep Summary "$other/log"
    exit
fi
grep -A1 -E ' FAILED$| UNEXPECTEDLY$|^Summary|^Error' "$other/log" || cat "$other/log"
sometimes=" $(echo $(listed sometimes)) "
failed=$(sed -n 's/ *FAILED$//p' "$other/log")
[ -n "$failed" ] && ! grep -q ' UNEXPECTEDLY$' "$other/log" || exit 1
for name in $failed; do
    case $sometimes in *" $name "*) echo "$name: listed as failing sometimes" ;; *) exit 1 ;; esac
done
