#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# What only a GPU can say: runs programs that were built beforehand (target gpu_binaries) on the
# first CUDA device. It installs nothing and needs no network.
#
# The one idea: each phase is a process of its own with its own time limit and prints one JSON line
# as soon as it has ended, so that a phase that fails, hangs or kills the device's context never
# takes what comes after it along, and what was found is on the screen whenever the machine goes
# away.
set -u
LC_ALL=C
export LC_ALL

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2

usage() {
    cat <<'END'
usage: sh tests/gpu.sh [--bench] [--binaries DIR] [--log DIR] [--only TEXT] [--limit SECONDS]
                       [--patience N] [--small] [--build DIR] [--help]

Checks the CUDA backend on a GPU (at most 4 minutes), or measures it there (--bench, at most
4 minutes more). Prints JSON lines: one for each phase, with its status, and what it measured.

  --bench           measure instead of checking: bandwidths, decode, stages, prefill, and PyTorch
                    and FlashInfer beside it where python3 has them
  --binaries DIR    where the programs are (default: this script's folder, else
                    build/gpu/gpu_binaries; built there, if they are nowhere and there is an nvcc)
  --build DIR       only build the programs, in DIR: they are then in DIR/gpu_binaries, which can
                    be taken to another machine; needs cmake, gcc, CMocka and nvcc of CUDA 12 or
                    later, no GPU; PKV_CUDA_ARCHITECTURES says for what (default 90-real)
  --log DIR         keep everything that the phases printed (default: a temporary folder)
  --only TEXT       only phases whose name contains TEXT, and the probe
  --limit SECONDS   of all phases together (default 240); what does not begin in time fails
  --patience N      the time limit of each phase N times as long, for slow machines (default 1)
  --small           small sizes, to try the script itself
  --help            this text

Exit status: 0 everything passed or was skipped for a stated reason, 1 a phase failed, 2 wrong usage
or no programs, 3 no CUDA device.
END
}

bench=0
small=0
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
    echo "gpu.sh: $(du -sk "$build/gpu_binaries" | cut -f1) KiB in $build/gpu_binaries" >&2
    exit 0
fi
if [ -z "$binaries" ]; then
    binaries=$here
    if [ ! -x "$binaries/gpu_probe" ]; then
        binaries=$here/../build/gpu/gpu_binaries
        if [ ! -x "$binaries/gpu_probe" ] && command -v nvcc >/dev/null 2>&1; then
            echo "gpu.sh: no programs; building them, which takes minutes" >&2
            build_programs "$here/../build/gpu" || { echo "gpu.sh: the build failed" >&2; exit 2; }
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

# ---- Running a phase

started=$(date +%s)
num_passed=0
num_failed=0
num_skipped=0

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

skip_phase() {
    num_skipped=$((num_skipped + 1))
    report "$1" skipped 0 "$2"
}

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

# Run the phase $1 for at most $2 seconds: the command that follows. JSON lines that it prints are
# passed on, all else is kept.
run_phase() {
    phase=$1
    seconds=$(($2 * patience))
    shift 2
    is_wanted "$phase" || return 0
    left=$((limit - ($(date +%s) - started)))
    if [ "$left" -lt 3 ]; then
        num_failed=$((num_failed + 1))
        report "$phase" failed 0 "no time left of $limit s"
        return 0
    fi
    [ "$seconds" -le "$left" ] || seconds=$left
    name=$(echo "$phase" | tr -c 'a-zA-Z0-9\n' '_')
    phase_started=$(date +%s)
    timeout -k 3 "$seconds" "$@" >"$log/$name.out" 2>"$log/$name.err"
    code=$?
    took=$(($(date +%s) - phase_started))
    grep '^{' "$log/$name.out"
    detail=$(cat "$log/$name.out" "$log/$name.err" | count_tests -)
    # The status of a suite is how many of its tests failed, which may be any number.
    has_failures=''
    case $detail in
    '' | *" 0 failed,"*) ;;
    *) has_failures=failures- ;;
    esac
    case $has_failures$code in
    0)
        # A suite that found no device, or all of whose cases were skipped, has tested nothing.
        case $detail in
        "0 passed"*) status=failed; detail="$detail: nothing was tested" ;;
        *) status=passed ;;
        esac
        ;;
    3) status=no-device ;;
    77) status=skipped ;;
    124 | 137) status=timeout; detail="longer than $seconds s${detail:+; }$detail" ;;
    *) status=failed; detail="exit status $code${detail:+; }$detail" ;;
    esac
    case $status in
    passed) num_passed=$((num_passed + 1)) ;;
    skipped) num_skipped=$((num_skipped + 1)) ;;
    *)
        num_failed=$((num_failed + 1))
        if [ "$status" != no-device ]; then
            echo "-- $phase: the end of what it printed" >&2
            cat "$log/$name.out" "$log/$name.err" | grep -v '^{' | tail -n 25 >&2
        fi
        ;;
    esac
    report "$phase" "$status" "$took" "$detail"
}

