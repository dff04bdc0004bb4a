#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints "LAYER NAME" for every test_NAME.c beside this script: the layer is the highest one whose
# headers the test includes. Called by meson.build at configure time.
set -eu
cd "$(dirname "$0")"
for file in test_*.c; do
    [ -e "$file" ] || continue
    name=${file#test_}
    name=${name%.c}
    has() { grep -Eq "^#include \"$1" "$file"; }
    if has fs/ || { has cache/[a-z_]*\\.h && has sched/; }; then
        layer=fs
    elif has 'cache/[a-z_]*\.h'; then
        layer=cache
    elif has sched/; then
        layer=sched
    else
        layer=base
    fi
    echo "$layer $name"
done
