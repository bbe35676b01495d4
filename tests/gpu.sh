#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# What only a GPU can say: runs programs that were built beforehand (target gpu_binaries) on the
# first CUDA device. It installs nothing and needs no network.
#
# The one idea: each phase is a process of its own with its own time limit and prints one JSON line
# as soon as it has ended, so that a phase that fails, hangs or kills the device's context never
# takes what comes after it along, and what was found is on the screen whenever the machine goes
# away. Its limit is its share of the whole time and what the phases before it left of theirs, so
# that one that hangs does not take the time of the others either.
set -u
LC_ALL=C
export LC_ALL

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2

usage() {
    cat <<'END'
usage: sh tests/gpu.sh [--bench] [--binaries DIR] [--log DIR] [--only TEXT] [--limit SECONDS]
                       [--patience N] [--small] [--list] [--build DIR] [--help]

Checks the CUDA backend on a GPU (at most 4 minutes), or measures it there (--bench, at most
4 minutes more). Prints JSON lines: one for each phase, with its status, and what it measured; and
last of all a line for people, `passed N, skipped M: why`.

  --bench           measure instead of checking: bandwidths, decode, stages, prefill, and PyTorch
                    and FlashInfer beside it where python3 has them
  --binaries DIR    where the programs are (default: this script's folder, else
                    build/gpu/gpu_binaries; built there, if they are nowhere and there is an nvcc)
  --build DIR       only build the programs, in DIR: they are then in DIR/gpu_binaries, which can
                    be taken to another machine; needs cmake, gcc, CMocka and nvcc of CUDA 12 or
                    later, no GPU; PKV_CUDA_ARCHITECTURES says for what (default 90-real)
  --log DIR         keep everything that the phases printed (default: a temporary folder)
  --only TEXT       only phases whose name contains TEXT, and the probe
  --limit SECONDS   of all phases together (default 240), of which each has its share; what cannot
                    begin in time is skipped
  --patience N      all limits N times as long, for slow machines (default 1)
  --small           small sizes, to try the script itself
  --list            only print the share of each phase, in seconds; needs no programs
  --help            this text

A phase that takes longer than its share and all that was left over before fails: a kernel may
hang. A tool of others (compute-sanitizer, ncu, nsys, PyTorch, FlashInfer) that is not here, is not
permitted or takes longer is skipped; what it finds is a failure.

Exit status: 0 everything passed or was skipped for a stated reason, 1 a phase failed, 2 wrong usage
or no programs, 3 no CUDA device.
END
}

bench=0
small=0
list=0
binaries=
build=
log=
only=
limit=240
patience=1
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --bench) bench=1 ;;
    --small) small=1 ;;
    --list) list=1 ;;
    --binaries | --build | --log | --only | --limit | --patience)
        if [ $# -lt 2 ] || [ -z "$2" ]; then
            echo "gpu.sh: $1 wants an argument; try --help" >&2
            exit 2
        fi
        case $1 in
        --binaries) binaries=$2 ;;
        --build) build=$2 ;;
        --log) log=$2 ;;
        --only) only=$2 ;;
        --limit | --patience)
            case $2 in
            *[!0-9]*) echo "gpu.sh: $1 wants a number; try --help" >&2; exit 2 ;;
            esac
            if [ "$1" = --limit ]; then limit=$2; else patience=$2; fi
            ;;
        esac
        shift
        ;;
    *) echo "gpu.sh: unknown argument '$1'; try --help" >&2; exit 2 ;;
    esac
    shift
done

# ---- The programs

# Configure and build in the folder $1; what it prints goes to stderr.
build_programs() {
    root=$(CDPATH='' cd -- "$here/.." && pwd) || return 1
    cmake -S "$root" -B "$1" -DPKV_CUDA=ON -DPKV_WERROR=ON -DPKV_BUILD_EXAMPLES=OFF \
        -DPKV_CUDA_ARCHITECTURES="${PKV_CUDA_ARCHITECTURES:-90-real}" -DPKV_BUILD_FUZZ=OFF >&2 &&
        cmake --build "$1" --target gpu_binaries --parallel "$(nproc 2>/dev/null || echo 2)" >&2
}

