"""barge.Client and barge.File."""

import errno
import hashlib
import io
import multiprocessing
import os
import random
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

import pytest
from conftest import BARGE, Server

import barge


@pytest.fixture
def client(source):
    with barge.Client(source) as client:
        yield client


@pytest.mark.parametrize(
    ("call", "error", "number"),
    [
        (lambda c, d: c.stat(f"{d}/none"), FileNotFoundError, errno.ENOENT),
        (lambda c, d: c.open(f"{d}/none"), FileNotFoundError, errno.ENOENT),
        (lambda c, d: c.stat(f"{d}/file/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda c, d: c.listdir(f"{d}/file"), NotADirectoryError, errno.ENOTDIR),
        (lambda c, d: c.mkdir(f"{d}/file"), FileExistsError, errno.EEXIST),
        (lambda c, d: c.open(f"{d}/file", "x"), FileExistsError, errno.EEXIST),
        (lambda c, d: c.open(d), IsADirectoryError, errno.EISDIR),
        (lambda c, d: c.open(d, "w"), IsADirectoryError, errno.EISDIR),
        (lambda c, d: c.rmdir(d), OSError, errno.ENOTEMPTY),
        (lambda c, d: c.stat(f"{d}/loop"), OSError, errno.ELOOP),
        (lambda c, d: c.readlink(f"{d}/file"), OSError, errno.EINVAL),
        (lambda c, d: c.stat(f"{d}/{'n' * 256}"), OSError, errno.ENAMETOOLONG),
        (lambda c, d: c.getxattr(f"{d}/file", "user.none"), OSError, errno.ENODATA),
    ],
)
def test_errors_have_the_errno_and_the_class_of_os(client, root, scratch, call, error, number):
    (root / scratch / "file").touch()
    (root / scratch / "loop").symlink_to("loop")
    with pytest.raises(error) as caught:
        call(client, scratch)
    assert caught.value.errno == number
    assert caught.value.filename.startswith(scratch)
    assert caught.value.strerror == os.strerror(number)


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ("s3://bucket/key", "AWS_ENDPOINT_URL", "minio:9000"),
        ("s3://bucket/key", "AWS_ENDPOINT_URL", ""),
        ("s3://bucket/key", "AWS_SECRET_ACCESS_KEY", "key\n"),
        ("s3://bucket/key", "AWS_REGION", "eu central"),
        ("az://container/key", "AZURE_STORAGE_ACCOUNT_NAME", "two words"),
    ],
)
def test_a_mistake_with_a_store_is_an_exception_and_no_panic(monkeypatch, source, name, value):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv(name, value)
    with pytest.raises(OSError, match=name):
        barge.Client(source)


def test_a_source_that_cannot_be_opened():
    for source, error, number in [
        ("9p://127.0.0.1:1?retry=0", ConnectionRefusedError, errno.ECONNREFUSED),
        ("/nowhere", FileNotFoundError, errno.ENOENT),
        ("gopher://host", OSError, errno.EINVAL),
        (os.fsdecode(b"/\xff"), OSError, errno.EINVAL),
    ]:
        with pytest.raises(error) as caught:
            barge.Client(source)
        assert caught.value.errno == number, source


