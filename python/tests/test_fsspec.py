"""barge.fsspec beyond fsspec's own suite."""

import os
import pickle
import random
import shutil
import subprocess
import threading
from datetime import datetime, timedelta, timezone

import fsspec
import pytest
from conftest import BARGE, BOTH, Server
from fsspec.core import url_to_fs
from test_client import in_child

import barge.fsspec


@pytest.fixture
def fs(kind, options):
    return fsspec.filesystem(kind, **options)


def test_urls_lead_to_one_instance_of_a_host(kind, url, options):
    storage = {"source": options["source"]} if kind == "barge" else {}
    first, path = url_to_fs(f"{url}/a/b", **storage)
    second, other = url_to_fs(f"{url}/c/", **storage)
    assert (path, other) == ("/a/b", "/c")
    assert first is second
    assert first == fsspec.filesystem(kind, **options)
    assert first.unstrip_protocol(path) == (f"{url}/a/b" if kind != "barge" else "barge:///a/b")
    assert url_to_fs(first.unstrip_protocol(path), **storage)[1] == path


def test_the_alias_of_9p_begins_with_a_letter(server):
    fs, path = url_to_fs(f"p9+barge://{server['9p']}/x/y")
    assert isinstance(fs, barge.fsspec.NinePFileSystem) and path == "/x/y"
    assert fs == fsspec.filesystem("9p", host=server["9p"])


def test_addresses_of_hosts():
    for url, host, path in [
        ("9p://host/a", "host", "/a"),
        ("9p://host:564/a%20b?c", "host:564", "/a%20b?c"),
        ("9p://host", "host", "/"),
        ("nfs+barge://h:1//srv/", "h:1", "/srv"),
    ]:
        fs, found = url_to_fs(url, options="retry=0")
        assert (fs.host, found) == (host, path)
        assert fs.source == f"{url.split('://')[0].removesuffix('+barge')}://{host}/?retry=0"
    assert fsspec.filesystem("9p", host="[::1]:564").source == "9p://[::1]:564/"
    with pytest.raises(TypeError):
        fsspec.filesystem("barge")


def test_info_and_listing(fs, root, scratch):
    base = root / scratch
    (base / "dir/sub").mkdir(parents=True)
    (base / "file").write_bytes(b"12345")
    (base / "to-file").symlink_to("file")
    (base / "to-dir").symlink_to("dir")
    (base / "broken").symlink_to("none")
    (base / "dir/sub/deep").write_text("x")
    os.utime(base / "file", (1, 1_000_000_000))
    listed = {each["name"]: each for each in fs.ls(f"/{scratch}", detail=True)}
    assert {name.rsplit("/", 1)[1]: (each["type"], each["size"]) for name, each in listed.items() if each["type"] == "file"} == {
        "file": ("file", 5),
        "to-file": ("file", 5),
    }
    assert listed[f"/{scratch}/to-dir"]["type"] == "link"
    assert listed[f"/{scratch}/to-dir"]["destination"] == "dir"
    assert listed[f"/{scratch}/broken"]["type"] == "link"
    assert listed[f"/{scratch}/file"] == fs.info(f"/{scratch}/file")
    assert fs.info(f"/{scratch}/to-dir")["type"] == "directory"
    assert fs.ls(f"/{scratch}/file", detail=False) == [f"/{scratch}/file"]
    assert fs.find(f"/{scratch}/dir") == [f"/{scratch}/dir/sub/deep"]
    assert fs.glob(f"/{scratch}/**/deep") == [f"/{scratch}/dir/sub/deep"]
    assert fs.du(f"/{scratch}/dir") == 1
    assert fs.modified(f"/{scratch}/file") == datetime.fromtimestamp(1_000_000_000, timezone.utc)
    assert not fs.exists(f"/{scratch}/broken") and fs.lexists(f"/{scratch}/broken")
    assert not fs.lexists(f"/{scratch}/file/x") and not fs.exists(f"/{scratch}/none")
    with pytest.raises(FileNotFoundError):
        fs.info(f"/{scratch}/broken")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"/{scratch}/none")


def test_creation_times(kind, fs, root, scratch):
    (root / scratch / "file").touch()
    try:
        age = datetime.now(timezone.utc) - fs.created(f"/{scratch}/file")
    except NotImplementedError:
        # Of the protocols, NFS v3 has none, and v4.2 only where the client asks.
        assert kind == "nfs+barge"
    else:
        assert abs(age) < timedelta(minutes=1)


