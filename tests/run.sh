#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The test command: sets up what is missing, builds the library in every way it is supported and
# runs the tests of each build. What is tested is said in tests/CMakeLists.txt; here stands only in
# which builds. A stage that fails does not keep the later ones from running.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
. tests/support/setup.sh

stages="gcc clang asan tsan check valgrind install format"

usage() {
    cat <<'EOF'
usage: sh tests/run.sh [--full] [--cuda] [--offline] [--only STAGE]... [--help]

Builds and tests the library; takes some minutes, the second time less.

  --full        also the tests labelled `full`, and PKV_TEST_FULL=1 for all others
  --cuda        also build the CUDA backend; fetches a compiler and a disassembler for device code
  --offline     download nothing, neither packages nor CUDA headers; what wants them is skipped
  --only STAGE  run this stage only (may be given several times)
  --help        this text

Stages:
  gcc       Release with gcc, warnings are errors; all tests
  clang     Debug with clang and every internal check (PKV_CHECK=2), warnings are errors
  asan      address and undefined-behaviour sanitizers, Debug with gcc
  tsan      thread sanitizer; the tests labelled `tsan`
  check     the simulator with every internal check after every mutation (PKV_CHECK=2)
  valgrind  the unit tests of the gcc build under valgrind's memcheck
  install   outside projects that use an installed library (from the gcc build)
  format    clang-format 14 has nothing to change
  cuda      the library with its CUDA backend: spills are errors, the machine code is what it should
            be, installed it can be used, without a GPU it refuses (with --cuda only)

Environment: PKV_JOBS (jobs at once; default: all processors), CMAKE_GENERATOR.
Exit status: 0 all passed, 1 something failed, 2 wrong usage or a tool cannot be had.
EOF
}

full=0
offline=0
cuda=0
only=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --full) full=1 ;;
    --offline) offline=1 ;;
    --cuda) cuda=1; stages="$stages cuda" ;;
    --only)
        only="$only ${2:-none}"
        [ $# -eq 1 ] || shift
        ;;
    *) echo "run.sh: unknown argument '$1'; try --help" >&2; exit 2 ;;
    esac
    shift
done
for stage in $only; do
    case " $stages " in
    *" $stage "*) ;;
    *) echo "run.sh: --only wants one of: $stages" >&2; exit 2 ;;
    esac
done
[ -n "$only" ] || only=$stages

# ---- Counting

num_passed=0
num_failed=0
num_skipped=0
skipped_log=build/test-logs/skipped.txt # "stage<TAB>name<TAB>why" for each one
failures=        # names of what failed
started=$(date +%s)

# Remember that $1 was skipped because of $2.
note_skip() {
    num_skipped=$((num_skipped + 1))
    printf '%s\t%s\t%s\n' "$current_stage" "$1" "$2" >>"$skipped_log"
}

# Print the reasons of the log, each with how often it was given and by which tests.
group_skips() {
    awk -F '\t' '{
             test = $2
             is_case = sub(/: .*/, "", test)
             if (!($3 in count)) reasons[++num_reasons] = $3
             count[$3]++
             if (is_case) has_cases[$3] = 1
             if (!seen[$3, test]++ && ++num_tests[$3] <= 3)
                 tests[$3] = tests[$3] (num_tests[$3] == 1 ? "" : ", ") test
         }
         END {
             for (i = 1; i <= num_reasons; i++) {
                 why = reasons[i]
                 if (num_tests[why] > 3) tests[why] = tests[why] " and " num_tests[why] - 3 " more"
                 printf "%s%d %s%s (%s): %s", i == 1 ? "" : "; ", count[why],
                     has_cases[why] ? "case" : "test", count[why] == 1 ? "" : "s", tests[why], why
             }
         }' "$skipped_log"
}

# Print "passed failed skipped" of the ctest output $1.
count_ctest() {
    awk '/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
             if (/ Passed +[0-9.]+ sec/) passed++
             else if (/\*\*\*Skipped/) skipped++
             else failed++
         }
         END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

