# SPDX-License-Identifier: Apache-2.0
"""hintfs on a real NFS server and client, in a User Mode Linux guest (README.md): one boot a protocol version, the cases of
guest/case_*.py inside, their results taken over one by one.

Skipped, never passed, where the guest is not to be had: not Linux on x86_64, no Debian packages within reach, not root.
"""
import ast
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree

import pytest

SUITE_LIMIT_S = 1500
HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("HINTFS_BUILD") or os.environ.get("BUILD") or HERE.parents[1] / "build").resolve()
IS_FULL = os.environ.get("HINTFS_FULL", "") not in ("", "0")
GUEST_LIMIT_S = 1200 if IS_FULL else 500
VERSIONS = ["4.2", "3"]


def cases():
    """case_FILE.test_NAME of all cases, read from their text: they can be imported inside the guest only."""
    for path in sorted((HERE / "guest").glob("case_*.py")):
        for item in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.FunctionDef) and item.name.startswith("test_"):
                yield f"{path.stem}.{item.name}"


@functools.cache
def guest_tree():
    """(folder, "") or (None, why there is none)"""
    if os.geteuid() != 0:
        return None, "the guest needs root"
    tree = BUILD / "nfs-guest"
    done = subprocess.run([HERE / "guest-tree", tree], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
    if done.returncode == 0:
        return tree, ""
    assert done.returncode == 77, done.stdout
    return None, done.stdout.strip().splitlines()[-1]


class Boot:
    """One guest, all cases: .results is {case: [(name, outcome, text)]} after wait()."""

    def __init__(self, tree, version):
        self.results, self.output, self.status = {}, "", None
        self._thread = threading.Thread(target=self._run, args=(tree, version))
        self._thread.start()

    def wait(self):
        self._thread.join()
        return self

    def _run(self, tree, version):
        with tempfile.TemporaryDirectory(prefix="nfs-out.") as out:
            env = dict(os.environ, OUT=out, TIMEOUT=str(GUEST_LIMIT_S), HINTFS_BUILD=str(BUILD), PYTHONDONTWRITEBYTECODE="1")
            command = [HERE / "uml-nfs", "--vers", version, "--tree", tree, "--", sys.executable, "-m", "pytest", "-q", "-ra",
                       "--tb=short", "--color=no", "-p", "no:cacheprovider", "-o", "python_files=case_*.py",
                       "-o", "junit_family=xunit1", f"--junitxml={out}/results.xml", "--durations=10", HERE / "guest"]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                  env=env, timeout=GUEST_LIMIT_S + 100)
            self.output, self.status = done.stdout, done.returncode
            self.results = self._parse(pathlib.Path(out, "results.xml"))

    @staticmethod
    def _parse(path):
        found = {}
        if not path.exists():
            return found
        for test in ElementTree.parse(path).getroot().iter("testcase"):
            bad = [element for element in test if element.tag in ("failure", "error")]
            skip = test.find("skipped")
            outcome = "failed" if bad else "skipped" if skip is not None else "passed"
            text = "\n".join(element.text or "" for element in bad) or (skip.get("message", "") if skip is not None else "")
            case = f"{test.get('classname').split('.')[-1]}.{test.get('name').split('[')[0]}"
            found.setdefault(case, []).append((test.get("name"), outcome, text))
        return found


@pytest.fixture(scope="module")
def boot():
    boots = {}

    def of(version):
        tree, why_not = guest_tree()
        if tree is None:
            pytest.skip(why_not)
        if not boots:  # all at once: most of a case's time is waiting for the server or for time to pass
            boots.update((each, Boot(tree, each)) for each in VERSIONS)
        return boots[version].wait()
    yield of
    for one in boots.values():
        one.wait()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", list(cases()))
def test_in_the_guest(boot, version, case):
    guest = boot(version)
    rows = guest.results.get(case)
    assert rows, f"NFS {version}: no result of {case}; the guest ended with {guest.status}:\n{guest.output[-6000:]}"
    failed = [f"{name}:\n{text}" for name, outcome, text in rows if outcome == "failed"]
    why = next((line.strip() for text in failed for line in text.splitlines() if line.startswith("E ")), "")
    assert not failed, f"NFS {version}: {why}\n" + "\n".join(failed)
    if all(outcome == "skipped" for _, outcome, _ in rows):
        pytest.skip(rows[0][2])
