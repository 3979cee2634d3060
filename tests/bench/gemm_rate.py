#!/usr/bin/env python3
"""The best rate of matrix products in this process, in GFLOP/s, as one JSON object: {"fp32": ..., "bf16": ...}.

    gemm_rate.py [THREADS [cpu | cuda]]

On the CPU oneDNN's kernels for both types (fp32 in true fp32), on the shapes of a small model and on a large square
one, by CPU time, to which other programs on the machine do not add; on a GPU cuBLAS's on large ones. The best of them is what a
step of training is measured against.
"""
import json
import sys
import time

import torch

device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
SHAPES = [(8192, 8192, 8192), (16384, 4096, 11008)] if device == "cuda" else [
    (1024, 512, 1376), (1024, 1376, 512), (1024, 512, 4096), (1024, 1024, 1024), (2048, 2048, 2048)]


def clock():
    """Seconds, on a CPU of each thread on average."""
    return time.perf_counter() if device == "cuda" else time.process_time() / torch.get_num_threads()


def linear(x, weight):
    if device == "cuda":
        y = torch.nn.functional.linear(x, weight)
        torch.cuda.synchronize()
        return y
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def rate(dtype, m, k, n, seconds=0.15):
    x, weight = torch.randn(m, k, dtype=dtype, device=device), torch.randn(n, k, dtype=dtype, device=device)
    for _ in range(3):
        linear(x, weight)
    best, end = float("inf"), clock() + seconds
    while clock() < end:
        begin = clock()
        linear(x, weight)
        best = min(best, clock() - begin)
    return 2.0 * m * k * n / best / 1e9


torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
with torch.no_grad():
    best = {name: max(rate(dtype, *shape) for shape in SHAPES)
            for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
print(json.dumps(best))
