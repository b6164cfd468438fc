"""fsspec's own tests of get, put, open and pipe.

They remove files in between, which the file system does not offer: that, and what they put there
first, is done where the server has its files.
"""

import os
import shutil
import uuid

import pytest
from fsspec.tests.abstract import (
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from longhaul.fs import HaulFileSystem

from .conftest import OPTIONS


class Local(HaulFileSystem):
    root = ""
    cachable = False

    def makedirs(self, path, exist_ok=False):
        os.makedirs(os.path.join(self.root, path), exist_ok=True)

    def touch(self, path, truncate=True, **kwargs):
        self.makedirs(os.path.dirname(path))
        open(os.path.join(self.root, path), "wb").close()

    def rm(self, path, recursive=False, maxdepth=None):
        self.invalidate_cache()
        for one in [path] if isinstance(path, str) else path:
            one = os.path.join(self.root, one)
            if os.path.isdir(one):
                shutil.rmtree(one)
            else:
                os.remove(one)


class Haul(AbstractFixtures):
    @pytest.fixture
    def fs(self, server):
        fs = Local(host="127.0.0.1", port=server.port, options=OPTIONS)
        fs.root = str(server.root)
        return fs

    @pytest.fixture
    def fs_path(self, fs):
        path = uuid.uuid4().hex
        fs.makedirs(path)
        return path


class TestGet(Haul, AbstractGetTests):
    pass


class TestPut(Haul, AbstractPutTests):
    # Hundreds of transfers, of which each is a process.
    test_put_glob_edge_cases = None


class TestOpen(Haul, AbstractOpenTests):
    pass


class TestPipe(Haul, AbstractPipeTests):
    pass
