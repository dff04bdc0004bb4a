#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the suites, runs each case in a namespace of its own, sums the results.

Called by tests/run.sh and .ci/run. A case is one program that meson registers as a test, or one
tests/*/test_*.py. Three kinds, told apart by themselves:
  criterion  linked with libcriterion; counts from its XML
  main       exit 0, 1, 77: one passed, failed, skipped
  pytest     counts from its JUnit XML
A pytest file may set its limit by a line SUITE_LIMIT_S = N.
A case that crashes, runs into its limit, or runs no test at all counts as failed.
Every case runs under cage.py: own mount and PID namespace, nothing outlives it.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
# Folders in the order of running; others follow. Figures and the GPU have commands of their own.
ORDER = ["unit", "sim", "stress", "fuzz", "fault", "preload", "control", "mount", "nfs", "clients"]
NOT_QUICK = {"bench", "gpu", "slow"}
LIMIT_S = {"unit": 120, "stress": 240, "fuzz": 120, "mount": 600}
DEFAULT_LIMIT_S = 300
GRACE_S = 30  # for the cage to end what hangs, before the cage itself is killed
TAIL_LINES = 80
LIST_LINES = 20  # of what failed, before the sum
LIST_COLUMNS = 160
# What a plain program or a sanitizer says of its failure, wherever in its output that is.
TELLING = re.compile(r"over the limit|ERROR: |WARNING: ThreadSanitizer|runtime error: |FAILED|Assertion|assertion")


@dataclasses.dataclass
class Case:
    group: str
    name: str
    kind: str
    command: list
    limit_s: int
    env: dict
    folder: str = str(TESTS.parent)  # where it runs


@dataclasses.dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list = dataclasses.field(default_factory=list)  # why skipped or failed, one line each
    failures: list = dataclasses.field(default_factory=list)  # "suite test: message", one line each

    def fail(self, name, why, message=""):
        self.failed += 1
        self.reasons.append(f"FAILED {name}: {why}" if why else f"FAILED {name}")
        text = next(iter(message.strip().splitlines()), "") or why
        self.failures.append(f"{name}: {text}"[:LIST_COLUMNS])

    def add(self, other):
        self.failures += other.failures
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def is_criterion(program):
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return "libcriterion" in listing.stdout


def meson_cases(build):
    """Programs registered with test(); the suite name is the folder."""
    listing = subprocess.run(["meson", "introspect", "--tests", str(build)],
                             capture_output=True, text=True, check=True)
    for test in json.loads(listing.stdout):
        suites = [suite.split(":")[-1] for suite in test["suite"]]
        if "fuse3" in [suite.split(":")[0] for suite in test["suite"]]:
            continue
        group = next((suite for suite in suites if suite != "slow"), "other")
        if "slow" in suites:
            group = "slow"
        kind = "criterion" if is_criterion(test["cmd"][0]) else "main"
        limit_s = LIMIT_S.get(group, DEFAULT_LIMIT_S)
        if test.get("timeout"):
            limit_s = max(limit_s, int(test["timeout"]))
        yield Case(group, test["name"], kind, test["cmd"], limit_s, dict(test.get("env") or {}),
                   test.get("workdir") or str(build))  # as meson itself would run it


def pytest_cases():
    for path in sorted(TESTS.glob("*/test_*.py")):
        group = path.parent.name
        own = re.search(r"^SUITE_LIMIT_S = (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        limit_s = int(own[1]) if own else LIMIT_S.get(group, DEFAULT_LIMIT_S)
        yield Case(group, path.stem.removeprefix("test_"), "pytest", [str(path)], limit_s, {})


def find_cases(build):
    cases = list(meson_cases(build)) + list(pytest_cases())
    rank = {group: place for place, group in enumerate(ORDER)}
    return sorted(cases, key=lambda case: (rank.get(case.group, len(ORDER)), case.group, case.name))


def names_of(case):
    return {case.group, case.name, case.name.removeprefix(case.group + "_"),
            case.group + "/" + case.name}


def select(cases, wanted, skip, known_only=False):
    if known_only and wanted:
        known = set().union(*(names_of(case) for case in cases)) if cases else set()
        for name in set(wanted) - known:
            print(f"suite {name} is not there")
        wanted = [name for name in wanted if name in known]
        if not wanted:
            return []
    chosen = [case for case in cases if not names_of(case) & set(skip)]
    if not wanted:
        return [case for case in chosen if case.group not in NOT_QUICK]
    unknown = [name for name in wanted if not any(name in names_of(case) for case in cases)]
    if unknown:
        groups = sorted({case.group for case in cases})
        sys.exit(f"unknown suite: {' '.join(unknown)}; there are: {' '.join(groups)}, and what "
                 "--list shows in them")
    return [case for case in chosen if names_of(case) & set(wanted)]


def command_of(case, scratch, xml_path, options):
    if case.kind == "criterion":
        return case.command + [f"--xml={xml_path}"]
    if case.kind == "main":
        return case.command
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider",
               f"--junitxml={xml_path}", f"--basetemp={scratch}/pytest",
               "-o", "faulthandler_timeout=120"]
    marks = [] if options.slow else ["not slow"]
    if options.marks:
        marks.append(f"({options.marks})")
    if marks:
        command += ["-m", " and ".join(marks)]
    return command + case.command


