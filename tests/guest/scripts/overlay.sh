#!/bin/bash
# overlayfs with the share as its lower layer, and, where the client has what that takes, as its upper one: what is changed, removed and replaced in the
# merged tree is so again after another mount, and the host sees whiteouts and opaque directories.
# UPPER: `no` where what FUSE asks for goes on to a server that has none of it.
[ -z "${BARGE_LOCAL:-}" ] || { echo "overlay: this takes a guest"; exit 77; }
set -u
share=$PWD failures=0
# What extended attribute the share keeps, if any.
attribute=${ATTRIBUTE-trusted.colour}
top=$(mktemp -d)
mount -t tmpfs overlay "$top"
mkdir "$top"/{lower,upper,work,merged}
# tmpfs keeps those of users since 6.6.
[ -z "$attribute" ] || setfattr -n "$attribute" -v blue "$top/upper" 2>/dev/null || attribute=
[ -z "$attribute" ] || setfattr -x "$attribute" "$top/upper"

is() { # WHAT GOT EXPECTED
    [ "$2" = "$3" ] || { echo "overlay: $1: got '$2', expected '$3'"; failures=$((failures + 1)); }
}

lay() { # LOWER UPPER WORK
    dmesg -C
    mount -t overlay -o "lowerdir=$1,upperdir=$2,workdir=$3,redirect_dir=on,index=off,metacopy=off" overlay "$top/merged"
}

fill() { # DIRECTORY
    (
        cd "$1" && mkdir -p dir/sub replaced &&
            for name in kept changed removed moved replaced-file dir/inside dir/sub/deep replaced/old; do echo "lower $name" >"$name"; done
        ln changed linked
        [ -z "$attribute" ] || setfattr -n "$attribute" -v blue changed
        chown 12:34 changed
        chmod 4751 changed
    )
}

work() {
    cd "$top/merged" || exit 1
    echo upper >>changed
    rm removed
    mv moved elsewhere
    mv dir other
    rm -r replaced && mkdir replaced && echo new >replaced/new
    echo made >made
    mkfifo fifo
    cp /bin/true program
    # What has a copy above is replaced, and found when its name is no longer new.
    echo copied >>replaced-file
    echo replaces >new-file && mv new-file replaced-file
    sleep 1.1
    cd "$share" || exit 1
}

expect() { # WHICH
    cd "$top/merged" || exit 1
    is "$1: names" "$(find . | sort | tr '\n' ' ')" \
        ". ./changed ./elsewhere ./fifo ./kept ./linked ./made ./other ./other/inside ./other/sub ./other/sub/deep ./program ./replaced ./replaced-file ./replaced/new "
    is "$1: kinds" "$(find . -type d | wc -l) $(find . -type f | wc -l) $(find . -type p | wc -l)" "4 10 1"
    is "$1: what was copied up" "$(cat changed)" "$(printf 'lower changed\nupper')"
    is "$1: its mode, owner, attribute" "$(stat -c '%a %u %g' changed) ${attribute:+$(getfattr --only-values -n "$attribute" changed)}" "4751 12 34 ${attribute:+blue}"
    is "$1: what was moved" "$(cat elsewhere other/sub/deep)" "$(printf 'lower moved\nlower dir/sub/deep')"
    is "$1: what was replaced" "$(cat replaced-file)" replaces
    ./program || is "$1: a program" $? 0
    cd "$share" || exit 1
}

mkdir lower
fill lower
lay "$share/lower" "$top/upper" "$top/work" || is "the share below" "no mount" "a mount"
work
expect below
umount "$top/merged"
is "the lower layer" "$(find lower | wc -l) $(cat lower/removed)" "13 lower removed"

# Neither v9fs nor NFS has whiteouts and RENAME_EXCHANGE; FUSE has.
if [ "$(stat -f -c %T .)" = fuseblk ] && [ "${UPPER:-yes}" = yes ]; then
    mkdir upper work
    fill "$top/lower"
    lay "$top/lower" "$share/upper" "$share/work" || is "the share above" "no mount" "a mount"
    # What the upper layer lacks the kernel tells. Files without a name it does without.
    is "what it lacks" "$(dmesg | grep 'overlayfs: .*not support' | grep -v tmpfile)" ""
    work
    expect above
    umount "$top/merged"
    lay "$top/lower" "$share/upper" "$share/work"
    expect "above, once more"
    umount "$top/merged"
    is "a whiteout on the host" "$(host 'stat -c "%F %t %T" upper/removed')" "character special file 0 0"
    is "an opaque directory on the host" "$(host 'getfattr --only-values -n trusted.overlay.opaque upper/replaced')" y
    is "a redirected directory on the host" "$(host 'getfattr --only-values -n trusted.overlay.redirect upper/other')" dir
fi
umount "$top"
[ $failures -eq 0 ] && echo "overlay: layers are as they should be"
exit $((failures > 0))
