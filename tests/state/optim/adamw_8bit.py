#!/usr/bin/env python3
"""Averages of torchao's AdamW8bit (torchao 0.18) for the gradients of coded_states_test.cpp.

    adamw_8bit.py >adamw_8bit.txt          needs torch and torchao

A line for every 16th element after the first step, and after the last: exp_avg, exp_avg_sq, value.
"""
import torch
from torchao.optim import AdamW8bit

STEPS, ROWS, COLUMNS = 8, 64, 64


def gradient(step):
    i = torch.arange(ROWS * COLUMNS, dtype=torch.int64)
    share = ((i * 7919 + step * 104729) % 2001 - 1000).float() / 1024
    return (share * torch.exp2(-((i * 31 + i // 5) % 13).float())).view(ROWS, COLUMNS)


torch.compile = lambda function, **_: function  # its kernels by operations
weight = torch.nn.Parameter(torch.linspace(-1, 1, ROWS * COLUMNS).view(ROWS, COLUMNS).clone())
optimizer = AdamW8bit([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for step in range(1, STEPS + 1):
    weight.grad = gradient(step)
    optimizer.step()
    if step not in (1, STEPS):
        continue
    state = optimizer.state[weight]
    exp_avg, exp_avg_sq = (state[name].dequantize().flatten() for name in ("exp_avg", "exp_avg_sq"))
    for i in range(0, ROWS * COLUMNS, 16):
        print(f"{exp_avg[i].item():.9g} {exp_avg_sq[i].item():.9g} {weight.flatten()[i].item():.9g}")
