#!/usr/bin/env python3
"""Trains the same models with training.reproducible = "world_size", shared out in many ways, and compares the SHA-256 of the
consolidated weights, the optimizer state and the metrics. --draws takes some of the ways, by seed.

Ways: 1, 2, 3, 4, 6 and 8 processes; full_shard, shard_grad_op, no_shard and hybrid_shard; both layouts; shards in host memory
or not; micro-batches of 1 to 24 sequences; 1 and 2 threads a process; shared memory, gloo and, over two "hosts" with process
numbers of their own (which needs the right to make namespaces), hierarchical. For each of the models, in fp32 and bf16.

--cost instead measures how long steps take, against the default order of sums, in turns.
"""
import argparse
import collections
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from results import describe_machine, replace_section
from sides import Setting, Sides
from step_tables import median_step, table, with_spread

GLOBAL_BATCH = 24
Way = collections.namedtuple("Way", "processes strategy layout offload rows threads backend")
FIRST = Way(1, "full_shard", "flat", False, 4, 1, "shm")
COMMON = {"model.vocab_size": 293, "model.hidden_size": 72, "model.num_hidden_layers": 2, "model.num_attention_heads": 3,
          "model.max_position_embeddings": 80, "data.sequence_length": 75}
MODELS = {
    "llama": {"model.architecture": "llama", "model.intermediate_size": 200, "model.num_key_value_heads": 1},
    "llama-tied": {"model.architecture": "llama", "model.intermediate_size": 200, "model.num_key_value_heads": 3,
                   "model.tie_word_embeddings": True, "model.hidden_dropout": 0.1},
    "qwen3": {"model.architecture": "qwen3", "model.intermediate_size": 200, "model.num_key_value_heads": 1,
              "model.head_dim": 24},
    "gpt2": {"model.architecture": "gpt2", "model.intermediate_size": 288, "model.tie_word_embeddings": True},
}


def ways():
    all_ways = []
    for way in itertools.product((1, 2, 3, 4, 6, 8), ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
                                 ("flat", "per_parameter"), (False, True), (1, 2, 3, 4, 6, 8, 12, 24), (1, 2),
                                 ("shm", "gloo", "hierarchical")):
        way = Way(*way)
        if GLOBAL_BATCH % (way.processes * way.rows) or (way.backend == "hierarchical" and way.processes < 4):
            continue
        if way.strategy == "hybrid_shard" and way.processes < 4:
            continue
        if way.backend == "gloo" and way.processes == 1:
            continue
        all_ways.append(way)
    return all_ways


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tokens_of(folder, count, seed):
    source = random.Random(seed)
    path = folder / f"tokens{seed}.bin"
    path.write_bytes(b"".join(source.randrange(293).to_bytes(2, "little") for _ in range(count)))
    return str(path)


class Runs:
    def __init__(self, arguments, folder):
        self.bin, self.steps, self.folder, self.extra = pathlib.Path(arguments.bin), arguments.steps, folder, arguments.set
        self.train, self.validation = tokens_of(folder, 30000, 1), tokens_of(folder, 2000, 2)

    def config(self, model, dtype, way, output):
        keys = {**COMMON, **MODELS[model], "run.output_dir": str(output), "run.seed": 11, "data.train": [self.train],
                "data.validation": [self.validation], "data.micro_batch_size": way.rows, "training.steps": self.steps,
                "training.global_batch_size": GLOBAL_BATCH, "training.reproducible": "world_size", "training.max_grad_norm": 0.7,
                "optimizer.lr": 0.003, "fsdp.strategy": way.strategy, "fsdp.layout": way.layout, "fsdp.cpu_offload": way.offload,
                "fsdp.min_num_params": 2000, "mixed_precision.param_dtype": dtype, "comm.backend": way.backend,
                "checkpoint.interval_steps": 0, "checkpoint.save_at_end": True, "logging.peak_tflops": 1}
        if way.strategy == "hybrid_shard":
            keys["mesh.dcn"] = 2
        path, sections = self.folder / "config.toml", {}
        for name, value in keys.items():
            section, key = name.split(".")
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}\n")
        path.write_text("".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items()))
        return [path, *self.extra]

    def run(self, model, dtype, way):
        """The hashes of what a run leaves behind, and its metrics."""
        output = self.folder / "run"
        shutil.rmtree(output, ignore_errors=True)
        hosts = 2 if way.backend == "hierarchical" else 1
        port, launched = free_port(), []
        for host in range(hosts):
            command = [self.bin / "fsdp-launch", "--nproc-per-node", str(way.processes // hosts)]
            if hosts > 1:
                command = ["unshare", "--pid", "--fork", "--mount-proc", *command, "--nnodes", str(hosts), "--node-rank", str(host),
                           "--master-addr", "127.0.0.1", "--master-port", str(port)]
            command += ["--", self.bin / "fsdp-train", *self.config(model, dtype, way, output)]
            launched.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                             env={**os.environ, "OMP_NUM_THREADS": str(way.threads)}))
        texts = [process.communicate()[0] for process in launched]
        if any(process.returncode for process in launched):
            raise SystemExit(f"{way} failed:\n" + "\n".join(texts))
        weights = self.folder / "weights.safetensors"
        subprocess.run([self.bin / "fsdp-ckpt", "consolidate", "--force", output, weights], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {"weights": hashlib.sha256(weights.read_bytes()).hexdigest()}
        # A checkpoint of one file has times in it, so its tensors are compared with those of the first run.
        first = self.folder / f"{model}-{dtype}"
        if not first.exists():
            shutil.copytree(output, first)
        found["optimizer state"] = subprocess.run([self.bin / "fsdp-ckpt", "diff", first, output],
                                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        kept = ("step", "loss", "grad_norm", "lr", "validation_loss")
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        found["metrics"] = [[line.get(key) for key in kept] for line in lines]
        return found


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench reproducible", description=__doc__)
    p.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    p.add_argument("--steps", type=int, default=200, help="of a run (200)")
    p.add_argument("--draws", type=int, default=0, help="how many ways to draw; 0: all")
    p.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    p.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)} (all)")
    p.add_argument("--dtypes", default="float32,bfloat16", help="of float32, bfloat16 (both)")
    p.add_argument("--cost", action="store_true", help="measure times of steps")
    p.add_argument("--cost-of", default="quickstart:1,quickstart:2,quickstart:3,quickstart:4,small:2", metavar="MODEL:RANKS,...",
                   help="settings of --cost (quickstart:1,quickstart:2,quickstart:3,quickstart:4,small:2)")
    p.add_argument("--write", action="store_true", help="with --cost: put the table into tests/bench/RESULTS.md")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    return p.parse_args()