if [ -n "$build" ]; then
    build_programs "$build" || { echo "gpu.sh: the build failed" >&2; exit 1; }
    kib=$(du -sk "$build/gpu_binaries" | cut -f1)
    echo "gpu.sh: $kib KiB in $build/gpu_binaries" >&2
    [ "$kib" -le 61440 ] || { echo "gpu.sh: more than 60 MiB to carry" >&2; exit 1; }
    exit 0
fi

# Find the programs, or build them, and make the folder of what they print.
prepare() {
    if [ -z "$binaries" ]; then
        binaries=$here
        if [ ! -x "$binaries/gpu_probe" ]; then
            binaries=$here/../build/gpu/gpu_binaries
            if [ ! -x "$binaries/gpu_probe" ] && command -v nvcc >/dev/null 2>&1; then
                echo "gpu.sh: no programs; building them, which takes minutes" >&2
                build_programs "$here/../build/gpu" ||
                    { echo "gpu.sh: the build failed" >&2; exit 2; }
            fi
        fi
    fi
    if [ ! -x "$binaries/gpu_probe" ]; then
        echo "gpu.sh: there is no gpu_probe in $binaries; see --help" >&2
        exit 2
    fi
    binaries=$(CDPATH='' cd -- "$binaries" && pwd) || exit 2
    if ! command -v timeout >/dev/null 2>&1; then
        echo "gpu.sh: needs the program timeout (GNU coreutils)" >&2
        exit 2
    fi
    if [ -z "$log" ]; then
        log=$(mktemp -d) || exit 2
        trap 'rm -rf "$log"' EXIT
    fi
    mkdir -p "$log" || exit 2
    : >"$log/skipped.txt"
}

[ "$list" -eq 1 ] || prepare

# ---- What is printed

num_passed=0
num_failed=0
num_skipped=0
failures='' # names of what failed

# Print $1 as the inside of a JSON string.
escape() {
    printf '%s' "$1" | tr '\n\t"\\' "  ''" | tr -d '\000-\037'
}

# Print the JSON line of the phase $1 with status $2, seconds $3 and, where there is one, detail $4.
report() {
    printf '{"phase":"%s","status":"%s","seconds":%s' "$(escape "$1")" "$2" "$3"
    [ -z "${4:-}" ] || printf ',"detail":"%s"' "$(escape "$4")"
    echo '}'
}

# Count and report the phase $1 as skipped after $2 seconds because of $3.
skip_phase() {
    num_skipped=$((num_skipped + 1))
    printf '%s\t%s\n' "$1" "$(escape "$3")" >>"$log/skipped.txt"
    report "$1" skipped "$2" "$3"
}

# Count and report the phase $1 as failed, with status $2, seconds $3 and detail $4.
fail_phase() {
    num_failed=$((num_failed + 1))
    failures="$failures${failures:+, }$1"
    report "$@"
}

# Print what was skipped, each reason once: "phase, phase (reason); phase (reason)".
group_skips() {
    awk -F '\t' '{
             if ($2 in names) names[$2] = names[$2] ", " $1
             else { names[$2] = $1; reasons[++num_reasons] = $2 }
         }
         END {
             for (i = 1; i <= num_reasons; i++)
                 printf "%s%s (%s)", i == 1 ? "" : "; ", names[reasons[i]], reasons[i]
         }' "$log/skipped.txt"
}

# The summary with status $1, the line for people, the end with exit status $2.
finish() {
    report summary "$1" $(($(milliseconds) / 1000 - started / 1000)) \
        "$num_passed passed, $num_failed failed, $num_skipped skipped"
    skips=$(group_skips)
    echo "${failures:+failed $num_failed: $failures; }passed $num_passed," \
        "skipped $num_skipped${skips:+: $skips}"
    exit "$2"
}

# ---- Time, in milliseconds

milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# The shares of all phases, in seconds, of checks as of measurements.
all_shares=240
total=$((limit * patience * 1000))
started=$(milliseconds)
granted=0 # shares of the phases so far
shortest=1000

