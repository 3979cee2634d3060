#!/usr/bin/env python3
"""Instructions of a training step, counted by valgrind: a figure that neither load nor clock changes.

    instructions.py FSDP_TRAIN

A tiny fp32 llama in one process, run for 2 and for 6 steps: the difference is that of 4 steps, without start and end.
libtorch's kernels are held to AVX2, which is what valgrind knows; bf16 products would fall to kernels that no
processor with AVX-512 uses, so they are not counted.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import rank_environment
from sides import write_tokens

FEW, MANY = 2, 6
CONFIG = """
[model]
vocab_size = 256
hidden_size = 64
intermediate_size = 172
num_hidden_layers = 2
num_attention_heads = 4
max_position_embeddings = 64
[data]
train = ["{work}/tokens.bin"]
sequence_length = 64
micro_batch_size = 2
shuffle = false
[fsdp]
min_num_params = 40_000
[checkpoint]
interval_steps = 0
save_at_end = false
resume = "never"
"""


def count(program, work, steps):
    config = work / "config.toml"
    config.write_text(CONFIG.format(work=work), encoding="utf-8")
    environment = rank_environment(0, 1, 29500, 1)  # a world of one opens no port
    environment.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    # Without random addresses: what a hash of a pointer decides is then the same each time.
    command = ["setarch", "-R", "valgrind", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={work}/callgrind.out", program,
               str(config), f"run.output_dir={work}/run-{steps}", f"training.steps={steps}"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = re.search(r"Collected\s*:\s*(\d+)", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit("bench: valgrind ended with {}:\n{}".format(run.returncode, "\n".join(run.stderr.splitlines()[-8:])))
    return int(found.group(1))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: instructions.py FSDP_TRAIN")
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
        work = Path(folder)
        write_tokens(work / "tokens.bin", 256, 64 * 64 + 1)
        few, many = (count(sys.argv[1], work, steps) for steps in (FEW, MANY))
        print(f"{(many - few) / (MANY - FEW) / 1e6:.2f} million instructions a step "
              "(2 sequences of 64 tokens, 2 blocks of width 64, fp32, one process)")


if __name__ == "__main__":
    main()
