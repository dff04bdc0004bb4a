#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# From nothing to the main job, as root on a fresh machine:
#
#   tools/quickstart.sh                      a demonstration: sample dataset, slow origin, three ways to read it, a table
#   tools/quickstart.sh SOURCE MOUNTPOINT    mounts your dataset and says how to use the mount
#
# Environment: BUILD (build directory, default build), HINTFS_SETUP=0 (everything is built already).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build}

usage() {
    sed -n '4,9s/^# \{0,1\}//p' "$0"
}

case ${1:-} in
-h | --help) usage; exit 0 ;;
esac
if [ $# -ne 0 ] && [ $# -ne 2 ]; then
    usage >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "quickstart: please run it as root (it mounts file systems and installs what is missing)" >&2
    exit 1
fi

if [ "${HINTFS_SETUP:-1}" != 0 ]; then
    echo "quickstart: setting up (the first time takes a minute)"
    BUILD=$build "$root/tools/setup.sh" --quiet
fi

if [ $# -eq 2 ]; then
    mkdir -p "$2"
    "$build/fs/hintfs" "$1" "$2"
    cat <<END

$1 is mounted at $2. Now:

  ls $2                              read it like any directory
  cat order.txt > $2/.ctl/order      say in which order you will read: paths, one a line
  cat $2/.ctl/README                 all that can be written there
  cat $2/.ctl/status                 what it is doing
  $build/tools/hintfs-preload $2 order.txt    batches in page-locked memory
  umount $2                          end it

END
    exit 0
fi

# Mounts made in a namespace of its own are gone with it, whatever happens.
exec unshare --mount --propagation private "$(command -v python3)" "$root/tools/quickstart/demo.py" "$root" "$build"
