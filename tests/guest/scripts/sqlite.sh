#!/bin/sh
# Two processes write to one SQLite database at a time. ROWS: as many from each. WAL only where the cache mode can map its index.
set -eu
rows=${ROWS:-60}

writer() {
    awk -v rows="$rows" -v who="$2" 'BEGIN {
        print ".timeout 60000"
        for (i = 0; i < rows; i++) print "INSERT INTO t VALUES (" who ", " i ", hex(randomblob(" 40 + i * 37 % 900 ")));"
    }' | sqlite3 -bail "$1"
}

try() {
    db=$1.db
    got=$(sqlite3 "$db" "PRAGMA journal_mode=$1; CREATE TABLE t (who INTEGER, n INTEGER, body TEXT, PRIMARY KEY (who, n));")
    [ "$got" = "$1" ] || { echo "sqlite: journal mode $1 became $got"; exit 1; }
    writer "$db" 1 &
    first=$!
    writer "$db" 2
    wait $first
    [ "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok ] || { echo "sqlite: $1 database is damaged"; exit 1; }
    count=$(sqlite3 "$db" 'SELECT count(*) FROM t')
    [ "$count" -eq $((2 * rows)) ] || { echo "sqlite: $1 has $count rows, expected $((2 * rows))"; exit 1; }
    # What the server has is what the guest believes: the same file, read on the host.
    sqlite3 "$db" .dump | sort >here
    host "sqlite3 $db .dump | sort" | cmp - here
    echo "sqlite: $1 is sound"
}

try delete
try truncate
case ${CACHE:-none} in
    mmap | loose | fscache | auto) try wal ;;
esac
