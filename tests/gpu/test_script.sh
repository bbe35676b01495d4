#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# tests/gpu.sh itself, over programs that do nothing but end in a certain way: what it prints, what
# it returns, and that no phase keeps the next one from running. No GPU, no compiler.
# usage: test_script.sh [PROBE]      PROBE: a gpu_probe that finds no device, asked as well
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: test_script.sh [PROBE]"; exit 0 ;;
esac
probe=${1:-}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
script=$here/../gpu.sh
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_checked=0
num_failed=0

# Check that the last run returned $1 and that each further argument is a line of it, as a pattern.
expect() {
    wanted=$1
    shift
    num_checked=$((num_checked + 1))
    if [ "$code" -ne "$wanted" ]; then
        echo "exit status $code, not $wanted, of:" >&2
        cat "$scratch/out" "$scratch/err" >&2
        num_failed=$((num_failed + 1))
    fi
    for pattern; do
        num_checked=$((num_checked + 1))
        if ! grep -qE "$pattern" "$scratch/out"; then
            echo "no line like $pattern in:" >&2
            cat "$scratch/out" "$scratch/err" >&2
            num_failed=$((num_failed + 1))
        fi
    done
}

# Run the script with the arguments given.
run() {
    sh "$script" "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
}

# Make the program $1 that does what the shell text $2 says.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

mkdir "$scratch/bin" || exit 2
run --help
expect 0 '^usage: sh tests/gpu.sh'
run --nonsense
expect 2
run --limit soon
expect 2
run --log
expect 2
run --binaries "$scratch/bin"
expect 2

program gpu_probe 'echo "{\"phase\":\"probe\",\"status\":\"no device\"}"; exit 3'
run --binaries "$scratch/bin"
expect 3 '^\{"phase":"probe","status":"no device"\}$' \
    '^\{"phase":"probe","status":"no-device","seconds":[0-9]+\}$' \
    '^\{"phase":"summary","status":"no-device",'

for name in gpu_graphs gpu_order gpu_items test_transfer test_attention_merge \
    test_attention_write test_attention_refuse gpu_instances test_attention \
    test_attention_bitwise gpu_probe bench_attention; do
    program $name 'echo "{\"checks\":1}"'
done
program gpu_wrappers 'test "$1" = --expect && test -n "$2"'
program gpu_large 'echo "{\"phase\":\"large\",\"status\":\"skipped\"}"; exit 77'
program test_attention_merge 'echo "[  PASSED  ] 3 test(s)."'
run --binaries "$scratch/bin"
expect 0 '"phase":"wrappers","status":"passed"' '"phase":"large","status":"skipped"' \
    '"suite merge","status":"passed","seconds":[0-9]+,"detail":"3 passed, 0 failed, 0 skipped"' \
    '"phase":"summary","status":"passed"' '^\{"checks":1\}$'

# Everything that can go wrong with a phase; what comes after it runs all the same.
program gpu_graphs 'echo "what \"it\" said" >&2; exit 1'
program gpu_order 'kill -SEGV $$'
program gpu_items 'sleep 20'
program test_transfer 'echo "[  PASSED  ] 0 test(s)."'
program test_attention_write 'echo "[  PASSED  ] 5 test(s)."
echo "[  FAILED  ] 3 test(s), listed below:"; exit 3'
program test_attention_merge 'echo "[  FAILED  ] 256 test(s), listed below:"; exit 0'
rm "$scratch/bin/test_attention_refuse"
run --binaries "$scratch/bin" --log "$scratch/log" --limit 4
expect 1 '"phase":"graphs","status":"failed","seconds":[0-9]+,"detail":"exit status 1"' \
    '"phase":"order","status":"failed"' '"phase":"items","status":"timeout"' \
    '"phase":"suite attention","status":"failed","seconds":0,"detail":"no time left of 4 s"' \
    '"phase":"summary","status":"failed"'
program gpu_items 'exit 0'
run --binaries "$scratch/bin" --only suite
expect 1 '"suite transfer","status":"failed".*"0 passed, 0 failed, 0 skipped: nothing was tested"' \
    '"suite write","status":"failed".*"exit status 3; 5 passed, 3 failed, 0 skipped"' \
    '"suite merge","status":"failed".*"exit status 0; 0 passed, 256 failed, 0 skipped"' \
    '"suite refuse","status":"failed","seconds":[0-9]+,"detail":"exit status 127"' \
    '"suite bitwise","status":"passed"' '"phase":"summary","status":"failed"'
num_checked=$((num_checked + 2))
grep -q '"phase":"graphs"' "$scratch/out" && num_failed=$((num_failed + 1))
grep -q 'what "it" said' "$scratch/log/graphs.err" || num_failed=$((num_failed + 1))

# Measuring: every line of the bench comes through.
program bench_attention 'echo "{\"bench\":\"attention\",\"case\":\"$*\"}"'
run --binaries "$scratch/bin" --bench --small --only "bench d"
expect 0 '^\{"bench":"attention","case":"--device cuda --json .*--decode"\}$' \
    '"phase":"bench decode","status":"passed"'

# A real probe, where there is no device.
if [ -n "$probe" ]; then
    cp "$probe" "$scratch/bin/gpu_probe" || exit 2
    run --binaries "$scratch/bin"
    expect 3 '^\{"phase":"probe","status":"no device","reason":"no CUDA device: ' \
        '"phase":"probe","status":"no-device"' '"phase":"summary","status":"no-device"'
fi

echo "$num_checked checks, $num_failed failed"
[ "$num_failed" -eq 0 ]
