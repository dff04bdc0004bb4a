# SPDX-License-Identifier: Apache-2.0
"""The runner itself: what counts as passed, failed, skipped, and that nothing outlives a case."""
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import suites  # noqa: E402


class Options:
    slow = False
    marks = ""
    keep = False
    quiet = True
    limit_factor = 1.0


def script(folder, text):
    path = folder / "program"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return [str(path)]


def run(tmp_path, kind, command, limit_s=60):
    case = suites.Case("demo", "case", kind, command, limit_s, {})
    return suites.run_case(case, tmp_path, tmp_path, Options())


def counts(result):
    return result.passed, result.failed, result.skipped


@pytest.mark.parametrize("text, expected", [
    ("exit 0", (1, 0, 0)),
    ("exit 1", (0, 1, 0)),
    ("echo no device; exit 77", (0, 0, 1)),
    ("kill -SEGV $$", (0, 1, 0)),
    ("kill -KILL $$", (0, 1, 0)),
    ("exit 124", (0, 1, 0)),
])
def test_main_program(tmp_path, text, expected):
    assert counts(run(tmp_path, "main", script(tmp_path, text))) == expected


def test_skip_says_why(tmp_path):
    result = run(tmp_path, "main", script(tmp_path, "echo no device; exit 77"))
    assert result.reasons == ["skipped case: no device"]


def test_program_that_is_not_there(tmp_path):
    assert counts(run(tmp_path, "main", ["/nowhere/program"])) == (0, 1, 0)


def test_criterion_counts(tmp_path):
    xml = ('<testsuites><testsuite><testcase name="a" status="PASSED"/>'
           '<testcase name="b" status="SKIPPED"><skipped/></testcase>'
           '<testcase name="c" status="ERRORED"><error type="crash"/></testcase>'
           '</testsuite></testsuites>')
    text = f"echo '{xml}' >\"${{1#--xml=}}\"; exit 1"
    assert counts(run(tmp_path, "criterion", script(tmp_path, text))) == (1, 1, 1)


@pytest.mark.parametrize("text", [
    "exit 0",  # green without results
    "echo '<testsuites></testsuites>' >\"${1#--xml=}\"",  # no test at all
    "echo '<testsuites><testcase name=\"a\"' >\"${1#--xml=}\"",  # cut off
    "echo '<testsuites><testcase name=\"a\"/></testsuites>' >\"${1#--xml=}\"; exit 3",
])
def test_results_that_do_not_convince(tmp_path, text):
    assert run(tmp_path, "criterion", script(tmp_path, text)).failed == 1


def test_pytest_counts(tmp_path):
    path = tmp_path / "test_demo.py"
    path.write_text("import pytest\n"
                    "def test_a(): pass\n"
                    "def test_b(): assert False\n"
                    "def test_c(): pytest.skip('because')\n")
    result = run(tmp_path, "pytest", [str(path)])
    assert counts(result) == (1, 1, 1)
    assert "skipped test_c: because" in result.reasons


def test_pytest_file_that_does_not_load(tmp_path):
    path = tmp_path / "test_demo.py"
    path.write_text("import no_such_module\n")
    assert run(tmp_path, "pytest", [str(path)]).failed == 1


def test_pytest_that_dies(tmp_path):
    path = tmp_path / "test_demo.py"
    path.write_text("import os\ndef test_a(): os._exit(0)\n")
    assert run(tmp_path, "pytest", [str(path)]).failed == 1


FAILING = """import pytest
def test_a(): assert 20 <= 16, "too far\\nand more"
@pytest.mark.parametrize("n", range(30))
def test_b(n): assert not n
"""


def test_what_failed_is_said_at_the_end(tmp_path, capsys):
    path = tmp_path / "test_demo.py"
    path.write_text(FAILING)
    total = suites.Result()
    total.add(run(tmp_path, "main", script(tmp_path, "echo 'FAILED: no slot'; echo bye; exit 1")))
    total.add(run(tmp_path, "pytest", [str(path)]))
    capsys.readouterr()
    suites.print_failures(total.failures)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAILED demo/case case: status 1: FAILED: no slot"
    assert lines[1] == "FAILED demo/case test_a: AssertionError: too far"
    assert lines[2].startswith("FAILED demo/case test_b[1]: ")
    assert len(lines) == suites.LIST_LINES + 1 and lines[-1] == "and 11 more failures"
    assert total.failed == len(total.failures) == 31


@pytest.mark.parametrize("text, message", [
    ("echo '==1==ERROR: AddressSanitizer: heap-use-after-free'; echo ABORTING; exit 1", "status 1: ==1==ERROR: AddressSanitizer: heap-use-after-free"),
    ("echo something; echo the end; exit 3", "status 3: the end"),
    ("exit 4", "status 4: no output"),
])
def test_what_a_program_says_of_its_failure(tmp_path, text, message):
    assert run(tmp_path, "main", script(tmp_path, text)).failures == [f"demo/case case: {message}"]


STAGE = """#!/bin/sh
echo 'FAILED {suite} one: first'
i=0; while [ $i -lt {more} ]; do echo 'FAILED {suite} other: second'; i=$((i + 1)); done
echo '    FAILED of a test, indented'
echo '5 passed, '$(({more} + 1))' failed, 0 skipped'
exit 1
"""


