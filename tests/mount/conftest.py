# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the mount suite: what each gives is in README.md.

1. The whole run lives in a mount namespace of its own.
2. Every test has a deadline (marker `timeout`, default below): it dumps all stacks, then the test fails.
3. At the end of a test daemons are stopped and judged; what is wedged is aborted, so one failure never stops the run.
"""
import faulthandler
import os
import shutil
import signal
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from lib import env, mounts, procs  # noqa: E402
from lib.daemon import Hintfs  # noqa: E402

DEFAULT_TIMEOUT_S = 60


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): deadline of this test before stretching for sanitizers")
    config.addinivalue_line("markers", "full: runs with HINTFS_FULL=1 only, because of its length")
    faulthandler.enable()
    if not config.option.collectonly:
        mounts.private_namespace()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("full") and not env.IS_FULL:
            item.add_marker(pytest.mark.skip(reason="long: set HINTFS_FULL=1"))


class TestExpired(Exception):
    pass


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    marker = item.get_closest_marker("timeout")
    limit_s = env.seconds(marker.args[0] if marker else DEFAULT_TIMEOUT_S)

    def expired(signum, frame):
        raise TestExpired(f"test not done within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    faulthandler.dump_traceback_later(limit_s + 30, exit=True)  # should even the exception not get through
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    setattr(item, "report_" + report.when, report)
    if report.when == "call" and report.failed:
        for daemon in getattr(item, "daemons", []):
            report.sections.append((f"log of {daemon.path}", daemon.log()[-6000:].decode("utf-8", "replace")))


@pytest.fixture(scope="session")
def build():
    """The build folder; hintfs itself must be there."""
    env.binary("fs", "hintfs")
    return env.BUILD


@pytest.fixture
def tmp(request):
    """A fresh folder on a disk file system (TMPDIR, else /var/tmp): page cache and st_blocks behave as in real life."""
    base = os.environ.get("HINTFS_TEST_TMP") or os.environ.get("TMPDIR") or "/var/tmp"
    folder = tempfile.mkdtemp(prefix="hintfs-test.", dir=base)
    yield folder
    procs.kill_all()
    mounts.clear_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


class Factory:
    """Makes daemons of one kind, remembers them for the end of the test."""

    def __init__(self, request, tmp, make):
        self.made, self._tmp, self._make, self._request = [], tmp, make, request

    def folder(self, kind):
        path = os.path.join(self._tmp, f"{kind}{len(self.made)}")
        os.makedirs(path)
        return path

    def __call__(self, source, start=True, **opts):
        daemon = self._make(self, source, **opts)
        self.made.append(daemon)
        self._request.node.daemons = getattr(self._request.node, "daemons", []) + [daemon]
        return daemon.start() if start else daemon

    def end(self, is_passed):
        """Stop all, newest first. A test that failed already only needs them gone."""
        trouble = []
        for daemon in reversed(self.made):
            try:
                if is_passed:
                    daemon.finish()
            except BaseException as error:  # noqa: B902 - all of them must be tried
                trouble.append(error)
            finally:
                daemon.free()
        if trouble:
            raise trouble[0]


def _is_passed(request):
    report = getattr(request.node, "report_call", None)
    return report is not None and report.passed


@pytest.fixture
def mount(request, build, tmp, slow):
    """mount(SOURCE, memory='64M', immutable=True, ...) -> a running lib.daemon.Hintfs"""
    factory = Factory(request, tmp, lambda f, source, **o: Hintfs(f.folder("mount"), source, **o))
    yield factory
    procs.kill_all()
    factory.end(_is_passed(request))


@pytest.fixture
def slow(request, tmp):
    """slow(SOURCE, latency_us=..., ...) -> a running lib.slow.Slow: the origin with a will of its own"""
    from lib.slow import Slow
    factory = Factory(request, tmp, lambda f, source, **o: Slow(f.folder("slow"), source, **o))
    yield factory
    procs.kill_all()
    factory.end(_is_passed(request))


@pytest.fixture
def probe():
    """probe() -> a running lib.probe.Probe, closed at the end of the test"""
    from lib.probe import Probe

    started = []

    def start():
        started.append(Probe())
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def run():
    """run(ARGV or shell text, timeout=30, check=False) -> lib.procs.Result"""
    return procs.run


@pytest.fixture
def child():
    """child(ARGV or shell text) -> lib.procs.Child, started, killed at the end of the test"""
    return procs.Child


@pytest.fixture
def status():
    """status(MOUNT) -> dict of .ctl/status"""
    return lambda daemon: daemon.status()


@pytest.fixture
def until():
    """until(PREDICATE, SECONDS, WHAT): its first true value, or AssertionError at the deadline"""
    return procs.until
