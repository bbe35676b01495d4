#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# What PyTorch's attention and FlashInfer do with the batches of bench_attention --device cuda,
# where this machine's Python has them: 32 query heads over 8 kv heads of 128, bfloat16. PyTorch's
# keys and values are contiguous, FlashInfer's in pages of 16 in random order. JSON lines as those
# of the benches; 77, and why, where there is nothing to measure.
import argparse
import importlib
import json
import re
import statistics
import sys

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 16
DECODES = [(1, 8192), (16, 8192), (64, 8192), (1, 131072)]
PREFILLS = [(4096, 4096), (512, 16384)]


def emit(case, metric, unit, value):
    line = {"bench": "attention, peers", "case": case, "metric": metric, "unit": unit,
            "value": value, "peer": None, "peer_value": None}
    print(json.dumps(line), flush=True)


def median_ms(torch, run, rounds):
    """Median time of `run` between two events; the first runs warm up."""
    times = []
    for i in range(-3, rounds):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if i >= 0:
            times.append(start.elapsed_time(stop))
    return statistics.median(times)


def random(torch, *shape):
    return torch.rand(*shape, device="cuda", dtype=torch.bfloat16) * 2 - 1


def report_decode(name, num_requests, length, milliseconds):
    num_bytes = 2 * num_requests * length * KV_HEADS * SIZE * 2
    case = f"decode bfloat16 {num_requests} x {length}, {name}"
    emit(case, "time", "us", milliseconds * 1e3)
    emit(case, "rate", "GB/s", num_bytes / milliseconds * 1e-6)


def report_prefill(name, num_queries, length, milliseconds):
    flops = 4.0 * HEADS * SIZE * num_queries * (length - 0.5 * (num_queries - 1))
    case = f"prefill bfloat16 1 x {num_queries} of {length}, {name}"
    emit(case, "rate", "TFLOP/s", flops / milliseconds * 1e-9)


def measure_torch(torch, rounds):
    attend = torch.nn.functional.scaled_dot_product_attention
    for num_requests, length in DECODES:
        query = random(torch, num_requests, HEADS, 1, SIZE)
        key = random(torch, num_requests, KV_HEADS, length, SIZE)
        value = random(torch, num_requests, KV_HEADS, length, SIZE)
        time = median_ms(torch, lambda: attend(query, key, value, enable_gqa=True), rounds)
        report_decode("PyTorch SDPA, contiguous", num_requests, length, time)
    for num_queries, length in PREFILLS:
        if num_queries != length:
            continue  # its causal mask starts at the top left: another problem
        query = random(torch, 1, HEADS, num_queries, SIZE)
        key = random(torch, 1, KV_HEADS, length, SIZE)
        value = random(torch, 1, KV_HEADS, length, SIZE)
        time = median_ms(
            torch, lambda: attend(query, key, value, is_causal=True, enable_gqa=True), rounds)
        report_prefill("PyTorch SDPA, contiguous", num_queries, length, time)


def measure_flashinfer(torch, flashinfer, rounds):
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for num_requests, length in DECODES:
        num_pages = num_requests * length // PAGE
        cache = random(torch, num_pages, 2, KV_HEADS, PAGE, SIZE)
        query = random(torch, num_requests, HEADS, SIZE)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND",
                                                                use_tensor_cores=True)
        starts = torch.arange(num_requests + 1, dtype=torch.int32, device="cuda")
        wrapper.plan(starts * (length // PAGE),
                     torch.randperm(num_pages, device="cuda").to(torch.int32),
                     torch.full((num_requests,), PAGE, dtype=torch.int32, device="cuda"),
                     HEADS, KV_HEADS, SIZE, PAGE, q_data_type=torch.bfloat16,
                     kv_data_type=torch.bfloat16)
        time = median_ms(torch, lambda: wrapper.run(query, cache), rounds)
        report_decode("FlashInfer, random pages of 16", num_requests, length, time)
    for num_queries, length in PREFILLS:
        query = random(torch, num_queries, HEADS, SIZE)
        key = random(torch, length, KV_HEADS, SIZE)
        value = random(torch, length, KV_HEADS, SIZE)
        time = median_ms(
            torch,
            lambda: flashinfer.single_prefill_with_kv_cache(query, key, value, causal=True),
            rounds)
        report_prefill("FlashInfer, contiguous", num_queries, length, time)


def skip(reason):
    print(json.dumps({"phase": "peers", "status": "skipped", "reason": reason}))
    return 77


def main():
    parser = argparse.ArgumentParser(description="PyTorch and FlashInfer on the benches' batches.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--peer", choices=["torch", "flashinfer"], required=True)
    arguments = parser.parse_args()
    for name in ["torch", "flashinfer"][:1 if arguments.peer == "torch" else 2]:
        try:
            importlib.import_module(name)
        except ImportError:
            return skip(f"python3 has no {name}")
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        return skip("torch finds no CUDA device")
    if arguments.peer == "torch":
        measure_torch(torch, arguments.rounds)
        return 0
    try:
        measure_flashinfer(torch, sys.modules["flashinfer"], arguments.rounds)
    except (OSError, RuntimeError) as error:
        # It compiles its kernels when they are first wanted, with tools that need not be there.
        if re.search("nvcc|ninja", str(error)) is None:
            raise
        return skip("flashinfer cannot compile: " + str(error).splitlines()[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