# Set `share`, which is of $1 seconds, and `allowed`, what the phase may take: its share and what
# those before it left of theirs. Return 1 where there is no time for it.
take_share() {
    share=$(($1 * total / all_shares))
    granted=$((granted + share))
    elapsed=$(($(milliseconds) - started))
    allowed=$((granted - elapsed))
    [ "$allowed" -ge "$shortest" ] || allowed=$shortest
    [ "$allowed" -le $((total - elapsed)) ] || allowed=$((total - elapsed))
    [ "$allowed" -ge "$shortest" ]
}

# Run the command that follows for at most `allowed`, of which three seconds are for one that does
# not end when it is asked to.
run_limited() {
    asked=$allowed
    [ "$asked" -le 6000 ] || asked=$((asked - 3000))
    timeout -k 3 "$((asked / 1000)).$(printf '%03d' $((asked % 1000)))" "$@"
}

# ---- Running a phase

is_wanted() {
    case $1 in
    probe | *"$only"*) return 0 ;;
    esac
    return 1
}

# What a CMocka program printed to $1, as counts; nothing where it is none.
count_tests() {
    awk '/^\[  PASSED  \]/ { passed += $4; seen = 1 }
         /^\[  FAILED  \] [0-9]+ test/ { failed += $4; seen = 1 }
         /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
         END {
             if (seen)
                 printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
         }' "$1"
}

# Say whether what the last phase printed shows a failure, however it ended: a failed test or
# check, a wrong result, or what a sanitizer found. Of a sanitizer that was cut off any line
# counts, but for its banner: it had no time for its summary.
shows_failure() {
    if grep -qE '^\[  FAILED  \]|"status":"(check failed|stopped)"' "$printed" ||
        grep -qE 'differs from the CPU device|paged and contiguous differ' "$printed" ||
        grep -qE '^=+ .*SUMMARY: [1-9]' "$printed"; then
        return 0
    fi
    [ "$has_ended" -eq 0 ] && grep '^========= ' "$printed" | grep -qv 'COMPUTE-SANITIZER'
}

# Print why a tool could not do its work on this machine, where it says so.
find_obstacle() {
    grep -v 'Program hit' "$printed" | grep -m 1 -oE \
        'ERR_NVGPUCTRPERM.*|CUPTI_ERROR_INSUFFICIENT_PRIVILEGES.*|Device not supported.*'
}

# Print the reason that a program gave for being skipped.
find_reason() {
    sed -n 's/.*"status": *"skipped", *"reason": *"\([^"]*\)".*/\1/p; s/^skipped: //p' \
        "$printed" | tail -n 1
}

# Set `status` and `detail` of the phase whose command is of the kind $1 and ended with `code`.
judge() {
    detail=$(count_tests "$printed")
    status=failed
    reason="exit status $code"
    # The status of a suite is how many of its tests failed, which may be any number.
    if shows_failure; then
        :
    elif [ "$1" != own ] && { [ "$code" -le 128 ] || [ "$code" -ge 160 ]; } &&
        obstacle=$(find_obstacle); then
        status=skipped
        detail=''
        reason=$obstacle
    elif [ "$has_ended" -eq 0 ]; then
        reason="longer than $((asked / 1000)).$((asked % 1000 / 100)) s"
        if [ "$1" != own ]; then
            status=skipped
        elif [ "$allowed" -lt "$share" ]; then
            status=skipped
            reason="no time left of $((total / 1000)) s: $reason"
        else
            status=timeout
        fi
    elif [ "$code" -eq 77 ]; then
        status=skipped
        reason=$(find_reason)
        reason=${reason:-gives no reason}
    elif [ "$code" -eq 3 ]; then
        status=no-device
        reason=''
    elif [ "$code" -eq 0 ]; then
        judge_success "$1"
    fi
    detail=$reason${reason:+${detail:+; }}$detail
}

# The same where it ended with 0, which is no success where nothing was tested or recorded.
judge_success() {
    case $1:$detail in
    # A suite that found no device, or all of whose cases were skipped.
    *:"0 passed"*) detail="$detail: nothing was tested" ;;
    # A sanitizer that did not start the program, and finds no error in it.
    sanitizer:) detail="nothing was tested" ;;
    *) status=passed ;;
    esac
    if [ "$1" = profiler ] &&
        grep -qE 'No kernels were profiled|does not contain CUDA kernel data' "$printed"; then
        status=failed
        detail="no kernel was recorded"
    fi
    reason=''
}

