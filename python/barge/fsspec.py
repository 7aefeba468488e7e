"""File systems of fsspec over any source of barge.

fsspec finds them by these protocols, after the package is installed:

    9p://HOST:PORT/PATH          a 9P server; also p9+barge, for pandas, which takes only schemes
                                 that begin with a letter
    nfs+barge://HOST/PATH        an NFS server
    barge://PATH                 any source, which the storage option source names

Paths begin with a slash. Connections are opened at the first use, and again after a fork. Files are
read in ranges, and written in place or, in a transaction, under another name until it ends.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import uuid
from datetime import datetime, timezone
from typing import Any, Optional, Union

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import BUFFER_SIZE, Client, File, Stat

__all__ = ["BargeFileSystem", "NfsFileSystem", "NinePFileSystem"]

#: Bytes of each read of a copy.
_COPY_SIZE = 4 * 1024 * 1024


class BargeFileSystem(AbstractFileSystem):
    """The files of a source.

    source: as for barge.Client: "/srv", "s3://bucket/image.erofs", "oci://host/repository:tag",
        "nfs://host/srv?vers=4.2" and so on.
    auto_mkdir: whether to create the directory of a file that is written, as pyarrow expects from
        local files.
    """

    protocol: Union[str, tuple[str, ...]] = "barge"
    root_marker = "/"

    def __init__(self, source: str, auto_mkdir: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.source = source
        self.auto_mkdir = auto_mkdir
        self._connection: Optional[tuple[int, Client]] = None

    @property
    def client(self) -> Client:
        """The client of this process."""
        connection = self._connection
        if connection is None or connection[0] != os.getpid():
            # Without a lock, which a fork might copy while it is held: of two connections that are
            # opened at a time, one is closed again.
            connection = self._connection = (os.getpid(), Client(self.source))
        return connection[1]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return "/" + cls._without_protocol(stringify_path(path))[1].strip("/")

    @classmethod
    def _without_protocol(cls, path: str) -> tuple[bool, str]:
        """Returns whether the path is a URL, and the rest of it."""
        for protocol in (cls.protocol,) if isinstance(cls.protocol, str) else cls.protocol:
            for mark in (f"{protocol}://", f"{protocol}::"):
                if path.startswith(mark):
                    return mark.endswith("/"), path[len(mark) :]
        return False, path

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.client.lstat(path), must_exist=True)

    def _info(self, path: str, own: Stat, must_exist: bool = False) -> dict[str, Any]:
        """Returns a description of a file from its own attributes. That of a symbolic link has the
        type link in a listing if the link leads to a directory or to no file, so that a walk ends
        there, and else the type and size of the file."""
        link = stat.S_ISLNK(own.st_mode)
        result = own
        if link:
            try:
                result = self.client.stat(path)
            except OSError:
                if must_exist:
                    raise
            if not must_exist and not stat.S_ISREG(result.st_mode):
                result = own
        info = {
            "name": path,
            "size": result.st_size,
            "type": _kind(result.st_mode),
            "created": result.st_birthtime,
            "mtime": result.st_mtime,
            "mode": result.st_mode,
            "uid": result.st_uid,
            "gid": result.st_gid,
            "ino": result.st_ino,
            "nlink": result.st_nlink,
            "islink": link,
        }
        if link:
            info["destination"] = self.client.readlink(path)
        return info

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            entries = self.client.scandir(path)
        except NotADirectoryError:
            return [self.info(path) if detail else path]
        base = path.rstrip("/")
        if not detail:
            return [f"{base}/{entry.name}" for entry in entries]
        infos = []
        for entry in entries:
            name = f"{base}/{entry.name}"
            try:
                infos.append(self._info(name, entry.stat or self.client.lstat(name)))
            except FileNotFoundError:
                pass  # Removed since it was listed.
        return infos

    def exists(self, path: str, **_: Any) -> bool:
        try:
            self.client.stat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def lexists(self, path: str, **_: Any) -> bool:
        try:
            self.client.lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def created(self, path: str) -> datetime:
        """Returns the creation time. Raises NotImplementedError if the source has none."""
        time = self.client.stat(self._strip_protocol(path)).st_birthtime
        if time is None:
            raise NotImplementedError(f"{self.source} has no creation times")
        return datetime.fromtimestamp(time, timezone.utc)

    def modified(self, path: str) -> datetime:
        time = self.client.stat(self._strip_protocol(path)).st_mtime
        return datetime.fromtimestamp(time, timezone.utc)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.client.makedirs(path)
        else:
            self.client.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.client.makedirs(self._strip_protocol(path), exist_ok)

    def rmdir(self, path: str) -> None:
        self.client.rmdir(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        if stat.S_ISDIR(self.client.lstat(path).st_mode):
            self.client.rmdir(path)
        else:
            self.client.remove(path)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        """Renames a file or directory, into path2 if that is a directory. Lists, patterns and files
        of different file systems of the server are copied and removed."""
        if not isinstance(path1, str) or not isinstance(path2, str) or maxdepth is not None:
            return super().mv(path1, path2, recursive, maxdepth, **kwargs)
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(new):
            new = new.rstrip("/") + "/" + old.rsplit("/", 1)[1]
        try:
            self.client.rename(old, new)
        except OSError as error:
            pattern = isinstance(error, FileNotFoundError) and any(c in old for c in "*?[")
            if error.errno != errno.EXDEV and not pattern:
                raise
            super().mv(path1, path2, recursive or self.isdir(old), **kwargs)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        found = self.client.stat(path1)
        if stat.S_ISDIR(found.st_mode):
            return self.client.makedirs(path2, exist_ok=True)
        try:
            existing = self.client.stat(path2)
        except FileNotFoundError:
            self._make_parent(path2)
        else:
            if (existing.st_dev, existing.st_ino) == (found.st_dev, found.st_ino):
                raise shutil.SameFileError(f"{path1!r} and {path2!r} are the same file")
        with File(self.client, path1) as source, File(self.client, path2, "wb") as target:
            while data := source.read(_COPY_SIZE):
                target.write(data)

    def cat_file(
        self,
        path: str,
        start: Optional[int] = None,
        end: Optional[int] = None,
        **_: Any,
    ) -> bytes:
        with File(self.client, self._strip_protocol(path)) as file:
            start = start or 0
            if start < 0 or (end is not None and end < 0):
                size = file.stat().st_size
                start = max(size + start, 0) if start < 0 else start
                end = size + end if end is not None and end < 0 else end
            if end is not None:
                return file.pread(max(end - start, 0), start)
            file.seek(start)
            return file.readall()

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Creates an empty file, or empties an existing one. Without truncate, sets the times of an
        existing file only."""
        if not truncate and self.exists(path):
            self.client.utime(self._strip_protocol(path))
        else:
            self.open(path, "wb", **kwargs).close()

    def sync(self) -> None:
        """Makes all written data durable."""
        self.client.sync()

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[dict[str, Any]] = None,
        **_: Any,
    ) -> Any:
        """Opens a file with a buffer of block_size bytes, 256 KiB by default, or without one if
        that is 0. There is no other cache: cache_options are without effect."""
        final, temporary = self._strip_protocol(path), None
        if "r" not in mode:
            self._make_parent(final)
            if not autocommit:
                temporary = f"{self._parent(final).rstrip('/')}/.{uuid.uuid4().hex}.part"
                if "x" in mode and self.lexists(final):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final)
                if "a" in mode and self.exists(final):
                    self.cp_file(final, temporary)
        raw = File(self.client, temporary or final, mode)
        try:
            return _open_buffered(self, raw, final, temporary, block_size)
        except BaseException:
            raw.close()
            raise

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.client.makedirs(self._parent(path), exist_ok=True)


