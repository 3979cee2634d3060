#!/usr/bin/env python3
"""The side-by-side benchmark of training steps; started by scripts/bench, which builds and brings the peer's venv.

For every setting and peer, ours and theirs run in turns (A B A B), each time as a fresh process group on the same
weights and tokens, so that a drift of the machine's speed meets both. Losses are compared step by step; where they
differ by more than the tolerance, the exit code is 1.
"""
import argparse
import collections
import itertools
import sys
import tempfile
from pathlib import Path

from ranks import RunFailed
from results import describe_machine, replace_section
from sides import MODELS, Setting, Sides
from step_tables import Comparison, Own, loss_table, tables

PEERS = {
    "fsdp2": ["--engine", "fsdp2"],
    "fsdp2 tuned": ["--engine", "fsdp2", "--tuned"],
    "fsdp2 compile": ["--engine", "fsdp2", "--compile"],
    "fsdp1": ["--engine", "fsdp1"],
    "ddp": ["--engine", "ddp"],
    "ddp tuned": ["--engine", "ddp", "--tuned"],
    "none": ["--engine", "none"],
    "none tuned": ["--engine", "none", "--tuned"],
}
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def applies(peer, ranks, dtype):
    """Without FSDP the peer computes in fp32 only; with bf16 there are no fp32 products to tune."""
    if dtype == "bf16" and (peer.endswith("tuned") or not peer.startswith("fsdp")):
        return False
    return not peer.startswith(("ddp", "fsdp1")) if ranks == 1 else not peer.startswith("none")


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench steps")
    p.add_argument("--models", help=f"of {', '.join(MODELS)} (small)")
    p.add_argument("--ranks", help="processes (1,2,4)")
    p.add_argument("--dtypes", help="fp32,bf16")
    p.add_argument("--sequences", help="sequences a rank (1,4)")
    p.add_argument("--peers", help=f"of {', '.join(PEERS)} (all that apply)")
    p.add_argument("--rounds", type=int, help="turns of ours and theirs (3)")
    p.add_argument("--steps", type=int, help="of a run (13)")
    p.add_argument("--warmup", type=int, help="first steps of a run that do not count (3)")
    p.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of a rank (1)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--losses", action="store_true", help="one round of 50 steps, for the losses alone")
    p.add_argument("--quick", action="store_true", help="a small trial, to see that everything works")
    p.add_argument("--write", action="store_true",
                   help="put the tables into tests/bench/RESULTS.md, in place of those of the model and number of ranks")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    defaults = dict(models="small", ranks="1,2,4", dtypes="fp32,bf16", sequences="1,4", peers=",".join(PEERS), rounds=3,
                    steps=13, warmup=3)
    if a.losses:
        defaults.update(rounds=1, steps=50)
    if a.quick:
        defaults.update(models="quickstart", ranks="2", dtypes="fp32", sequences="1", peers="fsdp2", rounds=1, steps=4,
                        warmup=1)
    for name, value in defaults.items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    for name, known in (("models", MODELS), ("dtypes", TOLERANCE), ("peers", PEERS)):
        setattr(a, name, getattr(a, name).split(","))
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    for name in ("ranks", "sequences"):
        try:
            setattr(a, name, [int(value) for value in getattr(a, name).split(",")])
        except ValueError:
            p.error(f"--{name}: expected numbers as in 1,2,4, found '{getattr(a, name)}'")
    if min(a.ranks + a.sequences + [a.rounds, a.threads]) < 1 or not 0 <= a.warmup < a.steps:
        p.error("ranks, sequences, rounds and threads are at least 1, and there are more steps than warm-up steps")
    if a.quick and a.write:
        p.error("--quick gives figures of nothing; leave it out to write")
    return a


def largest_difference(ours, theirs):
    return max(abs(x - y) / abs(y) for x, y in zip(ours, theirs, strict=True))