def environment_of(case, build, scratch):
    env = dict(os.environ, **case.env)
    env.update(BUILD=str(build), HINTFS_BUILD=str(build), HINTFS_ROOT=str(TESTS.parent),
               TMPDIR=str(scratch), PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8")
    logs = env.get("SANITIZER_LOGS")
    if logs:
        # Process numbers start afresh in every cage: without the case's name, logs would collide.
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
            env[name] = f"{env.get(name, '')}:log_path={logs}/{case.group}-{case.name}".lstrip(":")
    return env


def parse_xml(path):
    """Counts of a JUnit file; None when there is none or it is cut off."""
    try:
        tree = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    result = Result()
    for test in tree.iter("testcase"):
        name = test.get("name", "?")
        bad = test.find("failure") if test.find("failure") is not None else test.find("error")
        skip = test.find("skipped")
        if bad is not None:
            result.fail(name, "", bad.get("message") or bad.text or bad.get("type") or "failed")
        elif skip is not None or test.get("status") == "SKIPPED":
            result.skipped += 1
            why = skip.get("message", "") if skip is not None else ""
            result.reasons.append(f"skipped {name}: {why}".splitlines()[0])
        else:
            result.passed += 1
    return result


def judge(case, status, xml_path, output):
    """The result of a case from its exit status and what it wrote."""
    lines = output.strip().splitlines() or ["no output"]
    telling = next((line for line in lines if TELLING.search(line)), lines[-1])
    failed = Result()
    if case.kind == "main":
        if status == 0:
            return Result(passed=1)
        if status == 77:
            return Result(skipped=1, reasons=[f"skipped {case.name}: {lines[-1]}"])
        failed.fail(case.name, f"status {status}", f"status {status}: {telling}")
        return failed
    result = parse_xml(xml_path)
    if result is None:
        failed.fail(case.name, f"status {status}, no results", f"status {status}, no results: {telling}")
        return failed
    nothing_selected = case.kind == "pytest" and status == 5 and "deselected" in lines[-1]
    if nothing_selected:
        return result
    if status != 0 and result.failed == 0:
        result.fail(case.name, f"status {status} though no test failed", f"status {status} though no test failed: {telling}")
    elif result.passed + result.failed + result.skipped == 0:
        result.fail(case.name, "ran no test")
    return result


def run_caged(case, command, env, log, factor):
    """Exit status of the command; negative for a signal, 124 for the limit."""
    limit_s = case.limit_s * factor
    caged = [sys.executable, str(HERE / "cage.py"), str(limit_s), *command]
    if os.geteuid() == 0:
        caged = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                 "--kill-child", "--mount-proc", *caged]
    process = subprocess.Popen(caged, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                               cwd=case.folder, start_new_session=True)
    try:
        return process.wait(limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_case(case, build, logs, options):
    # /var/tmp: a disk file system; block counts and page cache there are as in real life.
    base = os.environ.get("TMPDIR") or "/var/tmp"
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"hintfs-{case.name}-", dir=base))
    scratch.chmod(0o755)  # tests that drop their privileges pass through
    log_path = logs / f"{case.group}-{case.name}.log"
    xml_path = logs / f"{case.group}-{case.name}.xml"
    xml_path.unlink(missing_ok=True)
    command = command_of(case, scratch, xml_path, options)
    started = time.monotonic()
    try:
        with open(log_path, "wb") as log:
            status = run_caged(case, command, environment_of(case, build, scratch), log,
                               options.limit_factor)
    finally:
        if not options.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    output = log_path.read_text(errors="replace")
    result = judge(case, status, xml_path, output)
    result.failures = [f"{case.group}/{case.name} {failure}" for failure in result.failures]
    took_s = time.monotonic() - started
    print(f"{case.group}/{case.name}: {result} ({took_s:.1f} s)", flush=True)
    if result.failed and not options.quiet:
        print("\n".join("    " + line for line in output.splitlines()[-TAIL_LINES:]))
    for reason in result.reasons[:40]:
        print(f"    {reason}")
    sys.stdout.flush()
    return result


