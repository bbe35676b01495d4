#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The bench command: sets up what is missing, builds a Release, runs the benches and gathers what
# they measured in build/report/. It measures nothing itself; report.awk writes their numbers anew as
# CSV and as tables.
#
# The list of runs is in run_all. A bench that is not named there takes part too: it is run with
# --json, with --out (a folder for CSV files and plots) where its --help names that.
set -u

caller=$(pwd)
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
. tests/support/setup.sh

build=build/bench
report=build/report
shared_traces=../shared/traces

usage() {
    cat <<'EOF'
usage: sh bench/run.sh [--trace FILE] [--only BENCH]... [--help]

Builds a Release in build/bench, runs the benches and leaves their report in build/report:
report.txt (for reading), results.json, results.csv, the tables of each run as CSV, and the
plots as SVG. Requests come from built-in length tables and generated chats, and from the traces in
../shared/traces where that folder is there. Takes some minutes.

  --trace FILE  use this request trace beside the built-in tables, and not the shared ones:
                Azure CSV, Mooncake JSON lines, vidur CSV, or two columns (prompt,output)
  --only BENCH  run this bench only, such as bench_serve (may be given several times)
  --help        this text

Environment: PKV_JOBS (jobs at once while building), CMAKE_GENERATOR.
Exit status: 0 the report is complete, 1 something failed, 2 wrong usage or a tool cannot be had.
EOF
}

