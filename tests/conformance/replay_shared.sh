#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Replays every recording of ../shared/conformance, which is too large for the repository.
# usage: replay_shared.sh <pkv_replay>; exits with 77 and the reason where the recordings are absent.
set -u

replay=$1
folder=../shared/conformance

if [ ! -d "$folder" ]; then
    echo "skipped: $folder (relative to the repository's root) is not there; only the recordings in" \
        "tests/conformance/data were replayed"
    exit 77
fi
set --
for file in "$folder"/*.trace "$folder"/sched/*.sched; do
    [ -e "$file" ] && set -- "$@" "$file"
done
if [ $# -eq 0 ]; then
    echo "skipped: $folder holds no recordings"
    exit 77
fi
echo "replaying $# recordings"
exec "$replay" "$@"
