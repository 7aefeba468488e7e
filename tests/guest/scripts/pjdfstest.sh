#!/bin/sh
# pjdfstest as root on the share. Its failures must be those pjdfstest-skips.txt lists for this run; a listed test which passes fails too.
# CACHE: the cache mode of the mount. FILTER: only tests with this in their name.
set -eu
kind=$(stat -f -c %T .)
vers=$(sed -n 's/^[^ ]* \/mnt nfs.*[ ,]\(vers=[0-9.]*\).*/\1/p' /proc/mounts)
tags=" any ${kind} ${vers} $(uname -r | cut -d. -f1,2) cache=${CACHE:-none} "

other=$(mktemp -d -p /dev/shm)
config=$(mktemp -p /dev/shm)
trap 'rm -rf "$other" "$config"' EXIT
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
$(while IFS='|' read -r name where _; do
    case $name in '' | '#'*) continue ;; esac
    applies=yes
    for tag in $where; do
        case $tags in *" $tag "*) ;; *) applies= ;; esac
    done
    [ -z "$applies" ] || echo "\"$(echo $name)\","
done <"$BARGE_SCRIPTS/pjdfstest-skips.txt")
]
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
if pjdfstest -c "$config" -p . ${FILTER:-} >"$other/log" 2>&1; then
    grep Summary "$other/log"
else
    grep -A1 -E ' FAILED$| UNEXPECTEDLY$|^Summary|^Error' "$other/log" || cat "$other/log"
    exit 1
fi
