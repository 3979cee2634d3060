#!/usr/bin/env python3
"""Linear layers of torchao (torchao 0.18) with the inputs of float8_test.cpp.

    float8_linear.py >float8_linear.txt          needs torch and torchao

For each recipe three lines: every 31st element of the output, of the input's gradient and of the weight's.
"""
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

ROWS, WIDTH, OUTPUTS = 32, 64, 48


def numbers(rows, columns, seed):
    """Of different sizes in each row and column, exact in bf16."""
    i = torch.arange(rows * columns, dtype=torch.int64)
    share = ((i * 7919 + seed * 104729) % 255 - 127).float() / 128
    sizes = torch.exp2(-3 * ((i // columns * 5 + seed) % 6).float() - 3 * (i % columns * 3 % 4).float())
    return (share * sizes).view(rows, columns).to(torch.bfloat16)


for recipe in ("tensorwise", "rowwise"):
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, OUTPUTS, bias=False, dtype=torch.bfloat16))
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))
    with torch.no_grad():
        model[0].weight.copy_(numbers(OUTPUTS, WIDTH, 1))
    x = numbers(ROWS, WIDTH, 2).requires_grad_()
    y = model(x)
    y.backward(numbers(ROWS, OUTPUTS, 3))
    for found in (y, x.grad, model[0].weight.grad):
        print(*(f"{value:.9g}" for value in found.detach().float().flatten()[::31].tolist()))
