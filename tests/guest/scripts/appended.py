#!/usr/bin/python3 -B
"""What programs append is at the end of the file, once, whichever way they opened it and whatever the client keeps in its page cache."""

import mmap
import os

from checking import check, end

APPEND = {
    "for writing": os.O_WRONLY | os.O_APPEND,
    "for both": os.O_RDWR | os.O_APPEND,
}
# Longer than a page and no multiple of it: each piece begins within a page that has been written.
PIECE = 5 << 10


def content(name):
    """What the server has: nothing of the file stays in the cache."""
    with open(name, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def pieces(letters):
    return b"".join(letter.encode() * PIECE for letter in letters)


def append(fd, letters):
    """Each letter's piece, made durable before the next."""
    for letter in letters:
        check(f"appends {letter}", os.write(fd, pieces(letter)), PIECE)
        os.fsync(fd)


for label, flags in APPEND.items():
    fd = os.open(label, flags | os.O_CREAT | os.O_EXCL, 0o644)
    append(fd, "ABC")
    check(f"{label}: size while open", os.fstat(fd).st_size, 3 * PIECE)
    os.close(fd)
    check(f"{label}: a new file", content(label) == pieces("ABC"), True)

    fd = os.open(label, flags)
    append(fd, "DE")
    os.close(fd)
    check(f"{label}: a file that is there", content(label) == pieces("ABCDE"), True)

    # Without the wait for each piece, the client decides when it writes which page.
    with os.fdopen(os.open(label, flags), "wb", buffering=0) as file:
        for letter in "FGHIJKLM":
            file.write(pieces(letter))
    check(f"{label}: many pieces", content(label) == pieces("ABCDEFGHIJKLM"), True)

# Two programs that append by turns, and a third that changes what is there: the client writes all of it back by any of the three.
# Linux takes the one that was opened last.
changer = os.open("shared", os.O_RDWR | os.O_CREAT, 0o644)
fds = [os.open("shared", os.O_RDWR | os.O_APPEND) for _ in range(2)]
model = bytearray()
for turn, letter in enumerate("ABCDEFGH"):
    append(fds[turn % 2], letter)
    model += pieces(letter)
    at = turn * 1000
    os.pwrite(changer, b"changed", at)
    model[at : at + 7] = b"changed"
os.fsync(changer)
try:
    with mmap.mmap(changer, len(model)) as shared:
        shared[9000:9006] = b"mapped"
        shared.flush()
    model[9000:9006] = b"mapped"
except OSError:
    # No writable mapping without a cache to map from.
    pass
append(fds[0], "I")
model += pieces("I")
os.ftruncate(changer, 12345)
del model[12345:]
append(fds[1], "J")
model += pieces("J")
for fd in [*fds, changer]:
    os.close(fd)
check("shared: size", os.stat("shared").st_size, len(model))
check("shared: content", content("shared") == model, True)
end("what is appended is at the end, once")
