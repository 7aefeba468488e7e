#!/bin/bash
# By NFS v4.1 and later: files that only this guest has open are delegated to it, and what the host does with them is seen all the same: contents
# at once, for a program that writes waits until the guest has given the file back; names and attributes as soon as it is asked to.
# ROUNDS: how many files for each kind of change.
set -u
failures=0

is() { # WHAT GOT EXPECTED
    [ "$2" = "$3" ] || { echo "delegations: $1: got '$2', expected '$3'"; failures=$((failures + 1)); }
}

# What comes within a second.
soon() { # WHAT EXPECTED COMMAND
    local got tries
    for tries in $(seq 100); do
        got=$(eval "$3" 2>/dev/null)
        [ "$got" != "$2" ] || return 0
        sleep 0.01
    done
    is "$1" "$got" "$2"
}

# How often the guest has asked the server for something, by now.
count() { # OPERATION...
    local operation sum=0
    for operation; do
        sum=$((sum + $(awk -v name="$operation:" '$1 == name { n += $2 } END { print n + 0 }' /proc/self/mountstats)))
    done
    echo "$sum"
}

# Has FILE delegated, which is new.
delegated() { # FILE
    cat "$1" >/dev/null
    local before
    before=$(count OPEN OPEN_NOATTR)
    cat "$1" >/dev/null
    is "opening $1 again asks the server" "$(count OPEN OPEN_NOATTR)" "$before"
}

for round in $(seq "${ROUNDS:-5}"); do
    host "for each in rewrite append cut replace mode rename remove link; do echo old-\$each >\${each}$round; done"

    delegated "rewrite$round"
    host "printf 'new-rewrite\n' | dd of=rewrite$round conv=notrunc status=none"
    is "a rewrite of the same size" "$(cat "rewrite$round")" new-rewrite
    delegated "append$round"
    host "echo more >>append$round"
    is "an appended line" "$(cat "append$round")" $'old-append\nmore'
    is "the size of that" "$(stat -c %s "append$round")" 16
    delegated "cut$round"
    # Not by truncate(1), which would rather fail than wait.
    host "dd if=/dev/null of=cut$round bs=1 seek=3 status=none"
    is "a truncation" "$(cat "cut$round")" old

    delegated "replace$round"
    host "echo other >tmp; mv tmp replace$round"
    soon "another file in its place" other "cat replace$round"
    delegated "mode$round"
    host "chmod 604 mode$round"
    soon "another mode" 604 "stat -c %a mode$round"
    delegated "link$round"
    host "ln link$round linked$round"
    soon "a further name" 2 "stat -c %h link$round"
    delegated "rename$round"
    host "mv rename$round renamed$round"
    soon "no old name" gone "[ -e rename$round ] || echo gone"
    is "the new name" "$(cat "renamed$round")" old-rename
    delegated "remove$round"
    host "rm remove$round"
    soon "no file" gone "[ -e remove$round ] || echo gone"

    # Open to write: the host sees what is closed, and no less.
    python3 - "write$round" <<'END' || failures=$((failures + 1))
import os, sys

def written(data):
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(file, data, 0)
    os.close(file)

written(b"first")
written(b"other")
END
    is "what the guest wrote and closed" "$(host "stat -c %s write$round; cat write$round")" $'5\nother'
    host "printf host >write$round"
    is "what the host wrote then" "$(cat "write$round")" host
done

[ "$(count DELEGRETURN)" -gt 0 ] || is "delegations given back" none some
[ $failures -eq 0 ] && echo "delegations: $(count DELEGRETURN) given back"
exit $((failures > 0))
