#!/bin/bash
# A server in the guest hands its files over to `barge mount` in the guest (Linux 6.9): the kernel reads and writes them by itself, which neither of the
# two sees, and by random operations and pjdfstest they are files as any.
# BARGE: the program. OPS: as many operations.
set -eu
[ -z "${BARGE_LOCAL:-}" ] || { echo "handed: this takes a guest"; exit 77; }
case $(uname -r) in 6.1.*) echo "handed: the kernel does so from 6.9 on"; exit 77 ;; esac
# The guest's root is an overlay, whose files the kernel takes from no server.
top=$(mktemp -d -p /dev/shm)
mkdir "$top"/{share,handed,asked}
end() {
    cd /
    umount "$top/handed" "$top/asked" || :
    wait "${pids[@]:1}"
    kill "${pids[0]}"
    wait
    rm -r "$top"
}
trap end EXIT

"$BARGE" serve "$top/share" --9p-fd-passing --9p "unix:$top/socket" >"$top/server" &
pids=($!)
mounted() { # DIRECTORY OPTIONS
    "$BARGE" mount -f "9p+unix:$top/socket" "$top/$1" -o "allow_other,$2" >/dev/null &
    pids+=($!)
    until mountpoint -q "$top/$1"; do kill -0 "${pids[-1]}"; sleep 0.05; done
}
until grep -qx ready "$top/server"; do kill -0 "${pids[0]}"; sleep 0.05; done
mounted handed passthrough=auto
mounted asked passthrough=off

moved() { # what all of them and their children have read and written, bytes
    for pid in "${pids[@]}" $(for pid in "${pids[@]}"; do cat /proc/$pid/task/*/children; done); do cat "/proc/$pid/io"; done | awk '/char:/ { sum += $2 } END { print sum }'
}
much=4194304
head -c $much /dev/urandom >"$top/text"
use() { # DIRECTORY: says what it takes to write and to read a file there
    before=$(moved)
    cp "$top/text" "$top/$1/file"
    cmp "$top/text" "$top/$1/file"
    cmp "$top/text" "$top/share/file"
    echo $(($(moved) - before))
    rm "$top/$1/file"
}
by_itself=$(use handed) by_server=$(use asked)
echo "handed: of $much bytes written and read $by_itself were moved, $by_server where they are not handed over"
[ "$by_itself" -lt $much ] && [ "$by_server" -ge $((2 * much)) ]

cd "$top/handed"
randomops --ops "${OPS:-100000}" --require-mmap
mkdir tests
chmod 755 "$top" tests
cd tests
CACHE=auto SOURCE=9p SERVER=barge "$BARGE_SCRIPTS/pjdfstest.sh"