def test_modes_are_those_of_open(client, root, scratch):
    name = f"{scratch}/file"
    with pytest.raises(FileNotFoundError):
        client.open(name, "r+")
    with client.open(name, "x") as file:
        assert file.write("one\ntwo\n") == 8
    with client.open(name, "a") as file:
        assert file.tell() == 8
        file.write("three\n")
    with client.open(PurePosixPath(name)) as file:
        assert file.readlines() == ["one\n", "two\n", "three\n"]
    with client.open(name, "r+b") as file:
        file.seek(4)
        file.write(b"2")
        file.seek(-6, io.SEEK_END)
        assert file.read(5) == b"three"
        assert file.seek(0) == 0
        assert file.readline() == b"one\n"
    with client.open(name, "w+b", buffering=0) as file:
        assert isinstance(file, barge.File)
        assert file.write(bytearray(b"abcdef")) == 6
        assert file.pwrite(memoryview(b"XY"), 2) == 2
        assert file.tell() == 6
        assert file.pread(100, 1) == b"bXYef"
        buffer = bytearray(4)
        file.seek(3)
        assert file.readinto(buffer) == 3
        assert buffer == b"Yef\0"
        assert file.truncate(2) == 2
        file.sync()
        assert file.stat().st_size == 2
    assert (root / name).read_bytes() == b"ab"
    with client.open(name, "rb") as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with client.open(name, "wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read()
    for mode in ("", "rw", "rbb", "z", "r++"):
        with pytest.raises(ValueError):
            client.open(name, mode + "b" if mode == "z" else mode, 0 if "b" in mode else -1)


def test_text_is_decoded_as_by_open(client, root, scratch):
    (root / scratch / "latin").write_bytes("größe\r\n".encode("latin-1"))
    with client.open(f"{scratch}/latin", encoding="latin-1") as file:
        assert file.read() == "größe\n"
    with client.open(f"{scratch}/latin", encoding="latin-1", newline="") as file:
        assert file.read() == "größe\r\n"
    for arguments in (("rb", -1, "utf-8"), ("r", 0), ("rbt",)):
        with pytest.raises(ValueError):
            client.open(f"{scratch}/latin", *arguments)


def test_attributes_are_those_of_the_file(client, root, scratch):
    path = root / scratch / "file"
    path.write_bytes(b"x" * 5000)
    path.chmod(0o640)
    os.utime(path, ns=(1_000_000_001, -1_500_000_000))
    (root / scratch / "link").symlink_to("file")
    local, found = path.stat(), client.stat(f"{scratch}/link")
    for field in ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_atime_ns", "st_mtime_ns", "st_mtime"):
        assert getattr(found, field) == getattr(local, field), field
    assert stat.S_ISLNK(client.lstat(f"{scratch}/link").st_mode)
    assert client.stat(f"{scratch}/link", follow_symlinks=False).st_ino == (root / scratch / "link").lstat().st_ino


def test_changes_are_made_in_the_directory(client, root, scratch):
    base = root / scratch
    client.makedirs(f"{scratch}/a/b/c")
    client.makedirs(f"{scratch}/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        client.makedirs(f"{scratch}/a/b/c")
    client.makedirs("/", exist_ok=True)
    with client.open(f"{scratch}/a/f", "w") as file:
        file.write("text")
    client.link(f"{scratch}/a/f", f"{scratch}/a/hard")
    client.symlink("a/f", f"{scratch}/soft")
    assert client.readlink(f"{scratch}/soft") == "a/f"
    client.rename(f"{scratch}/a/f", f"{scratch}/a/g")
    client.chmod(f"{scratch}/a/g", 0o600)
    client.utime(f"{scratch}/a/g", ns=(5, 7_000_000_009))
    client.truncate(f"{scratch}/a/g", 2)
    assert (base / "a/hard").read_text() == "te"
    assert stat.S_IMODE((base / "a/g").stat().st_mode) == 0o600
    client.utime(f"{scratch}/a/g", ns=(5, 7_000_000_009))
    assert (base / "a/g").stat().st_mtime_ns == 7_000_000_009
    client.utime(f"{scratch}/a/g")
    assert abs((base / "a/g").stat().st_mtime - time.time()) < 60
    client.chown(f"{scratch}/a/g", -1, -1)
    client.remove(f"{scratch}/a/g")
    client.rmdir(f"{scratch}/a/b/c")
    assert client.listdir(f"{scratch}/a") == ["b", "hard"]
    assert [(e.name, stat.S_ISDIR(e.stat.st_mode)) for e in client.scandir(scratch)] == [("a", True), ("soft", False)]
    client.sync()


def test_extended_attributes(client, root, scratch):
    name = f"{scratch}/file"
    (root / name).touch()
    client.setxattr(name, "user.note", b"\0value")
    assert client.getxattr(name, "user.note") == b"\0value" == os.getxattr(root / name, "user.note")
    assert "user.note" in client.listxattr(name)
    client.removexattr(name, "user.note")
    assert "user.note" not in client.listxattr(name)


def test_names_that_are_not_utf_8(kind, client, root, scratch):
    raw = os.fsencode(root / scratch) + b"/\xff\xfe-\xe4"
    with open(raw, "wb") as file:
        file.write(b"bytes")
    name = os.fsdecode(b"\xff\xfe-\xe4")
    assert client.listdir(scratch) == [name]
    with client.open(f"{scratch}/{name}", "rb") as file:
        assert file.read() == b"bytes"
    client.rename(f"{scratch}/{name}", f"{scratch}/{name}2")
    assert os.listdir(os.fsencode(root / scratch)) == [b"\xff\xfe-\xe42"]
    with pytest.raises(FileNotFoundError) as caught:
        client.stat(f"{scratch}/{name}")
    assert caught.value.filename == f"{scratch}/{name}"


def test_large_reads_and_writes(client, root, scratch):
    data = random.Random(1).randbytes(20_000_001)
    with client.open(f"{scratch}/large", "wb", 0) as file:
        assert file.write(data) == len(data)
    assert hashlib.sha256((root / scratch / "large").read_bytes()).digest() == hashlib.sha256(data).digest()
    with client.open(f"{scratch}/large", "rb") as file:
        assert file.read() == data
        file.seek(-10, 2)
        assert file.read(20) == data[-10:]
    with client.open(f"{scratch}/large", "rb", 0) as file:
        assert file.pread(30_000_000, 7) == data[7:]
        assert file.readall() == data


def test_a_file_that_grows_while_it_is_read(client, root, scratch):
    path = root / scratch / "growing"
    path.write_bytes(b"a" * 100)
    with client.open(f"{scratch}/growing", "rb", 0) as file:
        assert file.read(100) == b"a" * 100
        assert file.read(1) == b""
        with path.open("ab") as more:
            more.write(b"b" * 50)
        assert file.readall() == b"b" * 50


def test_closed_objects(source, root, scratch):
    (root / scratch / "file").write_text("kept")
    client = barge.Client(source)
    file = client.open(f"{scratch}/file", "rb", 0)
    assert not client.closed
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(ValueError):
        client.stat("/")
    # The file keeps the connection.
    assert file.read() == b"kept"
    file.close()
    file.close()
    assert file.closed
    for call in (file.read, file.tell, file.stat, file.readall, lambda: file.pread(1, 0), file.readable):
        with pytest.raises(ValueError):
            call()


def test_arguments_of_other_types(client):
    for call in (lambda: client.stat(b"x"), lambda: client.stat(3), lambda: barge.Client(None), lambda: client.stat()):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(OSError):
        client.stat("a\0b")


def test_threads_share_clients_and_files(client, root, scratch):
    data = random.Random(2).randbytes(4_000_000)
    (root / scratch / "shared").write_bytes(data)
    with client.open(f"{scratch}/shared", "rb", 0) as file:

        def work(seed):
            rng = random.Random(seed)
            for _ in range(100):
                at, size = rng.randrange(len(data)), rng.randrange(50_000)
                assert file.pread(size, at) == data[at : at + size]
            with client.open(f"{scratch}/{seed}", "wb") as mine:
                mine.write(data[:seed])
            return client.stat(f"{scratch}/{seed}").st_size

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(work, range(32))) == list(range(32))


def test_other_threads_run_while_a_call_waits(tmp_path):
    """A server that stops answers no call. The interpreter's other threads go on."""
    import signal

    (tmp_path / "file").write_text("late")
    server = Server(tmp_path, "--9p", "tcp:127.0.0.1:0", "--processes", "one")
    try:
        client = barge.Client(f"9p://{server['9p']}")
        pids = [server.process.pid, *children(server.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        results = []
        thread = threading.Thread(target=lambda: results.append(client.open("file").read()))
        thread.start()
        count = 0
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            count += 1
        assert thread.is_alive() and not results
        assert count > 1000
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        thread.join(30)
        assert results == ["late"]
    finally:
        server.stop()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        direct = [int(each) for each in file.read().split()]
    return direct + [below for each in direct for below in children(each)]


def test_a_server_that_goes_away(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    server = Server(tmp_path, "--9p", "tcp:127.0.0.1:0", "--nfs", "tcp:127.0.0.1:0")
    clients = [
        barge.Client(f"9p://{server['9p']}?retry=0"),
        barge.Client(f"nfs://{server['nfs']}?retry=1&soft&timeo=10"),
    ]
    files = [client.open("file", "rb", 0) for client in clients]
    server.stop()
    for client, file in zip(clients, files):
        start = time.monotonic()
        with pytest.raises(OSError) as caught:
            client.stat("file")
        assert caught.value.errno in (errno.EIO, errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.EPIPE)
        with pytest.raises(OSError):
            file.pread(10, 0)
        assert time.monotonic() - start < 30
        # Neither fails nor hangs.
        del file
        client.close()


def test_an_image_is_read_only(tmp_path):
    tree = tmp_path / "tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "dir/file").write_bytes(b"packed" * 10_000)
    image = tmp_path / "image.erofs"
    subprocess.run([BARGE, "pack", tree, image], check=True, capture_output=True)
    with barge.Client(image) as client:
        assert client.source == str(image)
        assert client.listdir("dir") == ["file"]
        assert client.stat("dir/file").st_birthtime is None
        with client.open("dir/file", "rb") as file:
            assert file.read() == b"packed" * 10_000
        for call in (
            lambda: client.open("dir/file", "r+"),
            lambda: client.open("new", "w"),
            lambda: client.remove("dir/file"),
            lambda: client.mkdir("new"),
            lambda: client.rename("dir", "new"),
            lambda: client.chmod("dir", 0),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EROFS


def in_child(body):
    """Runs `body` in a forked child, and returns its result or exception as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result = repr(body())
        except BaseException as error:
            result = f"{type(error).__name__} {getattr(error, 'errno', None)}"
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        result = file.read()
    os.waitpid(pid, 0)
    return result


def test_a_forked_child_does_not_use_the_parents_objects(source, root, scratch):
    (root / scratch / "file").write_text("text")
    client = barge.Client(source)
    file = client.open(f"{scratch}/file", "rb", 0)
    assert in_child(lambda: client.stat("/")) == f"OSError {errno.EBADF}"
    assert in_child(lambda: file.read()) == f"OSError {errno.EBADF}"
    assert in_child(lambda: (file.close(), client.close())) == "(None, None)"

    def reopened():
        with barge.Client(source) as own:
            return own.listdir(scratch)

    assert in_child(reopened) == "['file']"
    # The parent's connection is intact.
    assert file.read() == b"text"
    file.close()
    client.close()


def test_a_forked_child_exits(source, root, scratch):
    """The end of the interpreter drops objects of the parent."""
    code = (
        "import os, sys, barge\n"
        "client = barge.Client(sys.argv[1]); file = client.open(sys.argv[2], 'rb')\n"
        "pid = os.fork()\n"
        "if pid: assert os.waitpid(pid, 0)[1] == 0; assert file.read() == b'text'\n"
    )
    (root / scratch / "file").write_text("text")
    subprocess.run([sys.executable, "-c", code, source, f"{scratch}/file"], check=True, timeout=60)


def test_a_spawned_process_opens_its_own(source, root, scratch):
    (root / scratch / "file").write_text("text")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(read_size, [(source, f"{scratch}/file")] * 4) == [4] * 4


def read_size(source, path):
    with barge.Client(source) as client:
        return client.stat(path).st_size
