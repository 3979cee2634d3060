#!/usr/bin/env python3
"""Fine-tuning of LoRA adapters by fsdp-train against PEFT with PyTorch's FSDP2; started by scripts/bench lora.

Both run in turns (A B C A B C), each time as a new process group on the same weights, adapters and tokens, as in steps.py.
Losses are compared step by step; where they differ by more than the tolerance, the exit code is 1.
"""
import argparse
import collections
import itertools
import json
import tempfile

from results import describe_machine, replace_section
from sides import Model, Setting, Sides
from step_tables import Comparison, differs_by, median_of, median_step, pair, ratio, table, tokens_per_second, with_spread
from steps import TOLERANCE, end, largest_difference, run, say

RANK = 16
MODELS = {
    "smollm2-135m": Model(30, 576, 9, 1536, 49152, 512, kv_heads=3, tied=True),
    "llama-1b": Model(22, 2048, 32, 5632, 32000, 512, kv_heads=4),
    "tiny": Model(2, 128, 4, 344, 512, 64, kv_heads=2, tied=True),
}
# The units that the peer gathered in forward are gathered again for backward, or kept.
PEERS = {"reshards": ["--reshard", "1"], "keeps": ["--reshard", "0"]}


def adapted_width(model):
    """In and out of all linear layers of a block."""
    attention = 2 * (2 * model.hidden + model.hidden + model.key_width())
    return attention + 3 * (model.hidden + model.intermediate)


def flops_per_token(model):
    """Of a frozen weight forward and the gradient of the input, 2 each; of adapters that of the weight too."""
    adapters = model.layers * RANK * adapted_width(model)
    return 4.0 * model.multiplied() + 6.0 * adapters + 12.0 * model.layers * model.hidden * model.sequence


class LoraSides(Sides):
    def peer_command(self, model):
        return [*super().peer_command(model), "--lora", str(RANK)]

    def run_peer(self, setting, flags, stored_weights=True):
        tuned = [] if setting.dtype == "bf16" else ["--tuned"]  # fp32 products by oneDNN
        return super().run_peer(setting, ["--engine", "fsdp2", *tuned, *flags], stored_weights)

    def more_config(self, setting):
        adapters = self.weights(setting.model).with_suffix(".adapter")
        return f"""
[lora]
rank = {RANK}
alpha = {2 * RANK}
init_from = {json.dumps(str(adapters))}
"""

    def run_ours(self, setting, **options):
        """Frozen weights need no masters in fp32: the shards have the type that computes."""
        storage = "bfloat16" if setting.dtype == "bf16" else "float32"
        return super().run_ours(setting, overrides=[f"fsdp.param_storage={storage}"], **options)


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench lora")
    p.add_argument("--models", default="smollm2-135m,llama-1b", help=f"of {', '.join(MODELS)} (smollm2-135m,llama-1b)")
    p.add_argument("--ranks", type=int, default=2, help="processes (2)")
    p.add_argument("--dtypes", default="fp32,bf16", help="fp32,bf16")
    p.add_argument("--sequences", default="1,4", help="sequences a rank (1,4)")
    p.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)} (both)")
    p.add_argument("--rounds", type=int, default=3, help="turns of ours and theirs (3)")
    p.add_argument("--steps", type=int, default=6, help="of a run (6)")
    p.add_argument("--warmup", type=int, default=2, help="first steps of a run that do not count (2)")
    p.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of a rank (1)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true", help="put the tables into tests/bench/RESULTS.md")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    for name, known in (("models", MODELS), ("dtypes", TOLERANCE), ("peers", PEERS)):
        setattr(a, name, getattr(a, name).split(","))
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    a.sequences = [int(value) for value in a.sequences.split(",")]
    return a


def share_of_gemm(setting, model, step_s, rates):
    """Of what all ranks' products reach at once."""
    flops = setting.sequences * model.sequence * flops_per_token(model)
    return flops / step_s / (rates[setting.dtype] * 1e9)


class Bench:
    def __init__(self, arguments, sides):
        self.a, self.sides = arguments, sides
        self.gemm = collections.Counter()

    def measure_gemm(self):
        """The best rate so far, of each of as many processes as there are ranks."""
        for dtype, rate in self.sides.gemm_rates(self.a.threads, self.a.ranks).items():
            self.gemm[dtype] = max(self.gemm[dtype], rate)

    def compare(self, setting):
        """With each peer, in turns."""
        ours, theirs = [], {peer: [] for peer in self.a.peers}
        for number in range(self.a.rounds):
            say(f"{setting.model}, {setting.dtype}, {setting.sequences} sequences, round {number + 1} of {self.a.rounds}")
            self.measure_gemm()
            ours.append(self.sides.run_ours(setting))
            for peer, runs in theirs.items():
                runs.append(self.sides.run_peer(setting, PEERS[peer]))
        return [Comparison(setting, peer, ours, runs, max(largest_difference(x.losses, y.losses) for x, y in zip(ours, runs)),
                           TOLERANCE[setting.dtype]) for peer, runs in theirs.items()]

    def row(self, c):
        model = MODELS[c.setting.model]
        steps = [median_step(runs) for runs in (c.ours, c.theirs)]
        tokens = [tokens_per_second(c.setting, model, step_s) for step_s in steps]
        shares = [share_of_gemm(c.setting, model, step_s, self.gemm) for step_s in steps]
        return [c.setting.dtype, str(c.setting.sequences), c.peer, with_spread(c.ours), with_spread(c.theirs),
                ratio(c.theirs, c.ours), f"{tokens[0]:,.0f} / {tokens[1]:,.0f}", f"{shares[0]:.0%} / {shares[1]:.0%}",
                pair(median_of(c.ours, "peak_mib"), median_of(c.theirs, "peak_mib"), 0), differs_by(c)]

    def section(self, name):
        """The table of a model, written after each comparison: an interrupted run keeps what it has."""
        comparisons = []
        for dtype, sequences in itertools.product(self.a.dtypes, self.a.sequences):
            setting = Setting(name, self.a.ranks, dtype, sequences, self.a.steps, self.a.warmup, self.a.threads)
            comparisons += self.compare(setting)
            title = f"LoRA: {name}, {self.a.ranks} ranks"
            text = table(["type", "sequences", "peer", "ours, s", "peer, s", "peer / ours", "tokens/s, ours / peer",
                          "of the GEMM rate, ours / peer", "peak MiB a rank, ours / peer", "losses differ by"],
                         [self.row(c) for c in comparisons])
            for c in comparisons[-len(self.a.peers):]:
                say("| " + " | ".join(self.row(c)) + " |")
            if self.a.write:
                replace_section(title, f"### {title}\n\n{describe_machine(self.flags())}\n\n{text}")
        print(f"\n{title}\n{self.flags()}\n\n{text}\n", flush=True)
        return comparisons

    def flags(self):
        a = self.a
        return "; ".join([f"OMP_NUM_THREADS={a.threads}",
                          f"{a.rounds} {'round' if a.rounds == 1 else 'rounds'} of {a.steps} steps, {a.warmup} not counted",
                          f"GEMM rate of a rank beside the other {self.gemm['fp32']:.0f} (fp32), {self.gemm['bf16']:.0f} (bf16) "
                          "GFLOP/s", *a.set])


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        bench = Bench(a, LoraSides(a.train_program, a.peer_python, work, a.set, models=MODELS))
        comparisons = []
        for name in a.models:
            comparisons += bench.section(name)
            bench.sides.forget(name)
    end(comparisons)


if __name__ == "__main__":
    run(main)