class _HostFileSystem(BargeFileSystem):
    """The files of a server. Its URLs begin with the host."""

    def __init__(
        self, host: str, options: str = "", auto_mkdir: bool = False, **kwargs: Any
    ) -> None:
        source = f"{self.scheme}://{host}/" + (f"?{options}" if options else "")
        super().__init__(source, auto_mkdir, **kwargs)
        self.host = host

    #: The scheme of the source.
    scheme: str

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        has_host, rest = cls._without_protocol(stringify_path(path))
        return "/" + (rest.partition("/")[2] if has_host else rest).strip("/")

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, str]:
        has_host, rest = cls._without_protocol(path)
        return {"host": rest.partition("/")[0]} if has_host else {}

    def unstrip_protocol(self, name: str) -> str:
        if self._without_protocol(name)[0]:
            return name
        return f"{self.protocol[0]}://{self.host}{self._strip_protocol(name)}"


class NinePFileSystem(_HostFileSystem):
    """The files of a 9P server.

    host: HOST or HOST:PORT; port 564 by default.
    options: those of the URL: "aname=/srv&msize=1m".
    auto_mkdir: as in BargeFileSystem.
    """

    protocol = ("9p", "p9+barge")
    scheme = "9p"


class NfsFileSystem(_HostFileSystem):
    """The files of an NFS server.

    host: HOST or HOST:PORT; port 2049 by default.
    options: those of the URL: "vers=4.2&sec=krb5".
    auto_mkdir: as in BargeFileSystem.
    """

    protocol = ("nfs+barge",)
    scheme = "nfs"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    return "link" if stat.S_ISLNK(mode) else "other"


