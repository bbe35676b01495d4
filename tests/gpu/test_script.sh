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

# Check that no line of the last run is like the pattern $1.
expect_none() {
    num_checked=$((num_checked + 1))
    if grep -qE "$1" "$scratch/out"; then
        echo "a line like $1 in:" >&2
        cat "$scratch/out" "$scratch/err" >&2
        num_failed=$((num_failed + 1))
    fi
}

# Check that the last line of the last run is like the pattern $1.
expect_last() {
    num_checked=$((num_checked + 1))
    if ! tail -n 1 "$scratch/out" | grep -qE "$1"; then
        echo "the last line is not like $1:" >&2
        cat "$scratch/out" "$scratch/err" >&2
        num_failed=$((num_failed + 1))
    fi
}

# Run the script with the arguments given, where there are no tools but those of $scratch/tools.
run() {
    PATH=$scratch/tools sh "$script" "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
}

# Make the program $1 that does what the shell text $2 says; and a tool of others.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

tool() {
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/tools/$1"
    chmod +x "$scratch/tools/$1"
}

mkdir "$scratch/bin" "$scratch/tools" || exit 2
# What every machine has; of CUDA's tools and python3 this one may have any.
for name in sh awk cat chmod date dirname env grep head mkdir mktemp nproc rm sed sleep tail \
    timeout tr; do
    ln -s "$(command -v $name)" "$scratch/tools/$name" || exit 2
done
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

# All shares together are the limit, of checks and of measurements.
for what in "" --bench; do
    # Nothing, or an option.
    # shellcheck disable=SC2086
    run --list $what
    expect 0 '^ +[0-9]+  probe$' '^ +[0-9]+  clocks$'
    num_checked=$((num_checked + 1))
    awk '{ sum += $1 } END { exit !(NR > 8 && sum == 240) }' "$scratch/out" || {
        echo "the shares are not 240 seconds:" >&2
        cat "$scratch/out" >&2
        num_failed=$((num_failed + 1))
    }
done

program gpu_probe 'echo "{\"phase\":\"probe\",\"status\":\"no device\"}"; exit 3'
run --binaries "$scratch/bin"
expect 3 '^\{"phase":"probe","status":"no device"\}$' \
    '^\{"phase":"probe","status":"no-device","seconds":[0-9]+\}$' \
    '^\{"phase":"summary","status":"no-device",'
expect_last '^passed 0, skipped 1: everything \(no CUDA device\)$'

for name in gpu_graphs gpu_order gpu_items test_transfer test_attention_merge \
    test_attention_write test_attention_refuse gpu_instances test_attention \
    test_attention_bitwise gpu_probe bench_attention; do
    program $name 'echo "{\"checks\":1}"'
done
# shellcheck disable=SC2016
program gpu_wrappers 'test "$1" = --expect && test -n "$2"'
program gpu_large 'echo "{\"phase\":\"large\",\"status\":\"skipped\"}"; exit 77'
program test_attention_merge 'echo "[  PASSED  ] 3 test(s)."'
run --binaries "$scratch/bin"
expect 0 '"phase":"wrappers","status":"passed"' '"phase":"large","status":"skipped"' \
    '"suite merge","status":"passed","seconds":[0-9]+,"detail":"3 passed, 0 failed, 0 skipped"' \
    '"phase":"summary","status":"passed"' '^\{"checks":1\}$' \
    '"sanitizer memcheck","status":"skipped","seconds":0,"detail":"there is no compute-sanitizer"'
expect_last "^passed 12, skipped 5: clocks \\(there is no nvidia-smi\\); \
large \\(gives no reason\\); \
sanitizer memcheck, sanitizer racecheck, sanitizer synccheck \\(there is no compute-sanitizer\\)$"

