#!/bin/sh
# Random operations against a model. OPS, SEED: as many, from there. WITHOUT: kinds of operations to leave out.
set -eu
case $(stat -f -c %T .)-$(uname -r)-${CACHE:-none} in
    # Linux 6.12 loses data, with a warning in netfs_page_mkwrite, where a page that is only partly in memory after a write is written through a
    # mapping too. Pages which are not dropped are there in whole.
    v9fs-6.12.*-mmap | v9fs-6.12.*-loose) WITHOUT="${WITHOUT:-} drop-pages" ;;
    # Without a cache it does not drop the page that was mapped where the file ended when the file is appended to.
    v9fs-6.12.*-none | v9fs-7.*-none) WITHOUT="${WITHOUT:-} append" ;;
esac
set -- --ops "${OPS:-100000}" --seed "${SEED:-1}"
for kind in ${WITHOUT:-}; do
    set -- "$@" --without "$kind"
done
exec randomops "$@"