finish() {
    report summary "$1" "$(($(date +%s) - started))" \
        "$num_passed passed, $num_failed failed, $num_skipped skipped"
    exit "$2"
}

# ---- Phases

# What the driver's own tool says of clocks and power, which the runtime does not tell.
describe_clocks() {
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        report clocks skipped 0 "there is no nvidia-smi"
        return 0
    fi
    fields=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit
    fields=$fields,temperature.gpu,ecc.mode.current
    text=$(timeout -k 3 15 nvidia-smi --query-gpu="$fields" --format=csv,noheader 2>&1 | head -n 1)
    report clocks measured 0 "$fields: $text"
}

# A phase that needs a tool of CUDA's: run_tool TOOL NAME SECONDS COMMAND...
run_tool() {
    tool=$1
    shift
    is_wanted "$1" || return 0
    if command -v "$tool" >/dev/null 2>&1; then
        run_phase "$@"
    else
        skip_phase "$1" "there is no $tool"
    fi
}

# Some cases of every kind of kernel under a tool of compute-sanitizer: sanitize TOOL SHARD SECONDS
sanitize() {
    run_tool compute-sanitizer "sanitizer $1" "$3" env PKV_TEST_SHARD="$2" compute-sanitizer \
        --error-exitcode 9 --tool "$1" "$binaries/gpu_instances"
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
    run_phase wrappers 30 "$binaries/gpu_wrappers" --expect "$binaries/wrappers.twins"
    # Options are words of their own.
    # shellcheck disable=SC2086
    run_phase graphs 30 "$binaries/gpu_graphs" $graphs
    # shellcheck disable=SC2086
    run_phase order 40 "$binaries/gpu_order" $order
    # shellcheck disable=SC2086
    run_phase large 60 "$binaries/gpu_large" $large
    # shellcheck disable=SC2086
    run_phase items 40 "$binaries/gpu_items" $items
    run_phase "suite transfer" 30 "$binaries/test_transfer"
    run_phase "suite merge" 30 "$binaries/test_attention_merge"
    run_phase "suite write" 30 "$binaries/test_attention_write"
    run_phase "suite refuse" 30 "$binaries/test_attention_refuse"
    run_phase "suite instances" 90 env PKV_TEST_SHARD="$few" "$binaries/gpu_instances"
    run_phase "suite attention" 90 env PKV_TEST_SHARD="$few" "$binaries/test_attention"
    run_phase "suite bitwise" 60 env PKV_TEST_SHARD="$some" "$binaries/test_attention_bitwise"
    sanitize memcheck 0/24 60
    sanitize racecheck 5/48 60
    sanitize synccheck 1/48 60
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
    run_phase "bench bandwidth" 30 "$binaries/bench_attention" "$@" --only bandwidth
    run_phase "bench decode" 120 "$binaries/bench_attention" "$@" --decode
    run_phase "bench stages" 60 "$binaries/bench_attention" "$@" --stage all
    run_phase "bench prefill" 60 "$binaries/bench_attention" "$@" --prefill "$prefill"
    peers=$here/peers.py
    [ -r "$peers" ] || peers=$here/gpu/peers.py
    if command -v python3 >/dev/null 2>&1; then
        run_phase "bench peers" 60 python3 "$peers"
    else
        skip_phase "bench peers" "there is no python3"
    fi
    metrics=dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    # A large tile without items, then the small tile: contiguous, and the same for a random table.
    run_tool ncu "profile ncu" 50 ncu --kernel-name regex:attend --launch-count 4 \
        --metrics "$metrics,gpu__time_duration.sum" --csv --log-file "$log/ncu.csv" \
        "$binaries/bench_attention" --device cuda --json --threads "$threads" \
        --divide 1 --rounds 1 --decode --only "decode bfloat16 64 x"
    run_tool nsys "profile nsys" 40 nsys profile --stats=true --force-overwrite=true \
        --output "$log/nsys" \
        "$binaries/bench_attention" --device cuda --json --threads "$threads" \
        --divide 1 --rounds 1 --decode --only "decode bfloat16 16 x"
}

run_phase probe 30 "$binaries/gpu_probe"
if [ "$code" -eq 3 ]; then
    finish no-device 3
fi
describe_clocks
if [ "$bench" -eq 1 ]; then
    bench_phases
else
    check_phases
fi
[ "$num_failed" -eq 0 ] || finish failed 1
finish passed 0