# Run the phase $2, whose share is $3 seconds: the command that follows, of the kind $1: own, or a
# tool of others (sanitizer, profiler, peer). JSON lines that it prints are passed on, all else is
# kept.
run_kind() {
    kind=$1
    phase=$2
    seconds=$3
    shift 3
    if [ "$list" -eq 1 ]; then
        printf '%4d  %s\n' "$seconds" "$phase"
        return 0
    fi
    has_time=1
    take_share "$seconds" || has_time=0
    is_wanted "$phase" || return 0
    if [ "$has_time" -eq 0 ]; then
        skip_phase "$phase" 0 "no time left of $((total / 1000)) s"
        return 0
    fi
    name=$(echo "$phase" | tr -c 'a-zA-Z0-9\n' '_')
    rm -f "$log/$name".*
    phase_started=$(milliseconds)
    run_limited "$@" >"$log/$name.out" 2>"$log/$name.err"
    code=$?
    took=$((($(milliseconds) - phase_started) / 1000))
    # 137 is also the status of a program that something else killed.
    has_ended=1
    case $code in
    124 | 137) [ $(($(milliseconds) - phase_started)) -lt "$asked" ] || has_ended=0 ;;
    esac
    grep '^{' "$log/$name.out"
    printed=$log/$name.all
    cat "$log/$name".[!a]* >"$printed"
    judge "$kind"
    case $status in
    passed) num_passed=$((num_passed + 1)); report "$phase" passed "$took" "$detail" ;;
    skipped) skip_phase "$phase" "$took" "$detail" ;;
    no-device) fail_phase "$phase" no-device "$took" "$detail" ;;
    *)
        echo "-- $phase: the end of what it printed" >&2
        grep -v '^{' "$printed" | tail -n 25 >&2
        fail_phase "$phase" "$status" "$took" "$detail"
        ;;
    esac
}

run_phase() {
    run_kind own "$@"
}

# A phase of a tool that this machine need not have: run_tool TOOL KIND NAME SECONDS COMMAND...
run_tool() {
    tool=$1
    shift
    if [ "$list" -eq 1 ] || command -v "$tool" >/dev/null 2>&1; then
        run_kind "$@"
        return 0
    fi
    take_share "$3"
    is_wanted "$2" && skip_phase "$2" 0 "there is no $tool"
}

# ---- Phases

# What the driver's own tool says of clocks and power, which the runtime does not tell.
describe_clocks() {
    if [ "$list" -eq 1 ]; then
        printf '%4d  %s\n' 5 clocks
        return 0
    fi
    take_share 5
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        skip_phase clocks 0 "there is no nvidia-smi"
        return 0
    fi
    fields=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit
    fields=$fields,temperature.gpu,ecc.mode.current
    if run_limited nvidia-smi --query-gpu="$fields" --format=csv,noheader >"$log/clocks.out" 2>&1
    then
        report clocks measured 0 "$fields: $(head -n 1 "$log/clocks.out")"
    else
        skip_phase clocks 0 "nvidia-smi says nothing: $(head -n 1 "$log/clocks.out")"
    fi
}

# Some cases of every kind of kernel under a tool of compute-sanitizer: sanitize TOOL SHARD SECONDS
sanitize() {
    run_tool compute-sanitizer sanitizer "sanitizer $1" "$3" env PKV_TEST_SHARD="$2" \
        compute-sanitizer --error-exitcode 9 --tool "$1" "$binaries/gpu_instances"
}

