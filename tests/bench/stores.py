#!/usr/bin/env python3
"""Steps that read tokens from a store of objects against steps that read them from a disk, at a given latency of the store.

In turns, in one run: from a disk; from s3:// with an empty cache; from s3:// with the cache that the run before has filled; and
without a cache on disk (FSDP_CACHE_GIB=0). The store is tests/support/object_server.py on loopback, which waits for the latency
before each answer. Samples are shuffled over a token file of 64 MB, so that nearly every sample is in another block.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
CONFIG = """
[model]
vocab_size = 4096
hidden_size = 512
intermediate_size = 1376
num_hidden_layers = {layers}
num_attention_heads = 8
max_position_embeddings = 256
[data]
sequence_length = 256
micro_batch_size = 4
shuffle = true
[training]
steps = {steps}
[checkpoint]
interval_steps = 0
save_at_end = false
[logging]
interval_steps = 1
peak_tflops = 1
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.environ.get("FSDP_BIN_DIR", "build/bin"), help="folder of fsdp-train")
    parser.add_argument("--latency-ms", type=float, default=10)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    binaries = Path(arguments.bin).resolve()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
        work = Path(folder)
        tokens = work / "files/bucket/train.bin"
        tokens.parent.mkdir(parents=True)
        state, content = 1, bytearray()
        for _ in range(1 << 20):
            state = (state * 1103515245 + 12345) % (1 << 31)
            content += (state >> 16 & 4095).to_bytes(2, "little")
        tokens.write_bytes(bytes(content) * 32)
        (work / "config.toml").write_text(CONFIG.format(layers=arguments.layers, steps=arguments.steps))
        server = subprocess.Popen([sys.executable, HERE.parent / "support/object_server.py", "--files", work / "files"],
                                  stdout=subprocess.PIPE, text=True)
        address = f"http://localhost:{server.stdout.readline().split()[1]}"
        urlopen(f"{address}/_control?set=" + quote(json.dumps({"latency_ms": arguments.latency_ms}))).read()

        def run(name, data, cache, gib):
            output = work / "out"
            shutil.rmtree(output, ignore_errors=True)
            environment = os.environ | {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                                        "AWS_EC2_METADATA_DISABLED": "true", "FSDP_CACHE_DIR": str(work / cache), "FSDP_CACHE_GIB": gib,
                                        "OMP_NUM_THREADS": "1"}
            command = [binaries / "fsdp-launch", "--nproc-per-node", "2", "--", binaries / "fsdp-train", work / "config.toml",
                       f'data.train=["{data}"]', f"run.output_dir={output}"]
            result = subprocess.run(command, env=environment, capture_output=True, text=True)
            if result.returncode != 0:
                sys.exit(f"{name} failed: {result.stderr}")
            lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
            return [line["step_seconds"] for line in lines if "step_seconds" in line][2:], lines[-1]["loss"]

        kinds = [("disk", str(tokens), "cache", "1"), ("store, empty cache", "s3://bucket/train.bin", "cache", "1"),
                 ("store, filled cache", "s3://bucket/train.bin", "cache", "1"), ("store, no cache on disk", "s3://bucket/train.bin", "none", "0")]
        seconds, losses = {kind[0]: [] for kind in kinds}, set()
        for _ in range(arguments.rounds):
            shutil.rmtree(work / "cache", ignore_errors=True)
            for kind in kinds:
                steps, loss = run(*kind)
                seconds[kind[0]] += steps
                losses.add(loss)
        server.kill()
        disk = statistics.median(seconds["disk"])
        print(f"{arguments.layers} blocks of width 512, 2 ranks, 4 x 256 tokens each, {arguments.steps} steps, {arguments.rounds} rounds, "
              f"{arguments.latency_ms:g} ms of latency; the last losses are {'equal' if len(losses) == 1 else f'different: {losses}'}\n")
        print("| tokens from | median step | mean step | median / disk | mean / disk |\n| --- | ---: | ---: | ---: | ---: |")
        for name, steps in seconds.items():
            print(f"| {name} | {statistics.median(steps):.4f} s | {statistics.mean(steps):.4f} s | {statistics.median(steps) / disk:.3f} | "
                  f"{statistics.mean(steps) / statistics.mean(seconds['disk']):.3f} |")


main()