def measure_cost(a):
    rows, rounds, steps, warmup = [], 3, 10, 3
    head = ["model", "ranks", "type", "sequences a rank", "default, s", "world_size, s", "world_size / default", "peak MiB a rank, each"]
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        sides = Sides(pathlib.Path(a.bin) / "fsdp-train", None, work, a.set)
        for (model, ranks), dtype in itertools.product((each.split(":") for each in a.cost_of.split(",")), ("fp32", "bf16")):
            setting = Setting(model, int(ranks), dtype, 4, steps, warmup, threads=1)
            runs = {"run": [], "world_size": []}
            for _ in range(rounds):
                for value, done in runs.items():
                    done.append(sides.run_ours(setting, overrides=[f"training.reproducible={value}"], stored_weights=False))
            ratios = [statistics.median(own.seconds) / statistics.median(base.seconds) for base, own in zip(*runs.values())]
            ratio = median_step(runs["world_size"]) / median_step(runs["run"])
            peaks = " / ".join(f"{statistics.median(run.peak_mib for run in done):.0f}" for done in runs.values())
            rows.append([model, ranks, dtype, "4", with_spread(runs["run"]), with_spread(runs["world_size"]),
                         f"{ratio:.3f} ({min(ratios):.3f}..{max(ratios):.3f})", peaks])
            print("| " + " | ".join(rows[-1]) + " |", flush=True)
            if a.write:  # an interrupted run keeps what it has
                flags = "; ".join([f"{rounds} rounds of {steps} steps, {warmup} not counted", *a.set])
                replace_section("reproducible", f"{describe_machine(flags)}\n\n{table(head, rows)}")
    return 0


def main():
    a = parse_arguments()
    if a.cost:
        return measure_cost(a)
    cases = list(itertools.product(a.models.split(","), a.dtypes.split(",")))
    todo = [(case, way) for case in cases for way in ways()]
    if a.draws:
        todo = random.Random(a.seed).sample(todo, a.draws)
    expected, different = {}, 0
    with tempfile.TemporaryDirectory(prefix="fsdp-reproducible") as folder:
        runs = Runs(a, pathlib.Path(folder))
        for number, (case, way) in enumerate(todo):
            if case not in expected:
                expected[case] = runs.run(*case, FIRST)
                print(f"{'/'.join(case)}, one process: weights {expected[case]['weights'][:16]}, loss {expected[case]['metrics'][-1][1]}", flush=True)
            begin = time.monotonic()
            found = runs.run(*case, way)
            wrong = [what for what in found if found[what] != expected[case][what]]
            different += bool(wrong)
            print(f"{number + 1}/{len(todo)} {'/'.join(case)} {tuple(way)} {time.monotonic() - begin:.1f} s: "
                  f"{'DIFFERENT ' + ', '.join(wrong) if wrong else 'the same'}", flush=True)
    print(f"{len(todo)} runs, {different} of them different from one process")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