def test_ranges(fs, root, scratch):
    data = random.Random(3).randbytes(1000)
    path = f"/{scratch}/file"
    fs.pipe_file(path, data)
    for start, end in [(None, None), (0, 10), (10, None), (-10, None), (None, -10), (-20, -10), (990, 2000), (2000, None), (5, 5), (20, 10), (-5000, 3)]:
        assert fs.cat_file(path, start, end) == data[slice(start, end)], (start, end)
    assert fs.cat_ranges([path] * 3, [0, 500, -4], [4, 504, None]) == [data[:4], data[500:504], data[-4:]]
    assert fs.head(path, 7) == data[:7] and fs.tail(path, 7) == data[-7:]
    assert fs.read_block(path, 100, 20) == data[100:120]


def test_a_range_does_not_fetch_the_file(server, root, scratch):
    size = 64 * 1024 * 1024
    (root / scratch / "large").write_bytes(bytes(size))
    fs = fsspec.filesystem("9p", host=server["9p"])
    before = server.sent()
    assert fs.cat_file(f"/{scratch}/large", size - 8) == bytes(8)
    with fs.open(f"/{scratch}/large") as file:
        for at in (size - 65536, 10_000_000, 50_000_000, 0):
            file.seek(at)
            assert file.read(1000) == bytes(1000)
    assert server.sent() - before < 6 * 256 * 1024
    assert fs.cat_file(f"/{scratch}/large", block_size=0) == bytes(size)
    assert server.sent() - before > size


def test_modes_and_buffers(fs, scratch):
    path = f"/{scratch}/file"
    with fs.open(path, "w", newline="\n") as file:
        file.write("zero\none\n")
    with fs.open(path, "ab") as file:
        file.write(b"two\n")
    with fs.open(path, "r+b", block_size=16) as file:
        assert file.size == 13 and file.path == path and file.mode == "rb+"
        file.seek(5)
        file.write(b"ONE")
    with fs.open(path, block_size=0) as file:
        assert file.read(4) == b"zero"
        assert file.tell() == 4
    with fs.open(path, "rt") as file:
        assert list(file) == ["zero\n", "ONE\n", "two\n"]
    with fs.open(f"{path}.gz", "wb", compression="infer") as file:
        file.write(b"compressed")
    with fs.open(f"{path}.gz", "rb", compression="gzip") as file:
        assert file.read() == b"compressed"
    with pytest.raises(FileNotFoundError):
        fs.open(f"/{scratch}/none/file", "wb")


def test_transactions(fs, root, scratch):
    base = root / scratch
    (base / "old").write_text("old")
    with fs.transaction:
        with fs.open(f"/{scratch}/new", "wb") as file:
            file.write(b"new")
        with fs.open(f"/{scratch}/old", "ab") as file:
            file.write(b"er")
        fs.pipe_file(f"/{scratch}/piped", b"piped")
        assert not (base / "new").exists() and (base / "old").read_text() == "old"
    assert {each.name: each.read_text() for each in base.iterdir()} == {"new": "new", "old": "older", "piped": "piped"}
    with pytest.raises(RuntimeError, match="on purpose"):
        with fs.transaction:
            fs.pipe_file(f"/{scratch}/old", b"never")
            fs.pipe_file(f"/{scratch}/never", b"never")
            raise RuntimeError("on purpose")
    assert {each.name for each in base.iterdir()} == {"new", "old", "piped"}
    assert (base / "old").read_text() == "older"
    with fs.transaction, pytest.raises(FileExistsError):
        fs.open(f"/{scratch}/old", "xb")
    with pytest.raises(FileExistsError):
        with fs.transaction:
            fs.pipe_file(f"/{scratch}/raced", b"mine", mode="create")
            (base / "raced").write_text("another's")
    assert (base / "raced").read_text() == "another's"


def test_moves_copies_and_removals(fs, root, scratch):
    base, at = root / scratch, f"/{scratch}"
    fs.makedirs(f"{at}/a/b")
    fs.pipe({f"{at}/a/one": b"1", f"{at}/a/b/two": b"2"})
    inode = (base / "a/one").stat().st_ino
    fs.mv(f"{at}/a/one", f"{at}/moved")
    assert (base / "moved").stat().st_ino == inode
    fs.mv(f"{at}/moved", f"{at}/a/b")
    assert (base / "a/b/moved").read_text() == "1"
    fs.mv(f"{at}/a", f"{at}/c", recursive=True)
    fs.cp(f"{at}/c", f"{at}/d", recursive=True)
    assert sorted(each.name for each in (base / "d/b").iterdir()) == ["moved", "two"]
    fs.mv(f"{at}/d/b/*", f"{at}/c/")
    assert sorted(each.name for each in (base / "c").iterdir()) == ["b", "moved", "two"]
    with pytest.raises(shutil.SameFileError):
        fs.cp_file(f"{at}/c/two", f"{at}/c/two")
    (base / "c/link").symlink_to("../d")
    with pytest.raises(OSError):
        fs.rm(f"{at}/c")
    fs.rm(f"{at}/c", recursive=True)
    assert not (base / "c").exists() and (base / "d").exists()
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{at}/none", f"{at}/x")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{at}/d")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{at}/x/y", create_parents=False)
    fs.touch(f"{at}/d/file")
    os.utime(base / "d/file", (1, 1))
    (base / "d/file").write_text("kept")
    fs.touch(f"{at}/d/file", truncate=False)
    assert (base / "d/file").read_text() == "kept"
    assert (base / "d/file").stat().st_mtime > 1
    fs.touch(f"{at}/d/file")
    assert (base / "d/file").read_text() == ""


