#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# tests/support/setup.sh on machines that lack one thing or another: what it asks the package
# manager for, and that the last lines of tests/run.sh tell why there is nothing of CUDA. The
# machine is a folder of programs that is the whole PATH: the tools of every system, and fakes of
# the others.
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: test_setup.sh      (from anywhere)"; exit 0 ;;
esac
cd "$(dirname "$0")/.." || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0
num_checked=0
tools="awk cat cp cut date dirname env grep head ln ls mkdir nproc rm sed sh sleep sort tail tr"

# Print a program: $1, as a script of sh.
script() {
    printf '#!%s\n%s\n' "$(command -v sh)" "$1"
}

# A machine with all that is required, which keeps what is asked of its package manager in
# asked.txt. The files of its folder `has` say what works: apt, pip, openblas.
make_machine() {
    rm -rf "$scratch/machine"
    mkdir -p "$scratch/machine/bin" "$scratch/machine/has" "$scratch/machine/tree/tests/support"
    machine=$scratch/machine
    for tool in $tools uname; do
        ln -s "$(command -v "$tool")" "$machine/bin/$tool"
    done
    for tool in cmake g++ pkg-config ninja; do
        script 'exit 0' >"$machine/bin/$tool"
    done
    script 'echo 0' >"$machine/bin/id"
    script "case \"\$*\" in *openblas*) test -e '$machine/has/openblas' ;; esac" \
        >"$machine/bin/gcc"
    script "[ \"\$1\" = update ] || echo \"\$*\" >>'$machine/asked.txt'
        test -e '$machine/has/apt' || exit 1
        case \$* in *python3-venv) cp '$machine/python3' '$machine/bin/python3' ;; esac" \
        >"$machine/bin/apt-get"
    script "[ \"\$1\" = -m ] || exit 0
        mkdir -p \"\$3/bin\"
        cp '$machine/pip' \"\$3/bin/pip\"" >"$machine/python3"
    script "test -e '$machine/has/pip' || exit 1
        mkdir -p build/cuda-venv/lib/python3.11/site-packages/nvidia/cu13/include
        : >build/cuda-venv/lib/python3.11/site-packages/nvidia/cu13/include/cuda_fp8.h" \
        >"$machine/pip"
    chmod +x "$machine"/bin/* "$machine/python3" "$machine/pip"
    : >"$machine/asked.txt"
    cp tests/run.sh "$machine/tree/tests"
    # A toolkit of this machine is none of that one.
    sed "s|/usr/local/cuda|$machine/toolkit|" tests/support/setup.sh \
        >"$machine/tree/tests/support/setup.sh"
}

# Run the test command there with the arguments given; its stage has nothing to do.
run_there() {
    (cd "$machine/tree" && env -i PATH="$machine/bin" HOME="$machine" sh tests/run.sh \
        --only format "$@") >"$scratch/out" 2>&1 || fail "tests/run.sh ended with $?"
}

fail() {
    echo "$what: $1" >&2
    sed 's/^/   | /' "$scratch/out" "$machine/asked.txt" >&2
    num_failed=$((num_failed + 1))
}

# The package manager was asked for $1, or, with $2, not; the last line of the run has the words $1.
wants() {
    num_checked=$((num_checked + 1))
    if [ "${2:-}" = not ]; then
        ! grep -q -- "$1\$" "$machine/asked.txt" || fail "asked for $1"
    else
        grep -q -- "$1\$" "$machine/asked.txt" || fail "did not ask for $1"
    fi
}
ends_with() {
    num_checked=$((num_checked + 1))
    tail -n 1 "$scratch/out" | grep -q -- "$1" || fail "the last line does not say: $1"
}
has_headers() {
    num_checked=$((num_checked + 1))
    [ -e "$machine/tree/build/cuda-headers/include/cuda_fp8.h" ] || fail "no CUDA headers came"
    num_checked=$((num_checked + 1))
    ! tail -n 1 "$scratch/out" | grep -q "no CUDA headers" || fail "speaks of CUDA headers"
}

what="a bare system"
make_machine
: >"$machine/has/apt"
: >"$machine/has/pip"
run_there
wants python3-venv
wants valgrind
has_headers
: >"$machine/asked.txt"
run_there
wants python3-venv not
wants valgrind not
has_headers

what="a system that was set up before"
make_machine
: >"$machine/has/apt"
: >"$machine/has/pip"
mkdir "$machine/tree/build"
: >"$machine/tree/build/.setup-done"
run_there
wants python3-venv
wants valgrind not
has_headers

what="python3-venv cannot be had"
make_machine
run_there
wants python3-venv
ends_with "no CUDA headers: python3 with venv is needed"

what="python3 without its venv"
make_machine
: >"$machine/has/apt"
: >"$machine/has/pip"
script 'exit 1' >"$machine/bin/python3"
chmod +x "$machine/bin/python3"
run_there
wants python3-venv
has_headers

what="pip finds nothing"
make_machine
: >"$machine/has/apt"
run_there
ends_with "no CUDA headers: pip cannot get the packages"

what="offline"
make_machine
: >"$machine/has/apt"
run_there --offline
wants python3-venv not
ends_with "no CUDA headers: --offline"

what="offline, the CUDA backend too"
make_machine
run_there --offline --cuda
ends_with "no CUDA headers: --offline"
ends_with "no CUDA compiler: --offline"
ends_with "no cuobjdump: --offline"

what="a toolkit is installed"
make_machine
: >"$machine/has/apt"
mkdir -p "$machine/toolkit/include"
: >"$machine/toolkit/include/cuda_fp8.h"
run_there
wants python3-venv not
num_checked=$((num_checked + 1))
! grep -q "no CUDA headers" "$scratch/out" || fail "speaks of CUDA headers"

# ---- What the benches want

# Set up there as bench/run.sh does.
set_up_benches() {
    (cd "$machine/tree" && env -i PATH="$machine/bin" HOME="$machine" sh -c '
        for_benches=1
        . tests/support/setup.sh
        setup_install build/.setup-done-bench "$@"' sh "$@") >"$scratch/out" 2>&1 ||
        fail "the setup ended with $?"
}

what="a BLAS for the benches"
make_machine
: >"$machine/has/apt"
set_up_benches
wants libopenblas-dev
wants python3-venv not
wants valgrind not
: >"$machine/asked.txt"
set_up_benches gnuplot-nox
wants libopenblas-dev not
wants gnuplot-nox

what="a BLAS is there"
make_machine
: >"$machine/has/apt"
: >"$machine/has/openblas"
set_up_benches
wants libopenblas-dev not

what="a BLAS cannot be had"
make_machine
set_up_benches
wants libopenblas-dev

echo "$num_checked checks, $num_failed failures"
[ "$num_failed" -eq 0 ]