check_phases() {
    large=''
    items=''
    order=''
    graphs=''
    few=0/1
    some=0/1
    if [ "$small" -eq 1 ]; then
        large="--pool-mib 64" items="--items 200" order="--repeats 3 --tries 1 --keys 70"
        graphs="--chunk 64"
        few=5/192
        some=2/8
    fi
    run_phase wrappers 10 "$binaries/gpu_wrappers" --expect "$binaries/wrappers.twins"
    # Options are words of their own.
    # shellcheck disable=SC2086
    run_phase graphs 10 "$binaries/gpu_graphs" $graphs
    # shellcheck disable=SC2086
    run_phase order 15 "$binaries/gpu_order" $order
    # shellcheck disable=SC2086
    run_phase large 20 "$binaries/gpu_large" $large
    # shellcheck disable=SC2086
    run_phase items 15 "$binaries/gpu_items" $items
    run_phase "suite transfer" 8 "$binaries/test_transfer"
    run_phase "suite merge" 8 "$binaries/test_attention_merge"
    run_phase "suite write" 8 "$binaries/test_attention_write"
    run_phase "suite refuse" 6 "$binaries/test_attention_refuse"
    run_phase "suite instances" 35 env PKV_TEST_SHARD="$few" "$binaries/gpu_instances"
    run_phase "suite attention" 30 env PKV_TEST_SHARD="$few" "$binaries/test_attention"
    run_phase "suite bitwise" 20 env PKV_TEST_SHARD="$some" "$binaries/test_attention_bitwise"
    sanitize memcheck 0/24 15
    sanitize racecheck 5/48 10
    sanitize synccheck 1/48 15
}

# PyTorch's and FlashInfer's attention on the same batches, where python3 has them.
bench_peers() {
    peers=$here/peers.py
    [ -r "$peers" ] || peers=$here/gpu/peers.py
    for peer in torch flashinfer; do
        run_tool python3 peer "bench peers $peer" 20 python3 "$peers" --peer $peer
    done
}

bench_phases() {
    threads=$(nproc 2>/dev/null || echo 1)
    [ "$threads" -le 64 ] || threads=64
    set -- --device cuda --json --threads "$threads"
    if [ "$small" -eq 1 ]; then
        set -- "$@" --divide 64 --rounds 1 --only "float16 1 x 128"
        prefill="--only=float16 1 x 64 of"
    else
        prefill=--only=prefill
        set -- "$@" --full
    fi
    run_phase "bench bandwidth" 15 "$binaries/bench_attention" "$@" --only bandwidth
    run_phase "bench decode" 70 "$binaries/bench_attention" "$@" --decode
    # It says so where the machine has no cuBLAS, and goes on.
    if [ -e "$log/bench_decode.err" ]; then
        reason=$(sed -n 's/.*cuBLAS is left out: //p' "$log/bench_decode.err" | head -n 1)
        [ -z "$reason" ] || skip_phase "bench peers cublas" 0 "$reason"
    fi
    run_phase "bench stages" 30 "$binaries/bench_attention" "$@" --stage all
    run_phase "bench prefill" 35 "$binaries/bench_attention" "$@" --prefill "$prefill"
    bench_peers
    metrics=dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    # A large tile without items, then the small tile: contiguous, and the same for a random table.
    # What ncu says of itself is in its log file, too.
    run_tool ncu profiler "profile ncu" 20 ncu --kernel-name regex:attend --launch-count 4 \
        --metrics "$metrics,gpu__time_duration.sum" --csv --log-file "$log/profile_ncu.csv" \
        "$binaries/bench_attention" --device cuda --json --threads "$threads" \
        --divide 1 --rounds 1 --decode --only "decode bfloat16 64 x"
    run_tool nsys profiler "profile nsys" 15 nsys profile --stats=true --force-overwrite=true \
        --output "$log/nsys" \
        "$binaries/bench_attention" --device cuda --json --threads "$threads" \
        --divide 1 --rounds 1 --decode --only "decode bfloat16 16 x"
}

code=0
run_phase probe 10 "$binaries/gpu_probe"
if [ "$code" -eq 3 ]; then
    # Nothing failed: there is nothing to run it on.
    num_failed=0
    failures=''
    num_skipped=1
    printf 'everything\tno CUDA device\n' >"$log/skipped.txt"
    finish no-device 3
fi
describe_clocks
if [ "$bench" -eq 1 ]; then
    bench_phases
else
    check_phases
fi
[ "$list" -eq 0 ] || exit 0
[ "$num_failed" -eq 0 ] || finish failed 1
finish passed 0