def test_names_that_are_not_utf_8(fs, root, scratch):
    raw = b"caf\xe9 \xff"
    (root / scratch / os.fsdecode(raw)).write_bytes(b"latin")
    (name,) = fs.ls(f"/{scratch}", detail=False)
    assert os.fsencode(name) == f"/{scratch}/".encode() + raw
    assert fs.cat_file(name) == b"latin"
    fs.get(name, str(root / scratch / "copy"))
    assert (root / scratch / "copy").read_bytes() == b"latin"


def test_files_and_file_systems_are_pickled(fs, scratch):
    path = f"/{scratch}/file"
    fs.pipe_file(path, b"0123456789")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy == fs and copy.cat_file(path) == b"0123456789"
    with fs.open(path, block_size=4096) as file:
        assert file.read(3) == b"012"
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.read(3) == b"345" and again.blocksize == 4096
        assert file.read(3) == b"345"
    with fs.open(path, "wb") as file, pytest.raises(TypeError):
        pickle.dumps(file)
    opened = pickle.loads(pickle.dumps(fsspec.core.OpenFile(fs, path)))
    with opened as file:
        assert file.read() == b""


def test_a_forked_child_connects_again(fs, scratch):
    fs.pipe_file(f"/{scratch}/file", b"text")
    assert in_child(lambda: fs.cat_file(f"/{scratch}/file")) == "b'text'"
    assert in_child(lambda: fs.pipe_file(f"/{scratch}/child", b"child")) == "None"
    assert fs.cat_file(f"/{scratch}/child") == b"child"


def test_threads(fs, root, scratch):
    data = random.Random(4).randbytes(1_000_000)
    fs.pipe_file(f"/{scratch}/file", data)
    failures = []

    def work(seed):
        try:
            rng = random.Random(seed)
            for turn in range(50):
                at = rng.randrange(len(data))
                assert fs.cat_file(f"/{scratch}/file", at, at + 5000) == data[at : at + 5000]
                fs.pipe_file(f"/{scratch}/{seed}-{turn}", bytes([seed]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(fs.ls(f"/{scratch}")) == 401


def test_an_image_is_read_only(tmp_path):
    (tmp_path / "tree/dir").mkdir(parents=True)
    (tmp_path / "tree/dir/file").write_text("packed")
    image = tmp_path / "image.erofs"
    subprocess.run([BARGE, "pack", tmp_path / "tree", image], check=True, capture_output=True)
    fs = fsspec.filesystem("barge", source=str(image))
    assert fs.find("/") == ["/dir/file"]
    assert fs.cat("/dir/file") == b"packed"
    with pytest.raises(NotImplementedError):
        fs.created("/dir/file")
    for call in (lambda: fs.pipe_file("/new", b""), lambda: fs.rm("/dir/file"), lambda: fs.touch("/dir/file"), lambda: fs.mkdir("/new")):
        with pytest.raises(OSError, match="Read-only file system"):
            call()


def test_a_server_that_goes_away_is_an_error_and_not_a_missing_file(tmp_path):
    (tmp_path / "file").touch()
    server = Server(tmp_path, *BOTH)
    systems = [
        fsspec.filesystem("9p", host=server["9p"], options="retry=0"),
        fsspec.filesystem("nfs+barge", host=server["nfs"], options="retry=0&soft&timeo=10"),
    ]
    for fs in systems:
        assert fs.exists("/file")
    server.stop()
    for fs in systems:
        with pytest.raises(OSError):
            fs.exists("/file")


def test_caching_file_systems_work_on_top(fs, url, options, kind, scratch):
    storage = {kind: options} if kind == "barge" else {}
    fs.pipe_file(f"/{scratch}/file", b"cached")
    with fsspec.open(f"simplecache::{url}/{scratch}/file", **storage) as file:
        assert file.read() == b"cached"
