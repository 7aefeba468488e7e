"""Servers on this host, and the file systems over them."""

import json
import os
import subprocess
import urllib.request

import pytest

BARGE = os.environ["BARGE"]


class Server:
    """`barge serve` of a source, on free ports of this host."""

    def __init__(self, source, *options):
        self.process = subprocess.Popen(
            [BARGE, "serve", str(source), "--ready", "json", "--http", "0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, "the server did not start"
        ready = json.loads(line)
        self.addresses = {
            each["protocol"]: each["address"].removeprefix("tcp:") for each in ready["endpoints"]
        }

    def __getitem__(self, protocol):
        return self.addresses[protocol]

    def sent(self):
        """Bytes that clients received, among them those of this question."""
        page = urllib.request.urlopen(f"http://{self['http']}/metrics").read().decode()
        (line,) = [line for line in page.splitlines() if line.startswith("barge_sent_bytes_total ")]
        return int(line.split()[1])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


BOTH = ("--9p", "tcp:127.0.0.1:0", "--nfs", "tcp:127.0.0.1:0")


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The directory that the server serves."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def server(root):
    server = Server(root, *BOTH)
    yield server
    server.stop()


@pytest.fixture(params=["9p", "nfs+barge", "barge"])
def kind(request):
    """A protocol of fsspec."""
    return request.param


@pytest.fixture
def options(kind, server, root):
    """The storage options that lead to `root` with the protocol `kind`."""
    match kind:
        case "9p":
            return {"host": server["9p"]}
        case "nfs+barge":
            return {"host": server["nfs"]}
        case "barge":
            return {"source": str(root)}


@pytest.fixture
def source(kind, server, root):
    """The same as a source of a client."""
    return {"9p": f"9p://{server['9p']}", "nfs+barge": f"nfs://{server['nfs']}", "barge": str(root)}[kind]


@pytest.fixture
def url(kind, server):
    """The URL of the root with the protocol `kind`."""
    return {"9p": f"9p://{server['9p']}", "nfs+barge": f"nfs+barge://{server['nfs']}", "barge": "barge://"}[kind]


@pytest.fixture
def scratch(root, request):
    """The name of an empty directory of this test in `root`."""
    import uuid

    name = uuid.uuid4().hex
    (root / name).mkdir()
    return name
