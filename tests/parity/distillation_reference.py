#!/usr/bin/env python3
"""A loop of distillation in PyTorch beside the parity test, as tables: 12 steps of a small llama that learns from a teacher.

  distillation_reference.py                writes distillation_NAME.txt here for each case; --out FOLDER: there
  distillation_reference.py --save FOLDER  writes student and teacher as Hugging Face folders, llama and qwen3

The models are those of trl_reference.py, whose closed formulas give their weights: a llama learns from a qwen3 of the same
vocabulary. Step s has the rows 4 s .. 4 s + 3 of 32 tokens and a target each, from tokens t(i) = 4 + (i * i * 7 + i * 3) % 123.
Divergences are those of model/kernels/linear_divergence.h. Needs torch and transformers.
"""
import argparse
import math
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, log_softmax
from trl_reference import make_model

STEPS, ROWS, LENGTH = 12, 4, 32
CASES = {
    "forward": dict(beta=0.0), "reverse": dict(beta=1.0), "jsd": dict(beta=0.5), "skewed": dict(beta=0.1, temperature=2.0),
    "mixed": dict(beta=0.0, temperature=1.5, alpha=0.7), "top": dict(beta=0.0, top_k=16), "top_jsd": dict(beta=0.5, top_k=16, alpha=0.5),
}


def divergence(p, q, beta):
    if beta in (0.0, 1.0):
        return (q.exp() * (q - p) if beta == 0 else p.exp() * (p - q)).sum(-1).mean()
    mixture = torch.logaddexp(p + math.log1p(-beta), q + math.log(beta))
    return (beta * q.exp() * (q - mixture) + (1 - beta) * p.exp() * (p - mixture)).sum(-1).mean()


def with_rest(x):
    return torch.cat([x, (1 - x.exp().sum(-1, keepdim=True)).log()], -1)


def train(student, teacher, beta, temperature=1.0, alpha=1.0, top_k=0):
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)
    i = torch.arange(STEPS * ROWS * LENGTH + 1)
    tokens = 4 + (i * i * 7 + i * 3) % 123
    for step in range(STEPS):
        first = step * ROWS * LENGTH
        inputs = tokens[first:first + ROWS * LENGTH].view(ROWS, LENGTH)
        targets = tokens[first + 1:first + ROWS * LENGTH + 1].view(ROWS, LENGTH)
        scores = student(inputs).logits
        p = log_softmax(scores / temperature, -1)
        with torch.no_grad():
            q = log_softmax(teacher(inputs).logits / temperature, -1)
        if top_k > 0:
            q, ids = q.topk(top_k, -1)
            p, q = with_rest(p.gather(-1, ids)), with_rest(q)
        loss = alpha * divergence(p, q, beta) + (1 - alpha) * cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1, loss.item(), norm.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    if arguments.save:
        make_model("llama").save_pretrained(arguments.save / "llama")
        make_model("qwen3").save_pretrained(arguments.save / "qwen3")
        return
    for name, options in CASES.items():
        lines = [f"# {', '.join(f'{key} {value}' for key, value in options.items())} (distillation_reference.py)", "# step loss grad_norm"]
        lines += [f"{step} {loss:.9g} {norm:.9g}" for step, loss, norm in train(make_model("llama"), make_model("qwen3"), **options)]
        (arguments.out / f"distillation_{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
