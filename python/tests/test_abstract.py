"""fsspec's own suite."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, kind, options):
        return fsspec.filesystem(kind, **options, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, scratch):
        return "/" + scratch

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass
