#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Runs a CUDA example where it finds no GPU, whatever this machine has: it says so, ends with the
# status that stands for "cannot run here", and has not crashed.
# usage: check_absent.sh PROGRAM
set -u

[ $# -eq 1 ] || { echo "usage: check_absent.sh PROGRAM" >&2; exit 2; }
message=$(CUDA_VISIBLE_DEVICES='' "$1" 2>&1)
status=$?
echo "status $status: $message"
[ "$status" -eq 77 ] && echo "$message" | grep -q '^no CUDA device: '
