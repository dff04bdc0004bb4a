#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pattern_test.sh PATTERN: the program tells right from wrong by every way of reading.
set -u
pattern=$1
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/pattern.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# expect STATUS TEXT COMMAND...: its exit status, and TEXT somewhere in what it prints
expect() {
    want=$1 text=$2
    shift 2
    "$@" >"$dir/out" 2>&1
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -- "$text" "$dir/out"; then
        echo "FAILED: $* gave $got, wanted $want with '$text':"
        cat "$dir/out"
        failed=1
    fi
}

modes="read pread readv mmap-shared mmap-private direct sendfile splice copy_file_range uring"
f=$dir/file
for size in 0 1 7 4095 4096 4097 1048577 3000001; do
    "$pattern" make "$f" $size --id 5 --version 2 || failed=1
    for mode in $modes; do
        "$pattern" read "$f" --mode $mode --id 5 --version 2 >"$dir/out" 2>&1
        if [ $? -eq 77 ] && [ $mode = uring ]; then # not allowed in this sandbox
            modes=${modes% uring}
            continue
        fi
        expect 0 "ok bytes=$size version=2" "$pattern" read "$f" --mode $mode --id 5 --version 2
        expect 0 "ok bytes=$size" "$pattern" read "$f" --mode $mode --id 5 --any-one-version \
            --block 65536 --random 3
    done
done
expect 0 "bytes=101 " "$pattern" check "$f" --id 5 --version 2 --offset 1001 --length 101
expect 1 "class=other_version.*got_version=2" "$pattern" check "$f" --id 5 --version 3
expect 1 "class=other_file.*got_id=5" "$pattern" check "$f" --id 6 --version 2
for mode in $modes; do # one wrong byte in the last block
    printf '\001' | dd of="$f" bs=1 seek=2999000 conv=notrunc status=none
    expect 1 "offset=2999000 class=garbage" "$pattern" read "$f" --mode $mode --id 5 --version 2
done
"$pattern" make "$f" 3000001 --id 5 --version 2
dd if=/dev/zero of="$f" bs=4096 seek=10 count=1 conv=notrunc status=none
expect 1 "offset=40960 class=zero" "$pattern" check "$f" --id 5 --version 2
expect 1 " zero=512 " "$pattern" check "$f" --id 5 --version 2
dd if="$f" of="$f" bs=4096 skip=3 seek=10 count=1 conv=notrunc status=none
expect 1 "class=other_offset.*got_offset=12288" "$pattern" check "$f" --id 5 --version 2
"$pattern" make "$dir/new" 3000001 --id 5 --version 3
dd if="$dir/new" of="$f" bs=4096 skip=10 seek=10 count=1 conv=notrunc status=none
expect 1 "class=torn.*got_version=3" "$pattern" check "$f" --id 5 --any-one-version
expect 3 "ENOENT" "$pattern" check "$dir/absent"
expect 3 "range ends after size" "$pattern" check "$f" --id 5 --offset 3000000 --length 2
expect 2 "usage" "$pattern" check

marks="1M,2G,4G,1T"
"$pattern" make "$f" 9T --id 9 --version 1 --sparse-marks $marks || failed=1
for mark in 0 1M 2G 4G 1T; do
    case $mark in 0) from=0 ;; 1M) from=0 ;; 2G) from=2146435072 ;; 4G) from=4293918720 ;; *) from=1099510579200 ;; esac
    expect 0 "bytes=2097152 " "$pattern" check "$f" --id 9 --version 1 --sparse-marks $marks \
        --offset $from --length 2M
done
expect 1 "class=zero" "$pattern" check "$f" --id 9 --version 1 --offset 2G --length 1M

[ $failed -eq 0 ] && echo "pattern-program: ok"
exit $failed