def print_failures(failures):
    """The end of the output tells what failed; .ci/run collects these lines."""
    for failure in failures[:LIST_LINES]:
        print(f"FAILED {failure}")
    if len(failures) > LIST_LINES:
        print(f"and {len(failures) - LIST_LINES} more failures")


def parse_options():
    parser = argparse.ArgumentParser(
        prog="tests/run.sh", description="Runs the quick suites, or those named.",
        epilog="Environment: BUILD (build directory), SETUP=skip (do not build first), "
               "JOBS (compilers at once), SANITIZER_LOGS (folder for sanitizers' reports). "
               "Logs go to BUILD/test-logs.")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--build", default="build", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="name the suites and leave")
    parser.add_argument("--slow", action="store_true", help="also pytest cases marked slow")
    parser.add_argument("--marks", default="", help="pytest -m expression")
    parser.add_argument("--skip", action="append", default=[], metavar="SUITE")
    parser.add_argument("--known", action="store_true",
                        help="pass over suites that there are not")
    parser.add_argument("--kind", action="append", choices=["criterion", "main", "pytest"])
    parser.add_argument("--keep", action="store_true", help="keep the scratch folders")
    parser.add_argument("--quiet", action="store_true", help="no output of failed cases")
    parser.add_argument("--limit-factor", type=float, default=1.0, metavar="X",
                        help="all limits times X (sanitizers)")
    return parser.parse_intermixed_args()


def main():
    options = parse_options()
    build = pathlib.Path(options.build).resolve()
    cases = select(find_cases(build), options.suites, options.skip, options.known)
    if options.kind:
        cases = [case for case in cases if case.kind in options.kind]
    if options.list:
        for case in cases:
            print(f"{case.group}/{case.name} ({case.kind})")
        return 0
    logs = build / "test-logs"
    logs.mkdir(exist_ok=True)
    total = Result()
    started = time.monotonic()
    if not cases:
        total.fail("no such case", "nothing ran")
    interrupted = False
    for sign in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in a background job of a shell
        signal.signal(sign, signal.default_int_handler)
    try:
        for case in cases:
            total.add(run_case(case, build, logs, options))
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted")
    print(f"took {time.monotonic() - started:.0f} s, logs in {logs}")
    print_failures(total.failures)
    print(total, flush=True)
    if interrupted:
        return 130
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
