#!/usr/bin/env python3
"""Texts that a run tokenizes while it reads them against fsdp-data tokenize, and beside training.

The texts are repeated to --megabytes, as .txt files and as .jsonl. The vocabulary is a tokenizer.json, by default one
that PyPI's tokenizers learns from the text, as in `scripts/bench tokenize`.

First, alone: megabytes of text a second of fsdp-data tokenize, of a loader that reads the stream without pause, and
of the same loader from the blocks that are there then. Second, beside training: the seconds of a step and those that
it waits for data, of a small model on the texts and on the token files of the same texts, in turns.
"""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from tokenizing import LEARN

CONFIG = """
[run]
output_dir = "{folder}/out"
[model]
vocab_size = {vocabulary}
hidden_size = 256
intermediate_size = 688
num_hidden_layers = 4
num_attention_heads = 4
[data]
train = {train}
tokenizer = "{tokenizer}"
sequence_length = 512
micro_batch_size = 4
[training]
steps = {steps}
[logging]
interval_steps = 1
"""


def output(command, **environment):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            env={**os.environ, **environment})
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed: {result.stderr.strip()}")
    return result.stdout


def seconds(command):
    begin = time.perf_counter()
    output(command)
    return time.perf_counter() - begin


def write_texts(arguments, folder):
    one = "".join(open(path, encoding="utf-8").read() for path in sorted(glob.glob(os.path.join(arguments.texts, "*.txt"))))
    parts = max(1, arguments.megabytes * 1_000_000 // len(one.encode()) // 4)
    os.makedirs(os.path.join(folder, "texts"))
    for i in range(4):
        with open(os.path.join(folder, "texts", f"{i}.txt"), "w", encoding="utf-8") as file:
            file.write(one * parts)
    os.makedirs(os.path.join(folder, "rows"))
    paragraphs = [part for part in one.split("\n\n") if part]
    for i in range(4):
        with open(os.path.join(folder, "rows", f"{i}.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(parts):
                file.writelines(json.dumps({"text": part}) + "\n" for part in paragraphs)


def alone(arguments, folder):
    print(f"Alone, byte-level BPE, {arguments.megabytes} MB of text, median of {arguments.repetitions}\n")
    print("| texts | fsdp-data tokenize | stream | stream, from its blocks |")
    print("| --- | ---: | ---: | ---: |")
    for kind in ("texts", "rows"):
        source = os.path.join(folder, kind)
        megabytes = sum(os.path.getsize(path) for path in glob.glob(source + "/*")) / 1e6
        tokens, tokenized, streamed, again = os.path.join(folder, kind + ".u32"), [], [], []
        for _ in range(arguments.repetitions):
            tokenized.append(seconds([arguments.data, "tokenize", source, "--tokenizer", arguments.tokenizer, "--output", tokens]))
            blocks = os.path.join(folder, "blocks")
            shutil.rmtree(blocks, ignore_errors=True)
            first, second = output([arguments.program, arguments.tokenizer, os.path.getsize(tokens) // 4, blocks, source]).split()
            streamed.append(float(first))
            again.append(float(second))
        rates = " | ".join(f"{megabytes / statistics.median(times):.1f} MB/s" for times in (tokenized, streamed, again))
        print(f"| {'plain' if kind == 'texts' else 'JSON lines'} | {rates} |", flush=True)


def beside(arguments, folder):
    print(f"\nBeside training, {arguments.steps} steps on all cores, median of a step and the most after the first\n")
    print("| data | step | waits for data | most that a step waits |")
    print("| --- | ---: | ---: | ---: |")
    sets = {"token files": os.path.join(folder, "texts.u32"), "texts": os.path.join(folder, "texts")}
    for name, train in sets.items():
        shutil.rmtree(os.path.join(folder, "out"), ignore_errors=True)
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(folder=folder, vocabulary=arguments.vocabulary, train=json.dumps([train]),
                                     tokenizer=arguments.tokenizer, steps=arguments.steps))
        output([arguments.train, config], FSDP_CACHE_DIR="")
        lines = [json.loads(line) for line in open(os.path.join(folder, "out/metrics.jsonl"), encoding="utf-8")]
        steps = [line for line in lines if "step_seconds" in line][1:]
        waits = [line["data_wait_seconds"] for line in steps]
        print(f"| {name} | {1e3 * statistics.median(line['step_seconds'] for line in steps):.1f} ms "
              f"| {1e3 * statistics.median(waits):.2f} ms | {1e3 * max(waits):.2f} ms |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="build/bin/streaming")
    parser.add_argument("--data", required=True, help="build/bin/fsdp-data")
    parser.add_argument("--train", required=True, help="build/bin/fsdp-train")
    parser.add_argument("--texts", required=True, help="folder of .txt files")
    parser.add_argument("--peer-python", required=True, help="a Python that has tokenizers")
    parser.add_argument("--tokenizer", help="a tokenizer.json; default: learnt, 8,000 tokens")
    parser.add_argument("--vocabulary", type=int, default=32768, help="model.vocab_size of the trained model")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
        write_texts(arguments, folder)
        if not arguments.tokenizer:
            arguments.tokenizer = os.path.join(folder, "tokenizer.json")
            output([arguments.peer_python, "-c", LEARN, arguments.tokenizer, os.path.join(folder, "texts/0.txt"), 8000])
        alone(arguments, folder)
        beside(arguments, folder)


if __name__ == "__main__":
    main()
