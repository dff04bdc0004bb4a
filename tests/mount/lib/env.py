# SPDX-License-Identifier: Apache-2.0
"""What the suite was started with: build folder, sanitizer, quick or full, and the slack that follows from it.

Used by every module of this folder. Nothing here touches a mount.
"""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("HINTFS_BUILD") or ROOT / "build").resolve()
SANITIZER = os.environ.get("HINTFS_SAN", "")
IS_FULL = os.environ.get("HINTFS_FULL", "") not in ("", "0")
# A sanitized daemon is slower by about this much; every deadline is multiplied by it.
SLACK = 4.0 if SANITIZER else 1.0


def seconds(plain):
    """A deadline, stretched for a sanitized daemon."""
    return plain * SLACK


def scaled(quick, full):
    """The size of a test: the requirement's own figure with HINTFS_FULL=1, else a smaller one."""
    return full if IS_FULL else quick


def binary(*parts):
    """Path of a built program; a missing one is an error, never a reason to skip."""
    path = BUILD.joinpath(*parts)
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is not built: run tools/setup.sh, or name the build folder in HINTFS_BUILD")
    return str(path)


def prog(name):
    return binary("tests", "mount", name)
