#!/usr/bin/env python3
"""Weights for llm.c, and its build from a folder with its sources; run by the peer's Python.

    llm_c.py weights MODEL.safetensors HEADS OUTPUT.bin    GPT-2 with Hugging Face's names -> llm.c's checkpoint
    llm_c.py build FOLDER OUTPUT                           llm_c.c with FOLDER's train_gpt2.c, as llm.c's Makefile would
"""
import struct
import subprocess
import sys
from pathlib import Path

FLAGS = ["-Ofast", "-fno-finite-math-only", "-march=native", "-Wno-unused-result", "-Wno-unknown-pragmas", "-fopenmp", "-DOMP"]


def write_weights(model, heads, output):
    import numpy as np
    from safetensors.numpy import load_file
    tensors = {name.removeprefix("transformer."): tensor.astype(np.float32) for name, tensor in load_file(model).items()}
    vocabulary, width = tensors["wte.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("h."))
    padded = (vocabulary + 127) // 128 * 128
    header = [20240326, 3, len(tensors["wpe.weight"]), vocabulary, layers, heads, width, padded]
    # Matrices of its linear layers are [out, in]; one kind of parameter of all layers after the other.
    of_block = [("ln_1.weight", 0), ("ln_1.bias", 0), ("attn.c_attn.weight", 1), ("attn.c_attn.bias", 0),
                ("attn.c_proj.weight", 1), ("attn.c_proj.bias", 0), ("ln_2.weight", 0), ("ln_2.bias", 0),
                ("mlp.c_fc.weight", 1), ("mlp.c_fc.bias", 0), ("mlp.c_proj.weight", 1), ("mlp.c_proj.bias", 0)]
    with open(output, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        tensors["wte.weight"].tofile(file)
        np.zeros((padded - vocabulary, width), np.float32).tofile(file)
        tensors["wpe.weight"].tofile(file)
        for name, transposed in of_block:
            for layer in range(layers):
                tensor = tensors[f"h.{layer}.{name}"]
                np.ascontiguousarray(tensor.T if transposed else tensor).tofile(file)
        tensors["ln_f.weight"].tofile(file)
        tensors["ln_f.bias"].tofile(file)


def build(folder, output):
    if not (Path(folder) / "train_gpt2.c").is_file():
        sys.exit(f"expected llm.c's train_gpt2.c in {folder}, found none; name a copy of https://github.com/karpathy/llm.c")
    driver = Path(__file__).resolve().parent / "llm_c.c"
    subprocess.run(["cc", *FLAGS, "-I", str(folder), str(driver), "-lm", "-o", str(output)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["weights"] and len(sys.argv) == 5:
        write_weights(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["build"] and len(sys.argv) == 4:
        build(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
