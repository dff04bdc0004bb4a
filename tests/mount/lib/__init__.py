# SPDX-License-Identifier: Apache-2.0
"""Helpers of the mount suite: processes, mounts, the daemon, trees, pattern files, slowfs."""
