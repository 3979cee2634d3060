#!/usr/bin/env python3
"""FSDP via SPMD by its wrapper, by marks set by hand, and fully_shard() with flat units, on the same model.

All three run in turns (A B C A B C), each time as a new process group with the same weights and tokens. Losses are
compared step by step; where they differ by more than 1e-4, the exit code is 1.
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from ranks import RunFailed, run_group
from results import describe_machine, replace_section
from sides import MODELS, Run, Setting, Sides
from step_tables import median_step, table, tokens_per_second
from steps import largest_difference, say

WAYS = ("wrapper", "by_hand", "flat")
TOLERANCE = 1e-4


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench wrapper")
    p.add_argument("--models", default="small", help=f"of {', '.join(MODELS)} (small)")
    p.add_argument("--ranks", default="2", help="processes (2)")
    p.add_argument("--sequences", type=int, default=2, help="a rank (2)")
    p.add_argument("--rounds", type=int, default=5, help="turns of each way (5)")
    p.add_argument("--steps", type=int, default=10, help="of a run (10)")
    p.add_argument("--warmup", type=int, default=3, help="first steps of a run that do not count (3)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of the config; repeatable")
    p.add_argument("--write", action="store_true", help="put the table into tests/bench/RESULTS.md")
    p.add_argument("--program", required=True, help=argparse.SUPPRESS)
    return p.parse_args()


def run_way(program, sides, setting, way, overrides):
    config = Path(sides.work) / "config.toml"
    config.write_text(sides.our_config(setting, stored_weights=False), encoding="utf-8")
    command = [program, str(config), way, str(setting.steps), *overrides]
    group = run_group(command, setting.ranks, setting.threads, Path(sides.work))
    steps = [line.split() for _, line in group.lines if line[:1].isdigit()]
    if len(steps) != setting.steps:
        raise RunFailed(f"{way} printed {len(steps)} of {setting.steps} steps")
    return Run(seconds=[float(step[1]) for step in steps[setting.warmup:]], losses=[float(step[2]) for step in steps],
               first_step_s=0.0, peak_mib=group.peak_mib, cpu_s=group.cpu_s)


def main():
    a = parse_arguments()
    rows, furthest = [], 0.0
    head = ["model", "ranks", *(f"{way}, tokens/s" for way in WAYS), "wrapper / by_hand (rounds)", "peak MiB a rank, each",
            "wrapper / by_hand, memory", "losses differ by"]
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        sides = Sides("", None, work, a.set)
        for model in a.models.split(","):
            for ranks in a.ranks.split(","):
                setting = Setting(model, int(ranks), "fp32", a.sequences, a.steps, a.warmup, threads=1)
                runs = {way: [] for way in WAYS}
                for number in range(a.rounds):
                    say(f"{model}, {ranks} ranks, round {number + 1} of {a.rounds}")
                    for way in WAYS:
                        runs[way].append(run_way(a.program, sides, setting, way, a.set))
                difference = max(largest_difference(run.losses, base.losses)
                                 for way in WAYS for run, base in zip(runs[way], runs["flat"]))
                furthest = max(furthest, difference)
                rates = {way: tokens_per_second(setting, MODELS[model], median_step(runs[way])) for way in WAYS}
                peaks = {way: statistics.median(run.peak_mib for run in runs[way]) for way in WAYS}
                rounds = [statistics.median(hand.seconds) / statistics.median(run.seconds)
                          for run, hand in zip(runs["wrapper"], runs["by_hand"])]
                rows.append([model, ranks, *(f"{rates[way]:.0f}" for way in WAYS),
                             f"{rates['wrapper'] / rates['by_hand']:.3f} ({min(rounds):.3f}..{max(rounds):.3f})",
                             " / ".join(f"{peaks[way]:.0f}" for way in WAYS),
                             f"{peaks['wrapper'] / peaks['by_hand']:.3f}", f"{difference:.1e}"])
                print("| " + " | ".join(rows[-1]) + " |", flush=True)
    flags = "; ".join([f"{a.rounds} rounds of {a.steps} steps, {a.warmup} not counted, {a.sequences} sequences a rank", *a.set])
    if a.write:
        replace_section("wrapper", f"{describe_machine(flags)}\n\n{table(head, rows)}")
    print(f"\n{table(head, rows)}")
    sys.exit(1 if furthest > TOLERANCE else 0)


if __name__ == "__main__":
    try:
        main()
    except (RunFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench: {error}" if str(error) else "bench: interrupted")
