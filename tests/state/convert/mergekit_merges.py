#!/usr/bin/env python3
"""Merges by mergekit (0.1.5) of the tensors of average_test.cpp.

    mergekit_merges.py >mergekit_merges.txt          needs torch and mergekit

A line for each merge: its name, and every 13th element.
"""
import torch
from mergekit.merge_methods.base import TensorGroup
from mergekit.merge_methods.registry import get
from mergekit.merge_methods.slerp import slerp

ROWS, COLUMNS = 24, 40


def numbers(seed):
    i = torch.arange(ROWS * COLUMNS, dtype=torch.int64)
    return (((i * 7919 + seed * 104729 + i // 7 * seed) % 2003 - 1001).float() / 1024).view(ROWS, COLUMNS)


base, others = numbers(1), [numbers(1) + numbers(seed) / 8 for seed in (2, 3, 4)]


def of_differences(method, weights, density=1.0, normalize=None, factor=1.0):
    ids = list(range(len(others)))
    group = TensorGroup.from_tensors([base, *others], ids=["base", *ids], base_index=0)
    per_model = {"weight": dict(zip(ids, weights)), "density": dict.fromkeys(ids, density)}
    normalize = method == "ties" if normalize is None else normalize
    return get(method).merge_group(group, **per_model, int8_mask=False, normalize=normalize, rescale=False, **{"lambda": factor})


merges = {
    "slerp": slerp(torch.tensor([0.3]), base.reshape(1, -1), others[0].reshape(1, -1) * 2 - base.reshape(1, -1)),
    "slerp_of_parallels": slerp(torch.tensor([0.3]), base.reshape(1, -1), 2 * base.reshape(1, -1)),
    "task_arithmetic": of_differences("task_arithmetic", (0.5, 0.25, -0.5), factor=0.75),
    "task_arithmetic_normalized": of_differences("task_arithmetic", (0.5, 0.25, 0.5), normalize=True),
    "ties": of_differences("ties", (1.0, 1.0, 1.0), density=0.3),
    "ties_weighted": of_differences("ties", (0.5, 0.25, 0.75), density=0.6, factor=1.5),
    "ties_of_sums": of_differences("ties", (0.5, 0.25, 0.75), density=0.2, normalize=False),
}
for name, merged in merges.items():
    print(name, *(f"{value:.8g}" for value in merged.flatten()[::13].tolist()))
