#!/bin/sh
# Clones a repository onto the share, works in it and checks it. FILES: as many in the repository.
set -eu
files=${FILES:-400}
origin=$(mktemp -d)
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example

git -c init.defaultBranch=main init -q "$origin"
awk -v files="$files" -v dir="$origin" 'BEGIN {
    for (i = 0; i < files; i++) {
        if (i % 40 == 0) { sub_dir = dir "/d" i; system("mkdir " sub_dir) }
        name = sub_dir "/f" i
        for (line = 0; line < i % 97; line++) print i, line, i * line > name
        print "end" > name
        close(name)
    }
}'
ln -s d0/f0 "$origin/link"
git -C "$origin" add -A
git -C "$origin" commit -qm one

git clone -q --no-hardlinks "$origin" work
cd work
[ -z "$(git status --porcelain)" ] || { echo "a fresh clone is not clean:"; git status --short | head; exit 1; }
echo changed >>d0/f1
git mv d0/f2 d0/moved
rm d0/f3
touch d0/f4
[ "$(git status --porcelain | sort | tr -d '\n')" = " D d0/f3 M d0/f1R  d0/f2 -> d0/moved" ] || { echo "unexpected status:"; git status --porcelain; exit 1; }
git add -A
git commit -qm two
git checkout -q -b side HEAD~1
echo other >>d0/f5
git commit -qam three
git -c merge.stat=false merge -q -m merge main
git gc -q
git fsck --full --strict
[ -z "$(git status --porcelain)" ] || { echo "not clean after a merge:"; git status --short | head; exit 1; }
git push -q origin side
[ "$(git -C "$origin" rev-parse side)" = "$(git rev-parse HEAD)" ] || { echo "the push did not arrive"; exit 1; }
echo "git: $files files cloned, merged, packed and checked"
