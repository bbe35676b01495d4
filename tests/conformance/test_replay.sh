#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Proves that pkv_replay can fail: one wrong line of each kind, planted into a copy of a recording,
# must give exit status 1 and name the line; a malformed or missing file must give 2 and name it too.
# usage: test_replay.sh <pkv_replay> <folder with recordings> <folder to work in>
set -u

replay=$1
data=$2
work=$3
failed=0
planted=0

complain() {
    echo "FAILED: $*"
    failed=1
}

# Run pkv_replay on $1 and expect the exit status $2 and a line of output that starts with $3.
expect() {
    "$replay" "$1" >"$work/output" 2>&1
    status=$?
    if [ "$status" -ne "$2" ]; then
        complain "$4: exit status $status instead of $2"
        head -n 5 "$work/output"
    fi
    if ! grep -q -F -e "$3" "$work/output"; then
        complain "$4: nothing says '$3'"
        head -n 5 "$work/output"
    fi
}

# Change the first line of recording $1 that matches $2, behind line $3, by sed command $4; expect a
# difference that names the line.
plant() {
    planted=$((planted + 1))
    line=$(awk -v from="$3" -v pattern="$2" 'NR > from && $0 ~ pattern { print NR; exit }' "$data/$1")
    if [ -z "$line" ]; then
        complain "$1 has no line like $2"
        return
    fi
    sed "${line}$4" "$data/$1" >"$work/planted"
    if cmp -s "$data/$1" "$work/planted"; then
        complain "$4 changes nothing in line $line of $1"
        return
    fi
    expect "$work/planted" 1 "$work/planted:$line: difference" "$1 line $line, $4"
}

# Make recording $1 malformed by sed command $2 and expect that line $3 is named.
spoil() {
    planted=$((planted + 1))
    sed "$2" "$data/$1" >"$work/spoilt"
    expect "$work/spoilt" 2 "$work/spoilt:$3:" "$1 spoilt by $2"
}

mkdir -p "$work" || exit 2

trace=full_s_bs4_nb8.trace
events=events_f_bs16_nb64.trace
sched=spec_chunk_bs4_nb60.sched

expect "$data/$trace" 0 "replayed " "an unchanged recording"

plant "$trace" '^= ok' 100 '{s/ok/none/;n;d;}'
plant "$trace" '^= none' 100 '{s/none/ok/;p;s/.*/+ 0 0/;}'
plant "$trace" '^= [1-9]' 100 's/= ./= 0/'
plant "$trace" '^[+] 0 [1-9]' 100 's/.$/0/'
plant "$trace" '^b [0-9]+ 0 [1-9]' 100 's/.$/0/'
plant "$trace" '^s ' 100 's/^s ./s 9/'
plant "$trace" '^s ' 100 's/[^a]$/a/'
plant "$trace" '^q [2-9]' 100 's/^q \([0-9]*\) \([0-9]*\) \([0-9]*\)/q \1 \3 \2/'
plant "$trace" '^r [1-9]' 100 's/:[0-9]*/:77/'
plant "$trace" '^h [1-9]' 100 's/.$/0/'
plant "$trace" '^stats' 100 's/.$/7/'
plant "$events" '^e stored' 100 's/stored 0/stored 1/'
plant "$events" '^e stored' 100 's/.$/9/'
plant "$events" '^e removed' 100 's/.$/9/'
plant "$sched" '^t [1-9]' 100 's/:[0-9]*/:77/'
plant "$sched" '^d [1-9]' 100 's/:[0-9]*/:77/'
plant "$sched" '^p 0' 100 's/p 0/p 1 0/'
plant "$sched" '^u [1-9]' 100 's/$/0/'
plant "$sched" '^w [1-9]' 100 's/$/0/'
plant "$sched" '^b ' 100 's/$/0/'
plant "$sched" '^x ' 100 's/x ./x 77/'
plant "$sched" '^f 0' 100 's/f 0/f 1 0/'
plant "$sched" '^c [1-9]' 100 's/:[0-9]*:/:77:/'
plant "$sched" '^s ' 100 's/^s ./s 9/'
plant "$sched" '^q [2-9]' 100 's/^q \([0-9]*\) \([0-9]*\) \([0-9]*\)/q \1 \3 \2/'

spoil "$trace" '1s/1/2/' 1
spoil "$trace" '3s/block_size/blocksize/' 3
spoil "$trace" '4s/full/other/' 4
spoil "$trace" '9s/^> [a-z]*/> teleport/' 9
spoil "$trace" '5s/^s/z/' 5
spoil "$trace" '5d' 5
spoil "$trace" '$d' "$(($(wc -l <"$data/$trace")))"
spoil "$trace" '$s/.$/0/' "$(($(wc -l <"$data/$trace")))"
spoil "$trace" '5s/[0-9a-f]$/g/' 5
spoil "$sched" '3s/fcfs/lifo/' 3
spoil "$sched" '$d' "$(($(wc -l <"$data/$sched")))"

expect "$work/absent" 2 "$work/absent:1:" "a file that is not there"
: >"$work/empty"
expect "$work/empty" 2 "$work/empty:1:" "an empty file"

if [ "$failed" -eq 0 ]; then
    echo "all $planted planted faults were found"
fi
exit "$failed"
