# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cases that run inside the guest: those of the mount suite, and the NFS mount with its server.

Only inside the guest of uml-nfs (NFSCTL is set there); the host's side is ../test_nfs.py.
"""
import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
MOUNT = HERE.parents[1] / "mount"
sys.path[:0] = [str(HERE), str(MOUNT)]
_spec = importlib.util.spec_from_file_location("mount_conftest", MOUNT / "conftest.py")
_mount = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_mount)
# Its hooks and fixtures are ours.
for _name in dir(_mount):
    if _name.startswith("pytest_") or _name in ("build", "tmp", "slow", "mount", "run", "child", "status", "until"):
        globals()[_name] = getattr(_mount, _name)

from lib.daemon import Hintfs  # noqa: E402
from nfs import NFS, Reader, Server  # noqa: E402


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory):
    """One hintfs over the whole export, for the cases that need no options and no outage."""
    daemon = Hintfs(str(tmp_path_factory.mktemp("shared")), NFS, memory="32M").start()
    yield daemon
    daemon.finish()


@pytest.fixture(scope="session")
def shared_readers():
    readers = [Reader(), Reader()]
    yield readers
    for one in readers:
        one.close()


@pytest.fixture
def shared(request, shared_daemon, shared_readers, nfs):
    """The shared hintfs, as this case's folder, with two readers: .path(name) .one .two .hfs"""
    class Shared:
        hfs = shared_daemon
        one, two = shared_readers

        @staticmethod
        def path(name=""):
            return shared_daemon.p(nfs.name, name)

    request.node.daemons = [shared_daemon]
    yield Shared
    for one in shared_readers:
        one.call("drop_all")


@pytest.fixture
def nfs(request):
    """A fresh folder of the export, seen from both sides; the server runs again after the test, whatever that did."""
    server = Server(request.node.name.split("[")[0])
    yield server
    server.finish()


@pytest.fixture
def reader():
    """reader(uid=, groups=) -> nfs.Reader: system calls in a process of its own, killed at the end."""
    made = []

    def make(**who):
        made.append(Reader(**who))
        return made[-1]

    yield make
    for one in made:
        one.close()
