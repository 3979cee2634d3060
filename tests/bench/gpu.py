#!/usr/bin/env python3
"""The benchmark on NVIDIA GPUs; started by scripts/bench --gpu, which builds and brings the peer's venv.

  steps     bf16, sequences of 2048: gpt2-124m, a llama of 1.3 billion parameters and the largest that fits, against
            PyTorch's FSDP2 with and without torch.compile, in turns on the same weights and tokens, losses compared
  engine    what sharding costs in a world of one, and the engine's own bookkeeping a unit
  offload   steps with shards, gradients and optimizer in host memory, against FSDP2's CPUOffloadPolicy
  graphs    steps with training.cuda_graphs against those without, of the smallest model, where launching takes longest
  float8    steps with training.float8 against those in bf16, of llama-1.3b
  memory    one rank's step of 13B over 8, 175B over 128 and 1T over 256 ranks that are not there

Where losses differ by more than the tolerance, the exit code is 1. --device cpu is a trial of all this without a
GPU, with tiny models: it shows that the benchmark works, and no figure of it is worth keeping.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_device import NoGpu, find_gpu
from gpu_models import GIB, ON_GPUS, ON_THE_CPU, LargestLlama, trial_setting
from gpu_tables import gpu_table, memory_table, peak_rate
from ranks import RunFailed
from results import RESULTS, describe_machine, replace_section
from sides import Setting, Sides
from step_tables import Comparison, table

PARTS = ("steps", "engine", "offload", "graphs", "float8", "memory")
ON_GPUS_ALONE = ("graphs", "float8")
LEARNING_RATE = 1e-4  # with 3e-4 the loss of gpt2-124m has a peak in the first 20 steps, and rounding decides how high
FSDP2 = ["--engine", "fsdp2", "--lr", str(LEARNING_RATE)]
PEERS = {"fsdp2": FSDP2, "fsdp2 compile": [*FSDP2, "--compile"]}
TOLERANCE = 2e-2
PROJECT = Path(__file__).resolve().parents[2]


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench --gpu", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parts", help=f"of {', '.join(PARTS)} (all; {' and '.join(ON_GPUS_ALONE)} need a GPU)")
    p.add_argument("--models", help="of gpt2-124m, llama-1.3b, largest (all)")
    p.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)} (all)")
    p.add_argument("--ranks", type=int, default=1, help="processes, a GPU each (1)")
    p.add_argument("--sequences", type=int, help="sequences a rank (8, 4 and 1 for the three models)")
    p.add_argument("--rounds", type=int, default=3, help="turns of ours and theirs (3)")
    p.add_argument("--steps", type=int, default=25, help="of a run (25)")
    p.add_argument("--warmup", type=int, default=5, help="first steps of a run that do not count (5)")
    p.add_argument("--peak-tflops", type=float, help="what MFU is a share of (the data sheet's of known GPUs, else the "
                                                     "best product measured)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true",
                   help="put the tables into tests/bench/RESULTS.md, in place of those of the same parts")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: a trial without a GPU")
    p.add_argument("--memory-gib", type=float, help="of a rank, for the largest model (what the GPU has free)")
    p.add_argument("--results", type=Path, default=RESULTS, help="in place of tests/bench/RESULTS.md")
    p.add_argument("--bin", type=Path, required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.choice = ON_GPUS if a.device == "cuda" else ON_THE_CPU
    known_models = [*a.choice.models, "largest"]
    a.models = a.models or ",".join(known_models)
    known_parts = [part for part in PARTS if part not in ON_GPUS_ALONE or a.device == "cuda"]
    a.parts = a.parts or ",".join(known_parts)
    for name, known in (("parts", known_parts), ("models", known_models), ("peers", PEERS)):
        setattr(a, name, getattr(a, name).split(","))
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    if min(a.ranks, a.rounds, a.sequences or 1) < 1 or not 0 <= a.warmup < a.steps:
        p.error("ranks, sequences and rounds are at least 1, and there are more steps than warm-up steps")
    if a.device == "cpu" and a.write and a.results == RESULTS:
        p.error("--write: expected a GPU, because the figures of a trial are none; found --device cpu; name another "
                "file with --results")
    return a


def say(text):
    print(text, file=sys.stderr, flush=True)


class GpuBench:
    def __init__(self, arguments, sides, gpu):
        self.a, self.sides, self.gpu = arguments, sides, gpu
        self.limit_bytes = int(arguments.memory_gib * GIB) if arguments.memory_gib else gpu["free_bytes"]
        self.threads = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
        self.gemm = sides.gemm_rates(self.threads)["bf16"] / 1e3
        self.peak_tflops, self.whose_peak = peak_rate(gpu["name"], arguments.peak_tflops, self.gemm)
        self.too_far = []

    def setting(self, model, offload=False, sequences=None):
        a = self.a
        sequences = sequences or a.sequences or a.choice.sequences.get(model, a.choice.sequences["largest"])
        return Setting(model, a.ranks, "bf16", sequences, a.steps, a.warmup, self.threads, offload)

    def in_turns(self, what, ours, theirs):
        """The runs of both, taken A B A B; None for a side that ran out of memory."""
        results = [[], []]
        for number in range(self.a.rounds):
            for side, (name, run) in enumerate((("ours", ours), ("theirs", theirs))):
                if results[side] is None:
                    continue
                say(f"{what}, round {number + 1} of {self.a.rounds}, {name}")
                try:
                    results[side].append(run())
                except RunFailed as failure:
                    if not failure.out_of_memory():
                        raise
                    say(f"{what}, {name}: out of memory")
                    results[side] = None
        return results

    def compare(self, setting, peer):
        return self.compared(setting, peer, lambda: self.sides.run_ours(setting),
                             lambda: self.sides.run_peer(setting, PEERS[peer]))

    def compared(self, setting, peer, run_ours, run_theirs):
        ours, theirs = self.in_turns(f"{setting.model}, {peer}", run_ours, run_theirs)
        difference = None
        if ours and theirs:
            difference = max(abs(x - y) / abs(y) for mine, its in zip(ours, theirs)
                             for x, y in zip(mine.losses, its.losses, strict=True))
        comparison = Comparison(setting, peer, ours, theirs, difference, TOLERANCE)
        if difference is not None and not difference <= TOLERANCE:  # nan is too far, too
            self.too_far.append(comparison)
        return comparison

    def compare_all(self, settings):
        comparisons = []
        for setting in settings:
            comparisons += [self.compare(setting, peer) for peer in self.a.peers]
            self.sides.forget(setting.model)
        return gpu_table(comparisons, self.sides.models, self.peak_tflops)

    def largest(self):
        """The setting of the largest llama that both sides can train, and a sentence about each."""
        sequences = self.a.sequences or self.a.choice.sequences["largest"]
        llama = LargestLlama(self.sides, self.a.bin / "fsdp-plan", self.a.choice, self.limit_bytes,
                             trial_setting(self.a.ranks, sequences, self.threads))
        planned = llama.planned()
        say(f"largest llama: by the plan {planned} blocks of width {llama.family.hidden}")
        found = {"fsdp-train": llama.ours(max(planned, 1))}
        for peer in self.a.peers:
            found[peer] = llama.peers(max(planned, 1), PEERS[peer])
            say(f"largest llama: {peer} {found[peer][0]} blocks")

        def words(blocks, seen=True):
            if blocks == 0:
                return "none"
            billions = llama.sides.models[llama.of(blocks).model].parameters() / 1e9
            return f"{'' if seen else 'at least '}{blocks} blocks ({billions:.2f} billion parameters)"

        text = (f"Largest llama of width {llama.family.hidden} with {sequences} sequence(s) in "
                f"{self.limit_bytes / GIB:.1f} GiB: by the plan {words(planned)}; by trying, "
                + ", ".join(f"{side} {words(*blocks)}" for side, blocks in found.items()) + ".")
        blocks = min(number for number, _ in found.values())
        return (self.setting(llama.of(blocks).model) if blocks > 0 else None), text

    def steps(self):
        settings = [self.setting(model) for model in self.a.models if model != "largest"]
        texts = []
        if "largest" in self.a.models:
            setting, text = self.largest()
            settings += [setting] if setting else []
            texts.append(text)
        return "\n\n".join([self.compare_all(settings), *texts])

    def offload(self):
        model = [*self.a.choice.models][-1]
        peer = [name for name in self.a.peers if not name.endswith("compile")] or self.a.peers
        self.a.peers, all_peers = peer, self.a.peers
        try:
            return self.compare_all([self.setting(model), self.setting(model, offload=True)])
        finally:
            self.a.peers = all_peers

    def with_and_without(self, settings, key, without):
        """fsdp-train against itself."""
        comparisons = [self.compared(setting, without, lambda setting=setting: self.sides.run_ours(setting, overrides=(key,)),
                                     lambda setting=setting: self.sides.run_ours(setting)) for setting in settings]
        self.sides.forget(settings[0].model)
        return gpu_table(comparisons, self.sides.models, self.peak_tflops)

    def graphs(self):
        """One sequence is where kernels are shortest."""
        model = next(iter(self.a.choice.models))
        return self.with_and_without([self.setting(model, sequences=1), self.setting(model)], "training.cuda_graphs=true",
                                     "without graphs")

    def float8(self):
        model = [*self.a.choice.models][-1]
        return self.with_and_without([self.setting(model)], 'training.float8="tensorwise"', "bf16")

    def program(self, *command):
        say(" ".join(str(word) for word in command))
        output = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=self.sides.work,
                                env={**os.environ, "OMP_NUM_THREADS": str(self.threads)})
        if output.returncode != 0:
            raise RunFailed(f"'{command[0]}' ended with {output.returncode}:\n  {output.stderr.strip()}")
        return output.stdout

    def engine(self):
        rows = []
        for model, dtype in itertools.product(self.a.choice.models, ("float32", "bfloat16")):
            config = self.sides.work / "engine.toml"
            config.write_text(self.sides.our_config(self.setting(model), stored_weights=False), encoding="utf-8")
            cost = json.loads(self.program(self.a.bin / "engine_cost", config, f"mixed_precision.param_dtype={dtype}",
                                           *self.a.set))
            rows.append([model, dtype, str(cost["units"]), f"{cost['without_s']:.4g}", f"{cost['with_s']:.4g}",
                         f"{cost['with_s'] / cost['without_s']:.3f} ({cost['least_ratio']:.3f}.."
                         f"{cost['largest_ratio']:.3f})"])
        costs = table(["model", "type", "units", "without fsdp, s", "with, s", "with / without"], rows)
        bookkeeping = self.program(self.a.bin / "engine_overhead", 200, self.a.device).strip()
        return f"{costs}\n\n```\n{bookkeeping}\n```"

    def memory(self):
        rows = []
        for what, config, ranks, overrides in self.a.choice.plans:
            say(f"one rank of {what}")
            try:
                rows.append((what, self.sides.our_dry_run(PROJECT / config, ranks, *overrides, *self.a.set)))
            except RunFailed as failure:
                if not failure.out_of_memory():
                    raise
                rows.append((what, None))
        return memory_table(rows)

    def flags(self):
        a = self.a
        return "; ".join([f"{self.gpu['name']}, {self.gpu['total_bytes'] / GIB:.1f} GiB, {self.gpu['driver']}",
                          f"{a.ranks} of {self.gpu['count']} used", f"OMP_NUM_THREADS={self.threads}",
                          f"{a.rounds} rounds of {a.steps} steps, {a.warmup} not counted",
                          f"best bf16 product measured {self.gemm:.4g} TFLOP/s",
                          f"MFU of {self.peak_tflops:.4g} TFLOP/s ({self.whose_peak})", *a.set])

    def run(self, part):
        text = getattr(self, part)()
        print(f"{part}\n{self.flags()}\n\n{text}\n", flush=True)
        if self.a.write:
            replace_section(f"gpu: {part}", f"{describe_machine(self.flags())}\n\n{text}", self.a.results)


def machine(a):
    if a.device == "cuda":
        gpu = find_gpu()
        if gpu["count"] < a.ranks:
            raise NoGpu(f"expected {a.ranks} GPUs for --ranks {a.ranks}, found {gpu['count']}; ask for no more ranks")
        return gpu
    pages = os.sysconf("SC_PAGE_SIZE")
    return dict(name="a trial on the CPU, without a GPU", count=a.ranks, driver="no driver",
                total_bytes=os.sysconf("SC_PHYS_PAGES") * pages, free_bytes=os.sysconf("SC_AVPHYS_PAGES") * pages)


def main():
    a = parse_arguments()
    gpu = machine(a)
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        sides = Sides(a.bin / "fsdp-train", a.peer_python, work, ["logging.peak_tflops=1", f"optimizer.lr={LEARNING_RATE}", *a.set],
                      dict(a.choice.models), a.device)
        bench = GpuBench(a, sides, gpu)
        for part in a.parts:
            bench.run(part)
    for c in bench.too_far:
        say(f"losses differ: {c.setting.model}, {c.peer}: {c.difference:.1e}, expected at most {c.tolerance:.0e}")
    sys.exit(1 if bench.too_far else 0)


if __name__ == "__main__":
    try:
        main()
    except (NoGpu, RunFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench: {error}" if str(error) else "bench: interrupted")
