#!/usr/bin/env python3
"""Loads a Hugging Face folder with transformers and prints the logits of two sequences of twelve tokens.

  transformers_reference.py FOLDER [--expect CLASS]

One number a line, of the logits [2, 12, vocabulary] in row-major order. Needs torch, transformers and safetensors.
"""
import argparse, os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--expect", help="name of the class that the folder's config.json must lead to")
arguments = parser.parse_args()

model, info = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32, output_loading_info=True)
if arguments.expect and type(model).__name__ != arguments.expect:
    raise SystemExit(f"expected {arguments.expect}, found {type(model).__name__}")
for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    if info[problem]:
        raise SystemExit(f"{problem}: {sorted(info[problem])}")
model.eval()
row, column = torch.arange(2)[:, None], torch.arange(12)[None, :]
tokens = (row * 7 + column * column * 3 + row * column * 5 + 1) % model.config.vocab_size  # token_rows in C++
with torch.no_grad():
    logits = model(tokens).logits
print("# logits of transformers", transformers.__version__)
print("\n".join(f"{value:.9g}" for value in logits.flatten().tolist()))
