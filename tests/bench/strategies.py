#!/usr/bin/env python3
"""fsdp-train against itself: no_shard, which is data parallelism as DDP has it, against strategies that shard.

All strategies run in turns (A B C A B C), each time as a new process group on the same weights and tokens. Losses are
compared step by step; where they differ by more than 1e-4, the exit code is 1.
"""
import argparse
import itertools
import statistics
import sys
import tempfile

from ranks import RunFailed
from results import describe_machine, replace_section
from sides import MODELS, Setting, Sides
from step_tables import median_step, table, with_spread
from steps import largest_difference, say

STRATEGIES = ("no_shard", "shard_grad_op", "full_shard")
TOLERANCE = 1e-4


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench strategies")
    p.add_argument("--models", default="small,135m", help=f"of {', '.join(MODELS)} (small,135m)")
    p.add_argument("--ranks", default="2,4", help="processes (2,4)")
    p.add_argument("--dtypes", default="fp32", help="of fp32, bf16 (fp32)")
    p.add_argument("--sequences", default="1,4", help="sequences a rank (1,4)")
    p.add_argument("--rounds", type=int, default=3, help="turns of each strategy (3)")
    p.add_argument("--steps", type=int, default=10, help="of a run (10)")
    p.add_argument("--warmup", type=int, default=3, help="first steps of a run that do not count (3)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true", help="put the table into tests/bench/RESULTS.md")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    for name in ("models", "dtypes"):
        setattr(a, name, getattr(a, name).split(","))
    for name in ("ranks", "sequences"):
        setattr(a, name, [int(value) for value in getattr(a, name).split(",")])
    return a


def measure(sides, setting, rounds):
    """Runs of each strategy, and the largest difference of a loss from no_shard's."""
    runs = {strategy: [] for strategy in STRATEGIES}
    for number in range(rounds):
        say(f"{setting.model}, {setting.ranks} ranks, {setting.dtype}, {setting.sequences} sequences, round {number + 1} of {rounds}")
        for strategy in STRATEGIES:
            runs[strategy].append(sides.run_ours(setting, overrides=[f"fsdp.strategy={strategy}"], stored_weights=False))
    difference = max(largest_difference(run.losses, base.losses)
                     for strategy in STRATEGIES for run, base in zip(runs[strategy], runs["no_shard"]))
    return runs, difference


def row(setting, runs, difference):
    def against_no_shard(strategy):
        rounds = [statistics.median(base.seconds) / statistics.median(run.seconds)
                  for base, run in zip(runs["no_shard"], runs[strategy])]
        ratio = median_step(runs["no_shard"]) / median_step(runs[strategy])
        return f"{with_spread(runs[strategy])}, {ratio:.2f} ({min(rounds):.2f}..{max(rounds):.2f})"
    peaks = " / ".join(f"{statistics.median(run.peak_mib for run in runs[strategy]):.0f}" for strategy in STRATEGIES)
    return [setting.model, str(setting.ranks), setting.dtype, str(setting.sequences), with_spread(runs["no_shard"]),
            *map(against_no_shard, STRATEGIES[1:]), peaks, f"{difference:.1e}"]


def main():
    a = parse_arguments()
    rows, furthest = [], 0.0
    head = ["model", "ranks", "type", "sequences", "no_shard, s", "shard_grad_op, s, no_shard / it", "full_shard, s, no_shard / it",
            "peak MiB a rank, each", "losses differ by"]
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        sides = Sides(a.train_program, None, work, a.set)
        for model, ranks, dtype, sequences in itertools.product(a.models, a.ranks, a.dtypes, a.sequences):
            setting = Setting(model, ranks, dtype, sequences, a.steps, a.warmup, threads=1)
            runs, difference = measure(sides, setting, a.rounds)
            furthest = max(furthest, difference / (TOLERANCE if dtype == "fp32" else 100 * TOLERANCE))
            rows.append(row(setting, runs, difference))
            print("| " + " | ".join(rows[-1]) + " |", flush=True)
            if a.write:  # an interrupted run keeps what it has
                flags = "; ".join([f"{a.rounds} rounds of {a.steps} steps, {a.warmup} not counted", *a.set])
                replace_section("strategies", f"{describe_machine(flags)}\n\n{table(head, rows)}")
    print(f"\n{table(head, rows)}")
    sys.exit(1 if furthest > 1 else 0)


if __name__ == "__main__":
    try:
        main()
    except (RunFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench: {error}" if str(error) else "bench: interrupted")