@pytest.mark.parametrize("more", [1, 30])
def test_ci_says_at_the_end_what_failed(tmp_path, more):
    for folder in (".ci", "tests", "ci/plain"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(HERE.parents[1] / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "ci/plain/build.ninja").touch()
    (tmp_path / ".ci/static.py").write_text("print('FAILED static/sizes: a.c is long')\nprint('3 passed, 1 failed, 0 skipped')\n")
    (tmp_path / "tests/run.sh").write_text(STAGE.format(suite="mount/x", more=more))
    (tmp_path / "tests/run.sh").chmod(0o755)
    done = subprocess.run([tmp_path / ".ci/run", "static", "tests"], env=dict(os.environ, CI_DIR=str(tmp_path / "ci")),
                          capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    expected = ["FAILED static: static/sizes: a.c is long", "FAILED tests: mount/x one: first"]
    expected += ["FAILED tests: mount/x other: second"] * more
    if more > 18:
        expected[20:] = [f"and {len(expected) - 20} more failures"]
    assert lines[-1 - len(expected):] == expected + [f"8 passed, {more + 2} failed, 0 skipped"]
    assert done.returncode == 1


def process_exists(marker):
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return marker in listing.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_limit_ends_everything(tmp_path):
    # A daemon in a session of its own, and a program that ignores SIGTERM.
    text = "setsid sleep 98765 &\ntrap '' TERM\nwhile :; do sleep 98766; done"
    assert counts(run(tmp_path, "main", script(tmp_path, text), limit_s=1)) == (0, 1, 0)
    assert not process_exists("sleep 9876")
    assert "over the limit" in (tmp_path / "demo-case.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_daemon_does_not_outlive_its_case(tmp_path):
    assert counts(run(tmp_path, "main", script(tmp_path, "setsid sleep 98764 &"))) == (1, 0, 0)
    assert not process_exists("sleep 98764")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_orphans_are_reaped(tmp_path):
    # The program waits, as a test waits for a daemon, until the process is no longer there at all.
    text = ("sh -c 'sleep 0 & echo $! >\"$TMPDIR/pid\"'\n"
            "while [ -e /proc/$(cat \"$TMPDIR/pid\") ]; do :; done")
    assert counts(run(tmp_path, "main", script(tmp_path, text), limit_s=20)) == (1, 0, 0)


@pytest.mark.parametrize("sign", ["HUP", "INT", "QUIT", "PIPE"])
def test_signals_have_their_default(tmp_path, sign):
    before = signal.signal(signal.Signals["SIG" + sign], signal.SIG_IGN)  # as in a shell's background job
    try:
        assert counts(run(tmp_path, "main", script(tmp_path, f"kill -{sign} $$; exit 0"))) == (0, 1, 0)
    finally:
        signal.signal(signal.Signals["SIG" + sign], before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_mount_stays_inside(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    text = f"mount -t tmpfs none {inside} && mountpoint -q {inside}"
    assert counts(run(tmp_path, "main", script(tmp_path, text))) == (1, 0, 0)
    assert not os.path.ismount(inside)


STUCK_MOUNT = """#!{python}
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0  # a mount namespace further in, as the mount suite has
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{fd}},rootmode=40000,user_id=0,group_id=0".encode()
point = os.environ["TMPDIR"]
assert libc.mount(b"stuck", point.encode(), b"fuse.slowfs", 0, options) == 0
print("mounted", flush=True)
subprocess.run(["stat", point + "/sleep-98763"])  # nobody ever answers
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE")
def test_stuck_mount_is_freed(tmp_path):
    program = tmp_path / "program"
    program.write_text(STUCK_MOUNT.format(python=sys.executable))
    program.chmod(0o755)
    assert counts(run(tmp_path, "main", [str(program)], limit_s=2)) == (0, 1, 0)
    assert "mounted" in (tmp_path / "demo-case.log").read_text()
    assert not process_exists("sleep-98763")


def test_folder_of_a_case(tmp_path):
    case = suites.Case("demo", "case", "main", ["/bin/sh", "-c", f"test . -ef {tmp_path}"], 60, {}, str(tmp_path))
    assert counts(suites.run_case(case, tmp_path, tmp_path, Options())) == (1, 0, 0)


def test_selection():
    cases = [suites.Case("unit", "unit_pool", "main", [], 1, {}),
             suites.Case("mount", "control", "pytest", [], 1, {}),
             suites.Case("bench", "epoch", "main", [], 1, {})]
    assert suites.select(cases, [], []) == cases[:2]
    assert suites.select(cases, ["pool"], []) == cases[:1]
    assert suites.select(cases, ["mount/control", "bench"], []) == cases[1:]
    assert suites.select(cases, [], ["mount"]) == cases[:1]
    assert suites.select(cases, ["nowhere", "pool"], [], known_only=True) == cases[:1]
    assert suites.select(cases, ["nowhere"], [], known_only=True) == []
    with pytest.raises(SystemExit):
        suites.select(cases, ["nowhere"], [])