# Print "name<TAB>why" for each test that the ctest output $1 shows as skipped, and for each case
# that a CMocka program skipped although it passed. What they printed is in ctest's log $2.
list_skipped() {
    awk 'FNR == 1 { file++ }
         file == 1 && /\*\*\*Skipped/ { is_skipped[$4] = 1 }
         file == 1 { next }
         /^[0-9]+\/[0-9]+ Testing: / { name = $3; why = "gives no reason"; num_cases = 0 }
         /^skipped: / { why = substr($0, 10) }
         # The program lists them once more at its end, without the reasons.
         /^\[  SKIPPED \] / && !/test\(s\)/ {
             case_name = substr($0, 14)
             sub(/ *:? *$/, "", case_name)
             if (!(case_name in cases)) { cases[case_name] = why; num_cases++ }
             why = "gives no reason"
         }
         # All cases on a device that is not there are one line.
         /: SKIPPED on [^ ]+: / {
             device = $0
             sub(/.*: SKIPPED on /, "", device)
             why_not = device
             sub(/: .*/, "", device)
             sub(/^[^:]*: /, "", why_not)
             sub(/ \([0-9]+ tests\)$/, "", why_not)
             cases["all @ " device] = device ": " why_not
             num_cases++
         }
         /^Test (Passed\.|Pass Reason:)/ && is_skipped[name] { print name "\t" why }
         /^Test Passed\./ && num_cases > 0 {
             for (case_name in cases)
                 print name ": " case_name "\t" cases[case_name]
         }
         /^Test (Pass|Fail)/ { split("", cases) }' "$1" "$2"
}

# ---- Building and running one build folder

# Configure build/test-$1 with the CMake arguments that follow.
configure() {
    folder=build/test-$1
    shift
    cmake -S . -B "$folder" -DPKV_WERROR=ON -DPKV_CUDA=AUTO "$@"
}

# The same, and build all of it, or the target $build_target.
build() {
    configure "$@" &&
        cmake --build "$folder" --parallel "$jobs" ${build_target:+--target "$build_target"}
}

# Print the instruction sets, as a list of CMake, whose kernels are built but cannot run here.
list_unrunnable() {
    if [ "$(uname -m)" != x86_64 ] || [ ! -r /proc/cpuinfo ]; then
        return 0
    fi
    awk -F ':' '/^flags/ {
             flags = $2 " "
             if (!(flags ~ / avx512f / && flags ~ / avx512bw / && flags ~ / avx512dq / &&
                   flags ~ / avx512vl /)) print "avx512;avx512bf16"
             else if (flags !~ / avx512_bf16 /) print "avx512bf16"
             exit
         }' /proc/cpuinfo
}

# A build with a sanitizer: build/test-$1, sanitizer $2, the rest for CMake. What this processor
# cannot run is compiled without it, which takes a quarter of the time; that is said in the summary.
build_sanitized() {
    sanitized=$1
    sanitizer=$2
    shift 2
    unrunnable=$(list_unrunnable)
    if [ -n "$unrunnable" ]; then
        stage_note="kernels of $unrunnable without the sanitizer: this processor cannot run them"
        echo "NOTE: $stage_note"
    fi
    build "$sanitized" "-DPKV_SANITIZE=$sanitizer" "-DPKV_UNSANITIZED=$unrunnable" \
        -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DPKV_BUILD_BENCH=OFF "$@"
}

# Run ctest in build/test-$1 with the arguments that follow and count what it says.
run_ctest() {
    folder=build/test-$1
    shift
    # A stage without a test must not look like one that passed.
    if ! ctest --test-dir "$folder" -N "$@" | grep -q 'Test *#'; then
        stage_skip "there is no test for it: ctest $*"
        return 0
    fi
    # The launcher is a command with its arguments, or nothing.
    # shellcheck disable=SC2086
    $launcher ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --timeout 900 \
        "$@" >"$folder/ctest.out" 2>&1
    ctest_status=$?
    cat "$folder/ctest.out"
    read -r passed failed skipped <<EOF
$(count_ctest "$folder/ctest.out")
EOF
    num_passed=$((num_passed + passed))
    num_failed=$((num_failed + failed))
    list_skipped "$folder/ctest.out" "$folder/Testing/Temporary/LastTest.log" \
        >"$folder/skipped.out"
    listed=0
    while IFS='	' read -r name why; do
        # What a part of the kernels leaves out, all of them have.
        case $why in
        "this test build has no kernel"*)
            why="kernels outside the default selection, all under --full"
            ;;
        esac
        note_skip "$name" "$why"
        listed=$((listed + 1))
    done <"$folder/skipped.out"
    # ctest's own count is the floor: what was skipped without a trace in its log counts too.
    while [ "$listed" -lt "$skipped" ]; do
        note_skip "a test of $folder" "see $folder/ctest.out"
        listed=$((listed + 1))
    done
    counts="$passed passed, $failed failed, $listed skipped"
    if [ "$ctest_status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        return 1
    fi
    [ "$failed" -eq 0 ] || tests_failed=1
    return 0
}

