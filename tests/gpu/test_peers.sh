#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# peers.py over a torch and a flashinfer that have nothing behind them: which of the two it asks,
# and what it says where one is not there or cannot compile. How it measures is not seen here.
# usage: test_peers.sh
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: test_peers.sh"; exit 0 ;;
esac
if ! command -v python3 >/dev/null 2>&1; then
    echo "skipped: there is no python3"
    exit 77
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0

# Run peers.py for the peer $1: it must return $2 and print a line like $3.
expect() {
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$scratch python3 "$here/peers.py" --peer "$1" \
        >"$scratch/out" 2>&1
    code=$?
    if [ "$code" -ne "$2" ] || ! grep -qE "$3" "$scratch/out"; then
        echo "peers.py --peer $1: exit status $code, not $2, or no line like $3:" >&2
        cat "$scratch/out" >&2
        num_failed=$((num_failed + 1))
    fi
}

# Whatever is asked of it is there, can be called and computed with, and is itself.
cat >"$scratch/torch.py" <<'END'
class Anything(float):
    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **named):
        return self

    def __mul__(self, other):
        return self

    __sub__ = __mul__


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(1)
END
cp "$scratch/torch.py" "$scratch/flashinfer.py"

expect torch 0 '"case": "decode bfloat16 64 x 8192, PyTorch SDPA, contiguous"'
expect flashinfer 0 '"case": "prefill bfloat16 1 x 512 of 16384, FlashInfer, contiguous"'
grep -q PyTorch "$scratch/out" && num_failed=$((num_failed + 1))

for tool in nvcc ninja; do
    printf 'def BatchDecodeWithPagedKVCacheWrapper(*arguments, **named):
    raise RuntimeError("there is no %s here\\nand more")\n' $tool >"$scratch/flashinfer.py"
    expect flashinfer 77 "\"reason\": \"flashinfer cannot compile: there is no $tool here\""
done
echo 'def BatchDecodeWithPagedKVCacheWrapper(*arguments, **named):
    raise RuntimeError("an illegal memory access")' >"$scratch/flashinfer.py"
expect flashinfer 1 'RuntimeError: an illegal memory access'

echo 'raise ImportError("none")' >"$scratch/flashinfer.py"
expect flashinfer 77 '"status": "skipped", "reason": "python3 has no flashinfer"'
expect torch 0 '"case": "decode '
echo 'import types
cuda = types.SimpleNamespace(is_available=lambda: False)' >"$scratch/torch.py"
expect torch 77 '"reason": "torch finds no CUDA device"'
echo 'raise ImportError("none")' >"$scratch/torch.py"
expect torch 77 '"reason": "python3 has no torch"'
expect flashinfer 77 '"reason": "python3 has no torch"'

[ "$num_failed" -eq 0 ]
