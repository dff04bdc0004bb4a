# SPDX-License-Identifier: Apache-2.0
"""mt_probe as an object: single system calls in a process that is already running, each with its time and a deadline."""
import os
import select
import signal
import subprocess
import time

from . import env, procs


class Probe:
    def __init__(self):
        self.proc = subprocess.Popen([env.prog("mt_probe")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     start_new_session=True)
        self._left = b""

    def ask(self, *words, timeout=10):
        """(seconds, answer): answer is an int, or the errno's name. Expired when nothing comes."""
        self.proc.stdin.write(("\t".join(map(str, words)) + "\n").encode())
        self.proc.stdin.flush()
        deadline = time.monotonic() + env.seconds(timeout)
        while b"\n" not in self._left:
            if not select.select([self.proc.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise procs.Expired(f"{words}: no answer within {env.seconds(timeout):g} s")
            self._left += os.read(self.proc.stdout.fileno(), 4096)
        line, self._left = self._left.split(b"\n", 1)
        took_us, answer = line.decode().split()
        return int(took_us) / 1e6, int(answer) if answer.lstrip("-").isdigit() else answer

    def close(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.proc.stdin.close()
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            pass
