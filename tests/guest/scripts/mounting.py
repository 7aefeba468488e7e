"""Mounts for the time of a block."""

import ctypes
import os
import tempfile

libc = ctypes.CDLL(None, use_errno=True)


class Mounted:
    """A mount for as long as a block lasts."""

    def __init__(self, device, options, kind="9p"):
        self.device, self.options, self.kind = device, options, kind
        self.at = tempfile.mkdtemp(dir="/run")

    def __enter__(self):
        if libc.mount(self.device.encode(), self.at.encode(), self.kind.encode(), 0, self.options.encode()) != 0:
            raise OSError(ctypes.get_errno(), f"mount -o {self.options}: {os.strerror(ctypes.get_errno())}")
        return self.at

    def __exit__(self, *_):
        if libc.umount2(self.at.encode(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"umount: {os.strerror(ctypes.get_errno())}")