trace=
only=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --trace | --only)
        if [ $# -lt 2 ]; then
            echo "run.sh: $1 wants an argument; try --help" >&2
            exit 2
        fi
        if [ "$1" = --only ]; then
            only="$only $2"
        else
            case $2 in
            /*) trace=$2 ;;
            *) trace=$caller/$2 ;;
            esac
        fi
        shift
        ;;
    *) echo "run.sh: unknown argument '$1'; try --help" >&2; exit 2 ;;
    esac
    shift
done
if [ -n "$trace" ] && [ ! -r "$trace" ]; then
    echo "run.sh: cannot read the trace '$trace'" >&2
    exit 2
fi

# Say on what the numbers were measured.
describe_machine() {
    echo "libpagedkv bench report, $(date -u '+%Y-%m-%d %H:%M UTC')"
    echo "commit:     $(git rev-parse --short HEAD 2>/dev/null || echo 'not a git checkout')"
    echo "processor:  $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
    echo "processors: $(nproc 2>/dev/null || echo unknown), load $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null)"
    echo "compiler:   $(gcc --version | head -n 1), Release"
    echo "prefill:    ${no_blas:-beside OpenBLAS by hand}"
}

# Say whether the bench $1 is to be run.
is_wanted() {
    case " ${only:-$1} " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

# Run the bench $2 with the arguments that follow; its JSON lines become $report/$1.json and are
# appended to the report's. $1 names the run; a run "fragmentation_X" is bench "fragmentation/X" in
# the whole, since its cases have the same names for each X.
run_bench() {
    label=$1
    name=$2
    shift 2
    is_wanted "$name" || return 0
    num_runs=$((num_runs + 1))
    printf '== %-52s' "$label"
    started=$(date +%s)
    "$build/bench/$name" --json "$@" >"$report/$label.json"
    status=$?
    if [ "$status" -ne 0 ]; then
        echo " FAILED: $name --json $*"
        # Input that cannot be read is the caller's to mend: the other runs would say the same.
        [ "$status" -ne 2 ] || exit 2
        failed=1
        return 0
    fi
    if ! grep -q '^{' "$report/$label.json"; then
        echo " FAILED: no JSON line from $name --json $*"
        failed=1
        return 0
    fi
    bench=
    case $label in
    fragmentation_sharegpt) ;;
    fragmentation_*) bench=fragmentation/${label#fragmentation_} ;;
    esac
    sed "${bench:+s|^{\"bench\":\"fragmentation\"|{\"bench\":\"$bench\"|}" "$report/$label.json" \
        >>"$report/results.json"
    echo " $(grep -c '^{' "$report/$label.json") values ($(($(date +%s) - started)) s)"
}

# Print the name of a trace file as a part of a file name.
label_of() {
    basename "$1" | sed 's/\.[^.]*$//; s/[^A-Za-z0-9-]/_/g'
}

# Memory use and serving of the trace $1: the layouts with block 16, in fewer steps than the tables
# get. Its files go to a folder of their own.
run_trace() {
    trace_name=$(label_of "$1")
    run_bench "fragmentation_trace_$trace_name" bench_fragmentation --trace "$1" --steps 20000 \
        --block-sizes 16 --out "$report/traces/$trace_name"
    case $2 in
    *serve*) run_bench "serve_trace_$trace_name" bench_serve --trace "$1" --out "$report/traces/$trace_name" ;;
    esac
}

run_shared_traces() {
    if [ ! -d "$shared_traces" ]; then
        echo "== traces: skipped, there is no $shared_traces"
        return
    fi
    for file in "$shared_traces"/*/*.csv "$shared_traces"/*/*.jsonl; do
        [ -e "$file" ] || continue
        case $file in
        */mooncake/* | */azure/*) run_trace "$file" serve ;;
        *) run_trace "$file" memory ;;
        esac
    done
}

run_demo() {
    is_wanted bench_fragmentation || return 0
    if ! "$build/bench/bench_fragmentation" --demo --out "$report" >"$report/fragmentation_demo.txt"
    then
        echo "== demo: FAILED"
        failed=1
    fi
}

# Benches that are not named above.
run_others() {
    for source in bench/bench_*.c; do
        name=$(basename "$source" .c)
        case $name in
        bench_fragmentation | bench_serve) continue ;;
        esac
        case $("$build/bench/$name" --help 2>&1) in
        *--out*) run_bench "${name#bench_}" "$name" --out "$report" ;;
        *) run_bench "${name#bench_}" "$name" ;;
        esac
    done
    run_attention_threads
}

# Attention once more on all processors, each case beside the reader, or the peak, on as many; its
# cases have names of their own. Fewer rounds: the whole is to end within ten minutes on two
# processors.
run_attention_threads() {
    num_threads=$(nproc 2>/dev/null || echo 1)
    [ "$num_threads" -le 256 ] || num_threads=256 # PKV_MAX_CPU_THREADS
    if [ "$num_threads" -gt 1 ]; then
        run_bench attention_threads bench_attention --threads "$num_threads" --rounds 5
    elif is_wanted bench_attention; then
        echo "== attention_threads: skipped, there is one processor"
    fi
}

# The caller's trace comes first, so that one that cannot be read is known at once.
run_all() {
    [ -z "$trace" ] || run_trace "$trace" serve
    run_bench fragmentation_sharegpt bench_fragmentation --table sharegpt --out "$report"
    run_bench fragmentation_alpaca bench_fragmentation --table alpaca --out "$report"
    run_demo
    run_bench serve_chats bench_serve --out "$report"
    [ -n "$trace" ] || run_shared_traces
    run_others
}

# Print the whole report.
print_report() {
    describe_machine
    for file in "$report"/fragmentation_sharegpt_report.txt \
        "$report"/fragmentation_alpaca_report.txt "$report"/fragmentation_demo.txt; do
        if [ -e "$file" ]; then
            printf '\n----\n\n'
            cat "$file"
        fi
    done
    if grep -q '"fragmentation' "$report/results.json"; then
        printf '\n----\n\nLive slots, percent, all workloads\n\n'
        awk -f bench/report.awk -v mode=memory "$report/results.json"
    fi
    awk -f bench/report.awk -v mode=text "$report/results.json"
}

# Configure and build; the log is shown where that fails.
build_benches() {
    mkdir -p "$build"
    if ! { cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DPKV_BUILD_TESTS=OFF \
        -DPKV_BUILD_FUZZ=OFF -DPKV_BUILD_EXAMPLES=OFF &&
        cmake --build "$build" --parallel "$(setup_jobs)"; } >"$build/build.log" 2>&1; then
        tail -n 60 "$build/build.log" >&2
        echo "run.sh: the build failed; the whole log is $build/build.log" >&2
        exit 1
    fi
}

# ---- Main

gnuplot=
command -v gnuplot >/dev/null 2>&1 || gnuplot="gnuplot-nox"
# Of setup.sh: what the benches want, and not what the tests do.
# shellcheck disable=SC2034
for_benches=1
setup_install build/.setup-done-bench ${gnuplot:+"$gnuplot"}
setup_choose_generator
build_benches
no_blas=
if grep -Eq '^PKV_(CBLAS_INCLUDE_DIR|OPENBLAS_LIBRARY):.*NOTFOUND' "$build/CMakeCache.txt"; then
    no_blas="no BLAS: OpenBLAS (libopenblas-dev) is not installed, its peer is left out"
    echo "== NOTE: $no_blas"
fi

rm -rf "$report"
mkdir -p "$report"
: >"$report/results.json"
failed=0
num_runs=0
run_all
if [ "$num_runs" -eq 0 ]; then
    echo "run.sh: there is no bench${only:+ named}$only" >&2
    exit 1
fi
awk -f bench/report.awk -v mode=csv "$report/results.json" >"$report/results.csv"
print_report >"$report/report.txt"

echo
cat "$report/report.txt"
echo
echo "files in $report:"
ls "$report"
if ! ls "$report"/*.svg >/dev/null 2>&1; then
    echo "run.sh: no plot came out: $report holds no SVG" >&2
    exit 1
fi
[ "$failed" -eq 0 ] || echo "run.sh: at least one run failed, see above" >&2
exit "$failed"
