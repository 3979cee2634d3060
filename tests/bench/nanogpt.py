#!/usr/bin/env python3
"""The recipe configs/shakespeare_char.toml against nanoGPT's train.py with its own recipe for CPUs, in turns, on the same tokens and cores.

Seconds are those of whole runs from start to end, with a validation every 250 steps: nanoGPT estimates two losses from 20 random batches each,
fsdp-train computes one over as many samples. Losses are nanoGPT's last estimate and fsdp-train's loss over the whole validation part.
"""
import argparse
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# Overrides, and the part of the steps.
MODELS = {"llama": ([], 1), "llama, 0.4 of the steps": ([], 0.4),
          "gpt2": (["model.architecture=gpt2", "model.intermediate_size=512"], 1)}


def timed(command, folder, **environment):
    begin = time.monotonic()
    result = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed: {(result.stderr.strip() or result.stdout.strip())[-500:]}")
    return time.monotonic() - begin, result.stdout


def tokenize(binaries, text, folder):
    characters, tokens = folder / "characters.json", [folder / "train.bin", folder / "val.bin"]
    timed([binaries / "fsdp-data", "train-tokenizer", text, "--type", "characters", "--output", characters], folder)
    timed([binaries / "fsdp-data", "tokenize", text, "--tokenizer", characters, "--output", tokens[0],
           "--validation-output", tokens[1], "--validation-fraction", "0.1000004"], folder)
    return characters, tokens


def nanogpt(arguments, seed, tokens, folder):
    source = Path(arguments.nanogpt)
    if not (source / "train.py").is_file():
        sys.exit(f"expected nanoGPT's train.py in {source}, found none; name a copy of https://github.com/karpathy/nanoGPT")
    copy = folder / f"nanogpt-{seed}"
    if not copy.exists():
        (copy / "data/shakespeare_char").mkdir(parents=True)
        for name in ("model.py", "configurator.py"):
            shutil.copy(source / name, copy)
        shutil.copytree(source / "config", copy / "config")
        (copy / "train.py").write_text((source / "train.py").read_text().replace("manual_seed(1337", f"manual_seed({seed}"))
        for token_file in tokens:
            shutil.copy(token_file, copy / "data/shakespeare_char")
        # Without it, train.py takes GPT-2's vocabulary.
        (copy / "data/shakespeare_char/meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(set(arguments.text.read_text()))}))
    steps = arguments.steps
    seconds, output = timed([arguments.peer_python, "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False",
                             "--eval_iters=20", "--log_interval=100", "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4",
                             "--n_embd=128", f"--max_iters={steps}", f"--lr_decay_iters={steps}", "--dropout=0.0"],
                            copy, OMP_NUM_THREADS="2")
    return seconds, float(re.findall(r"val loss ([0-9.]+)", output)[-1])


def fsdp(arguments, model, seed, characters, tokens, folder):
    overrides, part = MODELS[model]
    common = [PROJECT / "configs/shakespeare_char.toml", *overrides, f'data.train=["{tokens[0]}"]', f'data.validation=["{tokens[1]}"]',
              f'data.tokenizer="{characters}"', "data.micro_batch_size=6"]
    output = folder / f"{model}-{seed}-{time.monotonic_ns()}"
    seconds, _ = timed([arguments.bin / "fsdp-launch", "--nproc-per-node", "2", "--", arguments.bin / "fsdp-train", *common, f"run.seed={seed}",
                        f"training.steps={round(part * arguments.steps)}", "evaluation.interval_steps=250", "evaluation.max_samples=480",
                        f'run.output_dir="{output}"'], folder)
    _, text = timed([arguments.bin / "fsdp-train", "evaluate", *common[:1], output, *common[1:]], folder)
    return seconds, float(re.search(r"loss ([0-9.]+)", text)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=lambda name: Path(name).resolve(), required=True, help="folder of the programs")
    parser.add_argument("--peer-python", required=True, help="a Python that has torch and numpy")
    parser.add_argument("--nanogpt", required=True, help="a copy of nanoGPT")
    parser.add_argument("--text", type=lambda name: Path(name).resolve(), required=True, help="tinyshakespeare's input.txt")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as name:
        folder = Path(name)
        characters, tokens = tokenize(arguments.bin, arguments.text, folder)
        rows = {}
        for seed in arguments.seeds:
            rows.setdefault("nanoGPT", []).append(nanogpt(arguments, seed, tokens, folder))
            for model in MODELS:
                rows.setdefault(f"fsdp-train, {model}", []).append(fsdp(arguments, model, seed, characters, tokens, folder))
    peer = statistics.median(seconds for seconds, _ in rows["nanoGPT"])
    print(f"{arguments.steps} steps, two cores, seeds {', '.join(map(str, arguments.seeds))}: median of the seconds\n")
    print("| program | seconds | seconds / nanoGPT's | validation losses |\n| --- | ---: | ---: | --- |")
    for program, runs in rows.items():
        seconds = statistics.median(run[0] for run in runs)
        print(f"| {program} | {seconds:.1f} | {seconds / peer:.2f} | {', '.join(f'{loss:.3f}' for _, loss in runs)} |")


if __name__ == "__main__":
    main()
