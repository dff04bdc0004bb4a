#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a user of libhintfs meets: test_library.sh LIBHINTFS.SO SOURCE_ROOT PRELOAD_PROGRAM
# The library exports its symbol file and nothing else and needs no CUDA; the header compiles alone; without a driver the
# backend says why.
set -u
lib=$1 root=$2 program=$3
dir=$(mktemp -d "${TMPDIR:-/tmp}/hintfs-library-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
fails=0
fail() { echo "FAIL $*"; fails=$((fails + 1)); }

sed -n 's/^\t\t\(hintfs_[a-z_]*\);$/\1/p' "$root/tools/preload/libhintfs.map" | sort >"$dir/want"
nm -D --defined-only "$lib" | sed -n 's/.* T \([^@]*\)@.*/\1/p' | sort >"$dir/have"
cmp -s "$dir/want" "$dir/have" || { fail "exported symbols:"; diff "$dir/want" "$dir/have"; }
[ -s "$dir/want" ] || fail "the symbol file names nothing"
readelf -d "$lib" | grep NEEDED | grep -qi -e cuda -e libfuse && fail "the library is linked with CUDA or libfuse"
sed -n 's/^HINTFS_API.* \**\(hintfs_[a-z_]*\)(.*/\1/p' "$root/tools/preload/hintfs.h" | sort >"$dir/declared"
cmp -s "$dir/want" "$dir/declared" || { fail "declared in hintfs.h:"; diff "$dir/want" "$dir/declared"; }

cat >"$dir/use.c" <<'END'
#include <hintfs.h>
int main(void)
{
	struct hintfs_opts o = HINTFS_OPTS_INIT;
	struct hintfs_loader *l;
	return hintfs_loader_open(&o, &l) < 0 && *hintfs_last_error() ? 0 : 1;
}
END
cp "$dir/use.c" "$dir/use.cc"
for cc in gcc clang; do
    command -v $cc >/dev/null || continue
    $cc -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$root/tools/preload" -fsyntax-only "$dir/use.c" || fail "$cc, C99"
done
for cxx in g++ clang++; do
    command -v $cxx >/dev/null || continue
    echo '#include <hintfs.h>' >"$dir/only.cc"
    $cxx -std=c++17 -Wall -Wextra -Werror -I"$root/tools/preload" -fsyntax-only "$dir/only.cc" || fail "$cxx"
done

echo data >"$dir/file"
unset HINTFS_CUDART HINTFS_CTL
if ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
    echo "not tried here: a machine without an NVIDIA driver (this one has a device)"
else
    # A real runtime without a driver answers 35; no runtime at all cannot be loaded. Both are normal.
    out=$("$program" "$dir" - <<<file) || fail "status $?"
    grep -q -e '^backend host.*no NVIDIA driver.*(35)' -e '^backend host.*cannot load libcudart.so' <<<"$out" || fail "$out"
    "$program" --require-cuda "$dir" - <<<file >/dev/null 2>&1
    [ $? -eq 2 ] || fail "--require-cuda without CUDA: status $?"
fi
if [ -n "${HINTFS_SAN:-}" ]; then
    echo "not tried here: memory that may not be locked (a sanitizer's mlock does nothing and says it did)"
elif [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    # Without the right to lock, and no limit to do it within: plain memory, said so. The order is on stdin, as the
    # user may not read our folder's parent.
    chmod 755 "$dir"
    out=$(ulimit -l 0 && setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
        "$program" --device none "$dir" - <<<file 2>&1) && grep -q '^backend host: .*mlock: ' <<<"$out" ||
        case $out in *"Permission denied"* | *"cannot open shared object"*) echo "not tried here: the build folder is closed to others" ;; *) fail "$out" ;; esac
fi
[ $fails -eq 0 ] && echo "all passed" || echo "$fails failed"
exit $((fails > 0))