# Labels that the long run alone takes, as ctest's -LE argument; $1: labels to leave out as well.
exclude() {
    labels=$1
    [ "$full" -eq 1 ] || labels="$labels${labels:+|}full"
    echo "^(${labels:-none})\$"
}

# ---- Stages: 0 passed, 1 failed; stage_skip says why there was nothing to run

stage_skip() {
    skip_reason=$1
}

# Line numbers for messages are enough: all of -g makes compiling the kernels half as long again.
debug_flags="-DCMAKE_C_FLAGS_DEBUG=-g1 -DCMAKE_CXX_FLAGS_DEBUG=-g1"

# The build that users get, with line numbers for valgrind.
build_gcc() {
    build gcc -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-g1 -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_CXX_COMPILER=g++ -DPKV_TEST_LAUNCHER="${1:-}"
}

# The build with every internal check, with the compilers $1 and $2, in build/test-$1-checked. CUDA
# kernels with sanitizers are the same there as in the gcc build.
build_checked() {
    # shellcheck disable=SC2086
    build "$1-checked" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 $debug_flags -DPKV_CHECK=2 \
        -DPKV_TEST_SIMT_ASAN=OFF -DCMAKE_C_COMPILER="$1" -DCMAKE_CXX_COMPILER="$2"
}

has_clang() {
    command -v clang >/dev/null 2>&1 && command -v clang++ >/dev/null 2>&1
}

stage_gcc() {
    build_gcc && run_ctest gcc -LE "$(exclude install)"
}

stage_clang() {
    if ! has_clang; then
        stage_skip "clang is not installed"
        return 0
    fi
    build_checked clang clang++ &&
        run_ctest clang-checked -LE "$(exclude 'install|style|sim|bench')"
}

stage_asan() {
    # shellcheck disable=SC2086
    build_sanitized asan address,undefined -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 \
        $debug_flags && run_ctest asan -LE "$(exclude 'abi|bench')"
}

stage_tsan() {
    build_target=pkv_tsan_tests
    build_sanitized tsan thread -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPKV_BUILD_EXAMPLES=OFF \
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" || return 1
    # The thread sanitizer of gcc 12 cannot live with the widest address randomisation.
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        launcher="setarch $(uname -m) -R"
    fi
    run_ctest tsan -L '^tsan$' -LE "$(exclude '')"
}

stage_check() {
    # With the clang build, where there is one: it has the checks and need not be made again.
    if has_clang; then
        build_checked clang clang++ && run_ctest clang-checked -L '^sim$' -LE "$(exclude '')"
    else
        build_checked gcc g++ && run_ctest gcc-checked -L '^sim$' -LE "$(exclude '')"
    fi
}

stage_valgrind() {
    if ! command -v valgrind >/dev/null 2>&1; then
        stage_skip "valgrind is not installed"
        return 0
    fi
    memcheck="valgrind;--quiet;--error-exitcode=9;--leak-check=full"
    memcheck="$memcheck;--errors-for-leak-kinds=definite,possible"
    # Only the commands of the tests change: nothing is compiled for it.
    build_gcc "$memcheck" && run_ctest gcc -L '^unit$' -E '^example_' -LE "$(exclude slow)"
    valgrind_status=$?
    build_gcc && return "$valgrind_status"
}

stage_install() {
    build_gcc && run_ctest gcc -L '^install$'
}