# Everything that can go wrong with a phase; what comes after it runs all the same. One that does
# not end when it is asked to takes all the time there is: the others have none, and say so.
program gpu_graphs 'echo "what \"it\" said" >&2; exit 1'
program gpu_order 'kill -SEGV $$'
program gpu_items 'trap "" TERM; sleep 20'
program test_transfer 'echo "[  PASSED  ] 0 test(s)."'
program test_attention_write 'echo "[  PASSED  ] 5 test(s)."
echo "[  FAILED  ] 3 test(s), listed below:"; exit 3'
program test_attention_merge 'echo "[  FAILED  ] 256 test(s), listed below:"; exit 0'
rm "$scratch/bin/test_attention_refuse"
run --binaries "$scratch/bin" --log "$scratch/log" --limit 4
expect 1 '"phase":"graphs","status":"failed","seconds":[0-9]+,"detail":"exit status 1"' \
    '"phase":"order","status":"failed"' '"phase":"items","status":"timeout"' \
    '"phase":"suite attention","status":"skipped","seconds":0,"detail":"no time left of 4 s"' \
    '"phase":"summary","status":"failed"'
expect_last '^failed 3: graphs, order, items; passed 2, skipped .*, suite attention, .* \(no time'
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

# A phase that hangs has failed and takes nobody else's time; neither does one that is killed, or
# that no longer finds the device.
for name in gpu_graphs gpu_items test_transfer test_attention_write test_attention_merge \
    test_attention_refuse; do
    program $name 'exit 0'
done
program gpu_wrappers 'sleep 20'
program gpu_order 'kill -KILL $$'
program test_transfer 'exit 3'
run --binaries "$scratch/bin" --limit 12
expect 1 '"wrappers","status":"timeout","seconds":[0-9]+,"detail":"longer than [01]\.[0-9] s"' \
    '"phase":"order","status":"failed","seconds":[0-9]+,"detail":"exit status 137"' \
    '"phase":"suite transfer","status":"no-device"' '"phase":"suite bitwise","status":"passed"'
expect_last '^failed 3: wrappers, order, suite transfer; passed 9, skipped 5: '
for name in gpu_wrappers gpu_order test_transfer; do
    program $name 'exit 0'
done

# A sanitizer: what it finds is a failure, also where it was cut off afterwards; that it is slow, or
# cannot be used on this machine, is not; one that ran nothing has not passed.
banner='echo "========= COMPUTE-SANITIZER"'
tests='echo "[  PASSED  ] 4 test(s)."'
sanitize() {
    tool compute-sanitizer "$1"
    run --binaries "$scratch/bin" --only sanitizer --limit "${2:-60}"
}
sanitize "$banner; $tests; echo '========= ERROR SUMMARY: 0 errors'"
expect 0 '"sanitizer racecheck","status":"passed",.*"4 passed, 0 failed, 0 skipped"'
expect_last '^passed 4, skipped 1: clocks '
sanitize "$banner; echo '========= Invalid __global__ write of size 4 bytes'; $tests
echo '========= ERROR SUMMARY: 1 error'; exit 9"
expect 1 '"sanitizer memcheck","status":"failed",.*"exit status 9; 4 passed, 0 failed, 0 skipped"'
expect_last '^failed 3: sanitizer memcheck, sanitizer racecheck, sanitizer synccheck; passed 1, '
sanitize "$banner; $tests; echo '========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)'"
expect 1 '"sanitizer racecheck","status":"failed"'
sanitize "$banner; echo '[  FAILED  ] 1 test(s), listed below:'; exit 1"
expect 1 '"sanitizer memcheck","status":"failed",.*"exit status 1; 0 passed, 1 failed, 0 skipped"'
sanitize "$banner; echo '========= ERROR SUMMARY: 0 errors'"
expect 1 '"sanitizer memcheck","status":"failed",.*"nothing was tested"'
sanitize "$banner; echo '========= Error: Device not supported by this version.'; exit 1"
expect 0 '"sanitizer memcheck","status":"skipped",.*"Device not supported by this version\."'
expect_last 'sanitizer synccheck \(Device not supported by this version\.\)$'
expect_none '"sanitizer.*"status":"passed"'
sanitize "$banner; kill -SEGV \$\$"
expect 1 '"sanitizer memcheck","status":"failed",.*"exit status 139"'
sanitize "$banner; sleep 20" 4
expect 0 '"sanitizer memcheck","status":"skipped",.*"longer than [0-4]\.[0-9] s"'
expect_last '^passed 1, skipped 4: clocks .*; sanitizer memcheck \(longer than '
sanitize "$banner; echo '========= Invalid __shared__ read of size 2 bytes'; sleep 20" 4
expect 1 '"sanitizer memcheck","status":"failed"'
expect_last '^failed [1-3]: sanitizer memcheck'

