#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One check on a machine with a GPU (at most 3 minutes): that libhintfs reports and reaches `cuda`, that bytes on the device are
# the files' bytes, and host-to-device GB/s beside plain cudaMemcpy. Elsewhere it says why it is skipped: exit 77.
#
#   tests/gpu/run.sh              compiles what it needs with cc (no meson, no libfuse, no network)
#   DATA=DIR tests/gpu/run.sh     reads s0 ... s7 from DIR (a mount, say) instead of files made here
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/hintfs-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT

if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1 && ! ls /dev/dxg >/dev/null 2>&1; then
    echo "gpu: skipped: no NVIDIA device node on this machine"
    exit 77
fi
command -v "${CC:-cc}" >/dev/null || { echo "gpu: skipped: no C compiler"; exit 77; }

cd "$root"
check=
header=/usr/local/cuda/include
[ -e "$header/cuda_runtime_api.h" ] && check="tools/preload/cuda_abi_check.c -isystem $header"
sources=$(find tools/preload -name '*.c' ! -name main.c ! -name cuda_abi_check.c)
# shellcheck disable=SC2086
"${CC:-cc}" -std=gnu11 -O2 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DHINTFS_VERSION='"gpu"' -I. -pthread -o "$work/gpu_preload" \
    tests/gpu/gpu_preload.c $sources sched/brace.c sched/parse*.c $check -ldl

data=${DATA:-$work/data}
if [ ! -e "$data/s0" ]; then
    mkdir -p "$data"
    for i in 0 1 2 3 4 5 6 7; do head -c $((100000000 + i * 4097)) /dev/urandom >"$data/s$i"; done
fi
rc=0
timeout 150 "$work/gpu_preload" "$data" || rc=$?
case $rc in
0) echo "gpu: passed" ;;
77) echo "gpu: skipped: see the reason above" ;;
*) echo "gpu: FAILED (status $rc)" ;;
esac
exit $rc
