#!/bin/bash
# What one side changes the other sees: at once without a cache, at the next open with cache=mmap; cache=loose promises only the way to the host.
# Virtiofs's `never` is as without a cache, and its `auto` as mmap but for names and attributes, which may be a second old.
# CACHE: the cache mode of the mount. ROUNDS: how many rewrites of the same size.
set -u
failures=0

is() { # WHAT GOT EXPECTED
    [ "$2" = "$3" ] || { echo "coherence: $1: got '$2', expected '$3'"; failures=$((failures + 1)); }
}

# A change on the host, and the time that names and attributes may be old.
change() {
    host "$1"
    [ "${CACHE:-none}" != auto ] || sleep 1.1
}

# From the guest to the host; cache=loose writes when it is asked to.
written() {
    [ "${CACHE:-none}" != loose ] || sync made
}
echo one >made
written
is "a new file on the host" "$(host 'cat made')" one
echo two >>made
written
is "an appended line on the host" "$(host 'cat made')" $'one\ntwo'
chmod 640 made
touch -d '2020-01-02 03:04:05.123456789 UTC' made
is "mode and time on the host" "$(host 'stat -c "%a %y" made')" "$(stat -c '%a %y' made)"
mv made moved
is "a rename on the host" "$(host 'ls')" moved
truncate -s 3 moved
is "a truncation on the host" "$(host 'stat -c %s moved')" 3
rm moved
is "a removal on the host" "$(host 'ls')" ""

# From the host to the guest.
if [ "${CACHE:-none}" != loose ] && [ "${CACHE:-none}" != fscache ]; then
    [ ! -e fresh ] || is "a file that is not there" there missing
    change 'echo alpha >fresh'
    is "a file made on the host after a failed look-up" "$(cat fresh 2>&1)" alpha
    change 'chmod 600 fresh; touch -d "2021-01-01 UTC" fresh'
    is "mode and time set on the host" "$(stat -c '%a %Y' fresh)" "600 1609459200"
    change 'echo longer text >>fresh'
    is "size after an append on the host" "$(stat -c %s fresh)" 18
    is "text after an append on the host" "$(cat fresh)" $'alpha\nlonger text'
    change 'mv fresh other'
    is "the old name after a rename on the host" "$(ls fresh 2>/dev/null)" ""
    is "the new name after a rename on the host" "$(head -n 1 other)" alpha
    change 'echo replaced >new; mv new other'
    is "a file replaced on the host" "$(cat other)" replaced
    change 'rm other; mkdir other; touch other/inside'
    is "a directory in a file's place" "$(ls other)" inside
    change 'rm -r other'
    is "the directory after the host's removal" "$(ls)" ""
    change 'ln -s somewhere link'
    is "a symbolic link of the host" "$(readlink link)" somewhere
    change 'ln -sf elsewhere link'
    is "a symbolic link replaced on the host" "$(readlink link)" elsewhere
    change 'rm link'

    # Rewrites of the same size within one tick of a coarse clock: only a change counter shows them.
    echo 00000 >ticker
    for round in $(seq "${ROUNDS:-20}"); do
        text=$(printf %05d "$round")
        change "cat ticker >/dev/null; echo $text >tmp; cat tmp 1<>ticker; rm tmp"
        is "rewrite $round of the same size" "$(cat ticker)" "$text"
    done
    rm ticker
fi

if [ "${CACHE:-none}" = none ] || [ "$CACHE" = never ]; then
    # Through a descriptor which was open all the time.
    echo first >log
    exec 3<log
    read -r -u 3 line
    is "the first line" "$line" first
    host 'echo second >>log'
    read -r -u 3 line
    is "a line appended on the host below an open descriptor" "$line" second
    exec 3<&-
    rm log
fi

[ $failures -eq 0 ] && echo "coherence: all seen with cache=${CACHE:-none}"
exit $((failures > 0))
