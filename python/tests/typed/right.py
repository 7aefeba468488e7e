"""A program that type checkers accept."""

import os
from pathlib import PurePath
from typing import IO, Optional

import barge


def tour(source: "os.PathLike[str]") -> Optional[float]:
    with barge.Client(source) as client, barge.Client("mem:") as other:
        names: list[str] = client.listdir()
        text: str = client.open(PurePath("a", "b")).read()
        data: bytes = client.open("file", "rb").read()
        raw: barge.File = client.open("file", "r+b", 0)
        raw.pwrite(memoryview(data), 0)
        writer: IO[bytes] = other.open("copy", "wb")
        writer.write(bytearray(text, "utf-8"))
        other.makedirs(names[0], exist_ok=True)
        other.utime("copy", ns=(0, 1))
        entry: barge.DirEntry = client.scandir()[0]
        found: barge.Stat = entry.stat or client.lstat(entry.name)
        size: int = found.st_size + raw.stat().st_mtime_ns
        print(size)
        return found.st_birthtime
