"""Files of any source: of a 9P, NFS or virtiofs server, a directory, an image, an object store or
an OCI registry.

Client has the functions of os that take a path, and open as the built-in one. Errors are OSError
with the errno of the source. Paths are relative to the root of the source; absolute symbolic links
begin at that root, and none leads out of it.

    with barge.Client("9p://host:5640/srv") as client:
        with client.open("notes", "w") as file:
            file.write("carry the tree")

Clients and files may be shared by threads. They serve only the process that opened them: after a
fork, the child opens its own.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import IO, TYPE_CHECKING, Any, Literal, Optional, Union, overload

from . import _barge
from ._barge import DirEntry, Stat

if TYPE_CHECKING:
    from _typeshed import OpenBinaryMode, OpenTextMode, ReadableBuffer, WriteableBuffer

__all__ = ["Client", "DirEntry", "File", "Stat"]

StrPath = Union[str, "os.PathLike[str]"]

#: The size of buffers in bytes: small reads and writes share a request of this size.
BUFFER_SIZE = 256 * 1024

#: The most bytes of one read of a whole file, whose size may change meanwhile.
_PIECE = 64 * 1024 * 1024

_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_CREAT | os.O_TRUNC,
    "x": os.O_CREAT | os.O_EXCL,
    "a": os.O_CREAT | os.O_APPEND,
}


class Client(_barge.Client):
    """The tree of a source, in the syntax of the program barge: "9p://host:5640/srv",
    "nfs://host/srv?vers=4.2", "https://host/image.erofs", "oci://host/repository:tag", "/srv".
    """

    @overload
    def open(
        self,
        path: StrPath,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> io.TextIOWrapper: ...

    @overload
    def open(
        self, path: StrPath, mode: OpenBinaryMode, buffering: Literal[0]
    ) -> File: ...

    @overload
    def open(
        self, path: StrPath, mode: OpenBinaryMode, buffering: int = -1
    ) -> IO[bytes]: ...

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        """Opens a file as the built-in open does, with a buffer of 256 KiB by default. Returns a
        File if buffering is 0, which takes a binary mode."""
        binary = "b" in mode
        if binary and "t" in mode:
            raise ValueError("can't have text and binary mode at once")
        if binary and not (encoding is None and errors is None and newline is None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if not binary and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        raw = File(self, path, mode.replace("t", ""))
        try:
            if buffering == 0:
                return raw
            file = buffered(raw, BUFFER_SIZE if buffering in (-1, 1) else buffering)
            if binary:
                return file
            text = io.TextIOWrapper(file, encoding, errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text
        except BaseException:
            raw.close()
            raise

    def makedirs(self, path: StrPath, exist_ok: bool = False) -> None:
        """Creates a directory, and those above it that do not exist."""
        path = os.fspath(path)
        try:
            return self.mkdir(path)
        except FileNotFoundError:
            parent = os.path.dirname(path.rstrip("/"))
            if not parent.strip("/"):
                raise
        except OSError:
            # As in os.makedirs: the root, say, cannot be created for another reason.
            if exist_ok and self._is_dir(path):
                return
            raise
        self.makedirs(parent, exist_ok=True)
        try:
            self.mkdir(path)
        except FileExistsError:
            if not (exist_ok and self._is_dir(path)):
                raise

    def _is_dir(self, path: StrPath) -> bool:
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except OSError:
            return False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class File(io.RawIOBase):
    """An open file without a buffer, as io.FileIO. Modes are "r", "w", "x" and "a", with "+" for
    both directions.

    pread and pwrite do not use the position, so that threads may call them at a time.
    """

    name: str
    mode: str

    def __init__(self, client: _barge.Client, path: StrPath, mode: str = "rb") -> None:
        kind, rest = mode[:1], sorted(mode[1:].replace("b", "", 1))
        if kind not in _FLAGS or rest not in ([], ["+"]):
            raise ValueError(f"expected a mode of r, w, x or a, with b and +, got {mode!r}")
        self._readable = kind == "r" or rest == ["+"]
        self._writable = kind != "r" or rest == ["+"]
        access = (
            os.O_RDWR
            if self._readable and self._writable
            else os.O_WRONLY
            if self._writable
            else os.O_RDONLY
        )
        self.name = os.fspath(path)
        self.mode = kind + "b" + "".join(rest)
        self._file = client._open(path, _FLAGS[kind] | access, 0o666)
        if kind == "a":
            self._file.seek(0, os.SEEK_END)
        # A directory can be opened for reading, as by open(2).
        if kind == "r" and stat.S_ISDIR(self.stat().st_mode):
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.name)

    def readable(self) -> bool:
        self._check()
        return self._readable

    def writable(self) -> bool:
        self._check()
        return self._writable

    def seekable(self) -> bool:
        self._check()
        return True

    def read(self, size: Optional[int] = -1, /) -> bytes:
        self._check_readable()
        if size is None or size < 0:
            return self.readall()
        return self._file.read(size)

    def readall(self) -> bytes:
        self._check_readable()
        pieces = []
        size = self.stat().st_size - self.tell()
        # One byte more finds the end without another call.
        while piece := self._file.read(min(max(size, 0) + 1, _PIECE)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check_readable()
        with memoryview(buffer).cast("B") as view:
            data = self._file.read(len(view))
            view[: len(data)] = data
        return len(data)

    def write(self, data: ReadableBuffer, /) -> int:
        self._check_writable()
        return self._file.write(bytes(data))

    def pread(self, size: int, offset: int) -> bytes:
        """Reads up to size bytes at offset; fewer only at the end of the file."""
        self._check_readable()
        return self._file.pread(size, offset)

    def pwrite(self, data: ReadableBuffer, offset: int) -> int:
        """Writes all data at offset; at the end if the file is open for appending."""
        self._check_writable()
        return self._file.pwrite(bytes(data), offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: Optional[int] = None, /) -> int:
        self._check_writable()
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size

    def stat(self) -> Stat:
        """Returns the attributes of the file."""
        self._check()
        return self._file.stat()

    def sync(self) -> None:
        """Makes written data durable."""
        self._check()
        self._file.sync()

    def close(self) -> None:
        """Closes the file, and raises errors of earlier writes that were not reported yet."""
        if not self.closed:
            try:
                super().close()
            finally:
                # The file may not have been opened.
                if file := getattr(self, "_file", None):
                    file.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<barge.File {getattr(self, 'name', '')!r} {getattr(self, 'mode', '')}{state}>"

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_readable(self) -> None:
        self._check()
        if not self._readable:
            raise io.UnsupportedOperation("File not open for reading")

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("File not open for writing")


def buffered(
    raw: File, size: int
) -> Union[io.BufferedReader, io.BufferedWriter, io.BufferedRandom]:
    """Puts a buffer of size bytes before a file."""
    if not raw.writable():
        return io.BufferedReader(raw, size)
    if not raw.readable():
        return io.BufferedWriter(raw, size)
    return io.BufferedRandom(raw, size)