def say(text):
    print(text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, arguments, sides):
        self.a, self.sides = arguments, sides
        self.gemm = collections.Counter()
        self.measure_gemm()

    def measure_gemm(self):
        """The best rate so far: other load can only make it smaller."""
        for dtype, rate in self.sides.gemm_rates(self.a.threads).items():
            self.gemm[dtype] = max(self.gemm[dtype], rate)

    def setting(self, model, ranks, dtype, sequences):
        return Setting(model, ranks, dtype, sequences, self.a.steps, self.a.warmup, self.a.threads)

    def in_turns(self, what, ours, theirs):
        """The runs of both, taken A B A B."""
        runs = ([], [])
        for number in range(self.a.rounds):
            say(f"{what}, round {number + 1} of {self.a.rounds}")
            runs[0].append(ours())
            runs[1].append(theirs())
        return runs

    def measure(self, model, ranks, dtype, sequences):
        """The comparisons of a setting with the peers, and ours by itself."""
        setting, comparisons, our_runs = self.setting(model, ranks, dtype, sequences), [], []
        name = f"{model}, {ranks} ranks, {dtype}, {sequences} sequences"
        for peer in self.a.peers:
            if not applies(peer, ranks, dtype):
                continue
            ours, theirs = self.in_turns(f"{name}, {peer}", lambda: self.sides.run_ours(setting),
                                         lambda: self.sides.run_peer(setting, PEERS[peer]))
            difference = max(largest_difference(x.losses, y.losses) for x, y in zip(ours, theirs))
            comparisons.append(Comparison(setting, peer, ours, theirs, difference, TOLERANCE[dtype]))
            our_runs += ours
        if not comparisons:
            say(f"{name}: none of these peers can do that")
        own = Own(setting, our_runs)
        if ranks > 1 and not self.a.losses:
            own.waiting = self.sides.run_ours(setting, trace=True).waiting
            own.together, own.alone = self.in_turns(f"{name}, without communication",
                                                    lambda: self.sides.run_ours(setting),
                                                    lambda: self.sides.run_ours_alone(setting))
            own.runs = own.runs + own.together
        self.measure_gemm()
        return own, comparisons

    def section(self, model, ranks):
        """Tables of a model and a number of ranks, written after each setting: an interrupted run keeps what it has."""
        owns, comparisons = [], []
        title = f"{model}, {ranks} {'rank' if ranks == 1 else 'ranks'}"
        for dtype, sequences in itertools.product(self.a.dtypes, self.a.sequences):
            own, compared = self.measure(model, ranks, dtype, sequences)
            owns += [own] if own.runs else []
            comparisons += compared
            text = loss_table(comparisons) if self.a.losses else tables(owns, comparisons, self.gemm, MODELS[model])
            if self.a.write:
                heading = f"### {'Losses' if self.a.losses else 'Steps'}: {title}"
                replace_section(f"{'losses' if self.a.losses else 'steps'}: {title}",
                                f"{heading}\n\n{describe_machine(self.flags())}\n\n{text}")
        print(f"{title}\n{self.flags()}\n\n{text}\n", flush=True)
        return comparisons

    def flags(self):
        a = self.a
        return "; ".join([f"OMP_NUM_THREADS={a.threads}",
                          f"{a.rounds} {'round' if a.rounds == 1 else 'rounds'} of {a.steps} steps, "
                          f"{a.warmup} not counted",
                          f"best GEMM rate {self.gemm['fp32']:.0f} (fp32), {self.gemm['bf16']:.0f} (bf16) GFLOP/s",
                          *a.set])


def end(comparisons):
    """Ends the program: with 1 if losses differ by more than their tolerance."""
    too_far = [c for c in comparisons if c.difference > c.tolerance]
    for c in too_far:
        s = c.setting
        say(f"losses differ: {s.model}, {s.ranks} ranks, {s.dtype}, {s.sequences} sequences, {c.peer}: "
            f"{c.difference:.1e}, expected at most {c.tolerance:.0e}")
    sys.exit(1 if too_far else 0)


def run(main):
    try:
        main()
    except (RunFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench: {error}" if str(error) else "bench: interrupted")


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        bench = Bench(a, Sides(a.train_program, a.peer_python, work, a.set))
        pairs = itertools.product(a.models, a.ranks)
        comparisons = [c for model, ranks in pairs for c in bench.section(model, ranks)]
    end(comparisons)


if __name__ == "__main__":
    run(main)