class _OpenedFile:
    """Attributes that fsspec's open files have, besides the methods of a file."""

    fs: BargeFileSystem
    path: str
    size: Optional[int]
    blocksize: int
    _raw: File
    _temporary: Optional[str]

    @property
    def autocommit(self) -> bool:
        return self._temporary is None

    def info(self) -> dict[str, Any]:
        return self.fs.info(self.path)

    def commit(self) -> None:
        """Gives the file its name: at the end of a transaction."""
        self.close()  # type: ignore[attr-defined]
        if self._temporary is None:
            raise RuntimeError("the file has its name already")
        if "x" in self._raw.mode:
            # Unlike a rename, a link replaces no file.
            self.fs.client.link(self._temporary, self.path)
            self.fs.client.remove(self._temporary)
        else:
            self.fs.client.rename(self._temporary, self.path)

    def discard(self) -> None:
        """Removes the file: a transaction failed."""
        self.close()  # type: ignore[attr-defined]
        if self._temporary is None:
            raise RuntimeError("the file has its name already")
        self.fs.client.remove(self._temporary)

    def __reduce_ex__(self, _: Any) -> Any:
        if self._raw.mode != "rb":
            raise TypeError("cannot pickle a file that is open for writing")
        return _reopen, (self.fs, self.path, self.blocksize, self.tell())  # type: ignore[attr-defined]


class _Reader(_OpenedFile, io.BufferedReader):
    pass


class _Writer(_OpenedFile, io.BufferedWriter):
    pass


class _Random(_OpenedFile, io.BufferedRandom):
    pass


def _open_buffered(
    fs: BargeFileSystem, raw: File, path: str, temporary: Optional[str], block_size: Optional[int]
) -> Any:
    kind = _Random if raw.readable() and raw.writable() else _Writer if raw.writable() else _Reader
    size = raw.stat().st_size if kind is not _Writer else None
    # A buffer of one byte is none.
    blocksize = BUFFER_SIZE if block_size is None else max(block_size, 1)
    file = kind(raw, blocksize)
    file.fs, file.path, file.size, file.blocksize = fs, path, size, blocksize
    file._raw, file._temporary = raw, temporary
    return file


def _reopen(fs: BargeFileSystem, path: str, block_size: int, position: int) -> Any:
    file = fs.open(path, "rb", block_size=block_size)
    file.seek(position)
    return file
