#!/bin/sh
# fio writes at random and verifies checksums: buffered, direct, and mapped where the cache mode can map. SIZE: of each file.
set -eu
log=$(mktemp)

job() {
    name=$1
    shift
    fio --name="$name" --filename="$name.data" --size="${SIZE:-32M}" --rw=randrw --verify=crc32c --verify_fatal=1 --thread "$@" >"$log" 2>&1 || {
        cat "$log"
        echo "fio: $name failed"
        exit 1
    }
    rm "$name.data"
}

job buffered --ioengine=psync --bsrange=4k-128k --fsync=64
case $(stat -f -c %T .)-$(uname -r) in
    # Its v9fs refuses O_DIRECT; that of 6.12 refuses it only to an open that makes the file, which fio's does not.
    v9fs-6.1.*) ;;
    *) job direct --ioengine=psync --direct=1 --bsrange=4k-128k ;;
esac
job unaligned --ioengine=psync --bsrange=512-64k --bs_unaligned=1
case ${CACHE:-none} in
    mmap | loose | fscache | auto) job mapped --ioengine=mmap --bs=4k ;;
esac
echo "fio: all verified"