# The backend with nvcc, for the architectures whose code differs most, and its machine code.
stage_cuda() {
    cuda_compiler=$(setup_find_cuda_compiler)
    if [ -z "$cuda_compiler" ]; then
        stage_skip "there is no CUDA compiler"
        return 0
    fi
    # Where the projects that use the installed library look for the runtime.
    CUDAToolkit_ROOT=$(dirname "$(dirname "$cuda_compiler")")
    export CUDAToolkit_ROOT
    configure cuda -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
        -DPKV_CUDA=ON -DCMAKE_CUDA_COMPILER="$cuda_compiler" "-DPKV_CUDA_ARCHITECTURES=80-real;90" \
        -DPKV_TEST_CUDA_SUITES=OFF &&
        cmake --build build/test-cuda --parallel "$jobs" --target pkv_cuda_checks &&
        run_ctest cuda -L '^(cuda|abi|install)$'
}

stage_format() {
    if ! command -v clang-format >/dev/null 2>&1; then
        stage_skip "clang-format is not installed"
        return 0
    fi
    # Another version formats a little differently: its opinion is not the project's.
    version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
    if [ "$version" -ne 14 ]; then
        stage_skip "clang-format is version $version, not 14"
        return 0
    fi
    find . -path ./build -prune -o -type f \
        \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
        -exec clang-format --dry-run --Werror {} + || return 1
    num_passed=$((num_passed + 1))
    counts="1 passed"
}

# Run the stage $1, tell its time and what came out of it.
run_stage() {
    current_stage=$1
    skip_reason=
    stage_note=
    build_target=
    counts=
    launcher=
    tests_failed=0
    log=build/test-logs/$1.log
    printf '== %-9s' "$1"
    stage_started=$(date +%s)
    "stage_$1" >"$log" 2>&1
    stage_status=$?
    seconds=$(($(date +%s) - stage_started))
    if [ -n "$skip_reason" ]; then
        note_skip "stage $1" "$skip_reason"
        echo " skipped: $skip_reason (${seconds} s)"
    elif [ "$stage_status" -eq 0 ] && [ "$tests_failed" -eq 0 ]; then
        echo " ok: $counts (${seconds} s)"
    else
        # A build that breaks is one failure; failed tests were counted already.
        [ "$tests_failed" -eq 1 ] || num_failed=$((num_failed + 1))
        failures="$failures $1"
        echo " FAILED${counts:+: }$counts (${seconds} s); the end of $log:"
        tail -n 60 "$log" | sed 's/^/   | /'
    fi
    [ -z "$stage_note" ] || echo "   note: $stage_note"
}

# ---- Main

setup_stamp=build/.setup-done
[ "$full" -eq 0 ] || setup_stamp=$setup_stamp-full
[ "$cuda" -eq 0 ] || setup_stamp=$setup_stamp-cuda
setup_install "$setup_stamp"
setup_cuda_headers "$offline"
if [ "$cuda" -eq 1 ]; then
    setup_cuda_compiler "$offline"
    setup_cuda_tools "$offline"
fi
setup_choose_generator
jobs=$(setup_jobs)
mkdir -p build/test-logs
: >"$skipped_log"
# Why there is nothing of CUDA, among the last lines: the tests know only that it is not there.
current_stage=setup
while read -r why; do
    what=${why#no }
    [ -z "$why" ] || note_skip "setup of ${what%%:*}" "$why"
done <<EOF
${setup_reasons:-}
EOF
if [ "$full" -eq 1 ]; then
    PKV_TEST_FULL=1
    export PKV_TEST_FULL
fi

for stage in $stages; do
    case " $only " in
    *" $stage "*) run_stage "$stage" ;;
    esac
done

echo
echo "total time $(($(date +%s) - started)) s${failures:+; failed stages:}$failures"
echo "$num_passed passed, $num_failed failed, $num_skipped skipped"
skips=$(group_skips)
[ -z "$skips" ] || echo "each skip by name: $skipped_log"
echo "passed $num_passed, skipped $num_skipped${skips:+: $skips}"
[ "$num_failed" -eq 0 ]