# A profiler: without the permission to read counters it is skipped, whatever it returns; but a
# wrong result, a crash or a profile of nothing is a failure.
forbidden='==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU'
profile() {
    tool ncu "while [ \$# -gt 1 ]; do [ \$1 != --log-file ] || log=\$2; shift; done
$1"
    run --binaries "$scratch/bin" --bench --only "profile ncu"
}
for status in 0 1 255; do
    profile "echo '$forbidden' >\$log; exit $status"
    expect 0 '"phase":"profile ncu","status":"skipped",.*"ERR_NVGPUCTRPERM - The user does not'
    expect_last '^passed 1, skipped 2: clocks .*; profile ncu \(ERR_NVGPUCTRPERM - The user does'
done
profile "echo '$forbidden' >\$log
echo 'decode: the CUDA device differs from the CPU device' >&2; exit 1"
expect 1 '"phase":"profile ncu","status":"failed","seconds":[0-9]+,"detail":"exit status 1"'
profile "echo '$forbidden' >\$log; kill -SEGV \$\$"
expect 1 '"phase":"profile ncu","status":"failed"'
profile "echo '==WARNING== No kernels were profiled.' >\$log"
expect 1 '"phase":"profile ncu","status":"failed",.*"no kernel was recorded"'
profile "echo '\"ID\",\"Kernel Name\"' >\$log"
expect 0 '"phase":"profile ncu","status":"passed"'

# The clocks; and peers, which are skipped where they are slow or not there.
tool nvidia-smi 'echo "a device, 1"'
# shellcheck disable=SC2016
tool python3 'echo "{\"phase\": \"peers\", \"status\": \"skipped\", \"reason\": \"no $3\"}"
exit 77'
run --binaries "$scratch/bin" --bench --only peers
expect 0 '"phase":"clocks","status":"measured".*a device, 1"'
expect_last '^passed 1, skipped 2: bench peers torch \(no torch\); bench peers flashinfer \(no '
tool nvidia-smi 'echo "no driver"; exit 9'
tool python3 'echo "{\"bench\":1}"; sleep 20'
run --binaries "$scratch/bin" --bench --only "peers torch" --limit 4
expect 0 '^\{"bench":1\}$' '"bench peers torch","status":"skipped",.*"longer than [0-4]\.[0-9] s"'
expect_last '^passed 1, skipped 2: clocks \(nvidia-smi says nothing: no driver\); bench peers '
tool python3 'echo "Traceback"; exit 1'
run --binaries "$scratch/bin" --bench --only "peers torch"
expect 1 '"phase":"bench peers torch","status":"failed",.*"exit status 1"'

# Measuring: every line of the bench comes through.
program bench_attention 'echo "{\"bench\":\"attention\",\"case\":\"$*\"}"'
run --binaries "$scratch/bin" --bench --small --only "bench d"
expect 0 '^\{"bench":"attention","case":"--device cuda --json .*--decode"\}$' \
    '"phase":"bench decode","status":"passed"'
program bench_attention 'echo "bench_attention: cuBLAS is left out: no library" >&2'
run --binaries "$scratch/bin" --bench --only "bench decode"
expect 0 '"phase":"bench decode","status":"passed"'
expect_last '; bench peers cublas \(no library\)$'

# A real probe, where there is no device.
if [ -n "$probe" ]; then
    cp "$probe" "$scratch/bin/gpu_probe" || exit 2
    run --binaries "$scratch/bin"
    expect 3 '^\{"phase":"probe","status":"no device","reason":"no CUDA device: ' \
        '"phase":"probe","status":"no-device"' '"phase":"summary","status":"no-device"'
fi

echo "$num_checked checks, $num_failed failed"
[ "$num_failed" -eq 0 ]
