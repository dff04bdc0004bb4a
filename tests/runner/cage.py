#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cage.py LIMIT_S COMMAND...: the first process of a test case's namespaces.

suites.py starts it by unshare as PID 1 of a mount and PID namespace of its own. It reaps orphans
(a daemon's death must be visible to the test that waits for it), ends the command at the limit,
and on the way out aborts the FUSE connections that were made inside, so that nothing stays stuck;
the kernel then kills what is left. Without root it only keeps the limit.
"""
import os
import re
import signal
import subprocess
import sys
import time

TERM_GRACE_S = 5
FUSECTL = "/sys/fs/fuse/connections"


def fuse_mounts(pid="self"):
    """(minor, mount point, type) of every FUSE mount that this process sees."""
    found = []
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.split()
                fs_type = fields[fields.index("-") + 1]
                if fs_type == "fuse" or fs_type.startswith("fuse."):
                    found.append((fields[2].split(":")[1], fields[4], fs_type))
    except OSError:
        pass  # it has just ended
    return found


def all_pids():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def detach_inherited():
    """Our copies of somebody else's test mounts would keep them alive after their unmount."""
    for _, point, fs_type in fuse_mounts():
        if fs_type in ("fuse.hintfs", "fuse.slowfs"):
            # The kernel writes blanks and the like as octal escapes.
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point)
            subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)


def abort_new_connections(before):
    """Also those made in a mount namespace further in."""
    new = {minor for pid in all_pids() for minor, _, _ in fuse_mounts(pid)} - before
    if not new:
        return
    if not os.listdir(FUSECTL):
        subprocess.run(["mount", "-t", "fusectl", "none", FUSECTL], check=False)
    for minor in new:
        try:
            with open(f"{FUSECTL}/{minor}/abort", "w", encoding="ascii") as abort:
                abort.write("1")
        except OSError:
            pass  # it went away by itself


def read_proc(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as text:
            return text.read().strip().replace("\0", " ")
    except OSError:
        return ""


def show_processes():
    """What hangs, for the log: command and kernel stack of everything in the namespace."""
    for pid in all_pids():
        if pid != os.getpid():
            print(f"cage: {pid} {read_proc(pid, 'cmdline')[:160]}")
            print(read_proc(pid, "stack"), flush=True)


def wait_for(child, deadline):
    """Reaps everything until the child ends: its wait status, or None at the deadline."""
    while time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, max(0.0, min(1.0, deadline - time.monotonic())))
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == child:
                return status
            if pid == 0:
                break
    return None


def end_at_limit(child, limit_s):
    print(f"cage: over the limit of {limit_s:.0f} s", flush=True)
    show_processes()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child, sign)
        except ProcessLookupError:
            pass
        if wait_for(child, time.monotonic() + TERM_GRACE_S) is not None:
            return


def start(command):
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        # A shell ignores these for its background jobs, Python SIGPIPE: no test expects that.
        for sign in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(sign, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"cage: {command[0]}: {error.strerror}", flush=True)
        os._exit(127)
    return child


def main():
    limit_s = float(sys.argv[1])
    alone = os.getpid() == 1
    if alone:
        detach_inherited()
    before = {minor for minor, _, _ in fuse_mounts()}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = start(sys.argv[2:])
    status = wait_for(child, time.monotonic() + limit_s)
    if status is None:
        end_at_limit(child, limit_s)
    if alone:
        abort_new_connections(before)
    if status is None:
        return 124
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        print(f"cage: killed by {signal.Signals(-code).name}", flush=True)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
