#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Sets the machine up, builds, and runs the quick suites: tests/run.sh [SUITE...], where SUITE is a
# folder of tests/ (unit, stress, mount, ...) or one program or file in it (pool, control, ...).
# The last line is "N passed, N failed, N skipped"; the exit status is 0 only without a failure.
# `tests/run.sh --list` names the suites, `--help` lists the options and environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export BUILD="${BUILD:-$here/../build}"
case " $* " in
*" --help "* | *" -h "*) ;;
*)
    # SETUP=skip: the caller has just built.
    if [ "${SETUP:-}" != skip ] && ! "$here/../tools/setup.sh" >&2; then
        echo "setup failed, so no test ran"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
    ;;
esac
python=python3
[ ! -x /usr/bin/python3 ] || python=/usr/bin/python3 # the one that Debian's pytest belongs to
exec "$python" "$here/runner/suites.py" --build "$BUILD" "$@"
