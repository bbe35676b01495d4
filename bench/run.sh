#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The bench command: sets up what is missing, builds a Release, runs every bench and gathers what
# they measured in build/report/. It measures nothing itself and writes no number of its own.
#
# What a bench has to do to take part: print one JSON object a line for --json. Whatever else its
# --help names it is given: --report DIR (write further files there), --trace FILE. Each
# bench/*.gnuplot then draws its SVG from the report's files, in their folder.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
. tests/support/setup.sh

build=build/bench
report=build/report

usage() {
    cat <<'EOF'
usage: sh bench/run.sh [--trace FILE] [--only BENCH]... [--help]

Builds a Release in build/bench, runs the benches and leaves their report in build/report:
report.txt (for reading), results.json, results.csv, and the plots as SVG.

  --trace FILE  a request trace for the benches that can replay one
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
            trace=$2
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

# Print the CSV of the JSON lines on standard input; the keys are the columns.
json_to_csv() {
    awk 'BEGIN {
             num_keys = split("bench case metric unit value peer peer_value", keys, " ")
             print "bench,case,metric,unit,value,peer,peer_value"
         }
         /^{/ {
             line = ""
             for (i = 1; i <= num_keys; i++) {
                 value = ""
                 if (match($0, "\"" keys[i] "\" *: *(\"[^\"]*\"|[^,}]*)")) {
                     value = substr($0, RSTART, RLENGTH)
                     sub(/^"[a-z_]*" *: */, "", value)
                     if (value == "null")
                         value = ""
                 }
                 line = line (i > 1 ? "," : "") value
             }
             print line
         }'
}

# Print a table for reading from the CSV on standard input.
csv_to_text() {
    awk -F, 'NR > 1 {
                 gsub(/"/, "")
                 if ($1 != bench) {
                     printf "\n%s\n", $1
                     bench = $1
                 }
                 printf "  %-40s %-28s %14s %s", $2, $3, $5, $4
                 if ($6 != "")
                     printf "   (%s: %s)", $6, $7
                 printf "\n"
             }'
}

# Say on what the numbers were measured.
describe_machine() {
    echo "libpagedkv bench report, $(date -u '+%Y-%m-%d %H:%M UTC')"
    echo "commit:     $(git rev-parse --short HEAD 2>/dev/null || echo 'not a git checkout')"
    echo "processor:  $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
    echo "processors: $(nproc 2>/dev/null || echo unknown), load $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null)"
    echo "compiler:   $(gcc --version | head -n 1), Release"
}

# Run the bench program $1; its JSON lines are appended to the report's.
run_bench() {
    name=$(basename "$1")
    help=$("$1" --help 2>&1) || { echo "$name: --help fails" >&2; return 1; }
    set -- "$1" --json
    case $help in
    *--report*) set -- "$@" --report "$report" ;;
    esac
    if [ -n "$trace" ]; then
        case $help in
        *--trace*) set -- "$@" --trace "$trace" ;;
        esac
    fi
    started=$(date +%s)
    if ! "$@" >"$report/$name.json"; then
        echo "$name: failed ($*)" >&2
        return 1
    fi
    if ! grep -q '^{' "$report/$name.json"; then
        echo "$name: printed no JSON line ($*)" >&2
        return 1
    fi
    cat "$report/$name.json" >>"$report/results.json"
    echo "== $name: $(grep -c '^{' "$report/$name.json") values ($(($(date +%s) - started)) s)"
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
setup_install build/.setup-done ${gnuplot:+"$gnuplot"}
setup_choose_generator
build_benches

rm -rf "$report"
mkdir -p "$report"
: >"$report/results.json"
failed=0
num_benches=0
for source in bench/bench_*.c; do
    name=$(basename "$source" .c)
    case " ${only:-$name} " in
    *" $name "*) ;;
    *) continue ;;
    esac
    [ -e "$source" ] || continue
    num_benches=$((num_benches + 1))
    run_bench "$build/bench/$name" || failed=1
done
if [ "$num_benches" -eq 0 ]; then
    echo "run.sh: there is no bench${only:+ named}$only" >&2
    exit 1
fi

json_to_csv <"$report/results.json" >"$report/results.csv"
{
    describe_machine
    csv_to_text <"$report/results.csv"
} >"$report/report.txt"
for plot in bench/*.gnuplot; do
    [ -e "$plot" ] || continue
    if ! (cd "$report" && gnuplot "$root/$plot"); then
        echo "run.sh: $plot failed" >&2
        failed=1
    fi
done

cat "$report/report.txt"
echo
ls "$report"
if ! ls "$report"/*.svg >/dev/null 2>&1; then
    echo "run.sh: no plot came out: $report holds no SVG" >&2
    exit 1
fi
exit "$failed"
