#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hintfs-preload as a user runs it, on an ordinary directory: test_program.sh PATH/TO/hintfs-preload
set -u
program=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/hintfs-program-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
fails=0
unset HINTFS_CTL HINTFS_CUDART

# check NAME STATUS PATTERN COMMAND...: exit status and a pattern in the output
check() {
    local name=$1 status=$2 pattern=$3 out rc
    shift 3
    out=$(timeout 60 "$@" 2>&1)
    rc=$?
    if [ $rc -ne "$status" ] || ! grep -q -- "$pattern" <<<"$out"; then
        echo "FAIL $name: status $rc (want $status), no '$pattern' in:"
        echo "$out"
        fails=$((fails + 1))
    fi
}

mkdir "$dir/data" "$dir/data/sub"
for i in 0 1 2 3 4; do head -c $((i * 1500000 + i)) /dev/urandom >"$dir/data/s$i.bin"; done
for i in $(seq 40); do head -c $((i * 331)) /dev/urandom >"$dir/data/sub/f$i"; done
printf 's{0..4}.bin\nsub/\n' >"$dir/order"
total=$(($(cat "$dir"/data/s*.bin "$dir"/data/sub/* | wc -c)))

check whole 0 "45 samples, $total bytes" "$program" --verify -b 1M "$dir/data" "$dir/order"
check backend 0 '^backend host' "$program" --device none "$dir/data" "$dir/order"
check json 0 "\"bytes\":$total,.*\"backend\":\"" "$program" --json -n 7 -b 2M "$dir/data" "$dir/order"
check epochs 0 "135 samples, $((3 * total)) bytes" "$program" -e 3 -w 2 -r 2 -b 1M "$dir/data" "$dir/order"
check absolute 0 '1 samples, 100 bytes' "$program" "$dir/data" - < <(printf '%s/data/s1.bin\t7\t100\n' "$dir")
check missing 3 'nofile: No such file' "$program" "$dir/data" - < <(echo nofile)
check mark 3 'nofile: No such file' "$program" --on-error mark "$dir/data" - < <(printf 'nofile\ns1.bin\n')
check skip 3 '1 samples could not be read' "$program" --on-error skip "$dir/data" - < <(printf 'nofile\ns1.bin\n')
check past-end 3 's1.bin: Numerical result out of range' "$program" "$dir/data" - < <(printf 's1.bin\t1500000\t2\n')
check outside 2 'line 2:' "$program" "$dir/data" - < <(printf '# x\n../x\n')
check directive 2 'line 1:1: ' "$program" "$dir/data" - < <(echo '@nonsense')
check empty 2 'names no file' "$program" "$dir/data" /dev/null
check no-mount 2 'No such file' "$program" "$dir/none" "$dir/order"
check no-order 2 'No such file' "$program" "$dir/data" "$dir/none"
check option 1 'Try: hintfs-preload --help' "$program" --bogus
check extra 1 'more is one word too many' "$program" "$dir/data" "$dir/order" more
check size 1 'a size such as 64M' "$program" -b 12Q "$dir/data" "$dir/order"
check help 0 'Usage: hintfs-preload' "$program" --help

# A control directory beside: what is written to it, and that it is the list with its marks.
mkdir -p "$dir/ctl/streams"
: >"$dir/ctl/order"
printf 's1.bin\t0\t10\n"s2.bin"\t5\t10\n@batch 9\ns3.bin\n' >"$dir/order2"
HINTFS_CTL=$dir/ctl check hints 0 "hints on: $dir/ctl/order" "$program" "$dir/data" "$dir/order2"
printf '@epoch 0\n@batch 0\ns1.bin\t0\t10\ns2.bin\t5\t10\n@batch 9\ns3.bin\n' >"$dir/want"
head -n 6 "$dir/ctl/order" | cmp - "$dir/want" || fails=$((fails + 1))
tail -n 1 "$dir/ctl/order" | grep -qx '@done batch 9' || { echo "FAIL no last mark"; fails=$((fails + 1)); }
HINTFS_CTL=$dir/ctl check stream 0 "hints on: $dir/ctl/streams/rank0" "$program" --stream rank0 "$dir/data" "$dir/order2"
[ ! -e "$dir/ctl/streams/rank0" ] || { echo "FAIL the stream was not removed"; fails=$((fails + 1)); }

# Ctrl-C in the middle of reading a FIFO-paced order would race; a FIFO as ORDER waits for certain.
mkfifo "$dir/fifo"
"$program" "$dir/data" - <"$dir/fifo" >"$dir/out" 2>&1 &
pid=$!
exec 9>"$dir/fifo"
# The program has the other end open once a write into the pipe has been taken out of it.
printf 's1.bin\n' >&9
deadline=$((SECONDS + 30))
until grep -q SigCgt "/proc/$pid/status" && [ $((0x$(awk '/SigCgt/{print $2}' "/proc/$pid/status") & 2)) -ne 0 ]; do
    [ $SECONDS -lt $deadline ] || break
done
kill -INT "$pid"
exec 9>&-
wait "$pid"
rc=$?
[ $rc -eq 130 ] || { echo "FAIL interrupt: status $rc"; cat "$dir/out"; fails=$((fails + 1)); }

[ $fails -eq 0 ] && echo "all passed" || echo "$fails failed"
exit $((fails > 0))
