#!/usr/bin/env python3
"""The host's work a step on a GPU: fsdp-train against PyTorch's FSDP2 on the stand-in for CUDA (tests/cuda_standin), whose kernels
do nothing, so that all CPU time is the host's. Started by scripts/bench, which builds and brings the peer's venv.

Both train the same small llama in bf16 and run in turns (A B A B), each time for few and for many steps: the difference
is that of the steps, without start and end.
"""
import argparse
import collections
import statistics
import sys
import tempfile
from pathlib import Path

from ranks import RunFailed
from results import describe_machine, replace_section
from sides import Model, Setting, Sides
from step_tables import table
from steps import say

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda_standin"))
from run import calls_a_step, preload, read_reports  # noqa: E402

MODEL = Model(layers=4, hidden=64, heads=4, intermediate=128, vocabulary=256, sequence=32)
# What a row counts: names of the stand-in's reports.
CALLS = {
    "kernels": ["kernels"],
    "matrix products": ["products"],
    "attention (cuDNN)": ["cuDNN"],
    "collectives": ["collectives"],
    "stream waits": ["cudaStreamWaitEvent"],
    "events recorded": ["cudaEventRecord"],
    "copies and memsets": ["cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync"],
    "host waits": ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"],
    "cudaMalloc": ["cudaMalloc"],
}


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench host-overhead", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5, help="turns of ours and theirs (5)")
    p.add_argument("--ranks", type=int, default=2, help="processes, each with a device of its own (2)")
    p.add_argument("--few", type=int, default=20, help="steps of the short runs (20)")
    p.add_argument("--many", type=int, default=420, help="steps of the long runs (420)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true", help="put the table into tests/bench/RESULTS.md")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    p.add_argument("--standin", type=Path, required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    if min(a.rounds, a.ranks) < 1 or not 1 <= a.few < a.many:
        p.error("rounds and ranks are at least 1, and there are fewer steps in --few than in --many")
    return a


class HostOverhead:
    def __init__(self, arguments, work):
        self.a, self.work = arguments, Path(work)
        environment = {"LD_PRELOAD": preload(arguments.standin.resolve()), "STANDIN_GPUS": str(arguments.ranks), "STANDIN_STACKS": "0",
                       "STANDIN_REPORT": str(self.work / "report")}
        self.sides = Sides(arguments.train_program, arguments.peer_python, work, arguments.set, {"tiny": MODEL}, "cuda",
                           environment)

    def run(self, ours, steps):
        """CPU seconds of a rank, and what rank 0 called."""
        setting = Setting("tiny", self.a.ranks, "bf16", 2, steps, 1, 1)
        if ours:
            run = self.sides.run_ours(setting, overrides=["logging.peak_tflops=1"], stored_weights=False)
        else:
            run = self.sides.run_peer(setting, ["--engine", "fsdp2"], stored_weights=False)
        counts, violations = read_reports(self.work, "report")
        for path in self.work.glob("report.rank*"):
            path.unlink()
        if violations and ours:
            raise RunFailed(f"fsdp-train did what CUDA forbids: {violations[0]}")
        return run.cpu_s, counts[0]

    def step(self, ours):
        """CPU milliseconds of a step and rank, and its calls."""
        (few_s, few), (many_s, many) = (self.run(ours, steps) for steps in (self.a.few, self.a.many))
        steps = self.a.many - self.a.few
        return 1e3 * (many_s - few_s) / steps, calls_a_step(few, many, steps)

    def measure(self):
        times, calls = collections.defaultdict(list), {}
        for number in range(self.a.rounds):
            for ours in (True, False):
                milliseconds, calls[ours] = self.step(ours)
                times[ours].append(milliseconds)
                say(f"round {number + 1} of {self.a.rounds}, {'fsdp-train' if ours else 'FSDP2'}: {milliseconds:.2f} ms")
        return times, calls


def table_of(times, calls):
    def spread(values, digits=2):
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"
    ratios = [mine / its for mine, its in zip(times[True], times[False])]
    rows = [["CPU time of a rank, ms", spread(times[True]), spread(times[False]), spread(ratios, 3)]]
    for what, names in CALLS.items():
        mine, its = (sum(calls[ours].get(name, 0) for name in names) for ours in (True, False))
        rows.append([what, f"{mine:.4g}", f"{its:.4g}", f"{mine / its:.2f}" if its else "-"])
    return table(["a step", "fsdp-train", "FSDP2", "fsdp-train / FSDP2"], rows)


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        text = table_of(*HostOverhead(a, work).measure())
    flags = "; ".join([f"{a.ranks} ranks", f"{a.rounds} rounds of {a.many} less {a.few} steps", *a.set])
    print(f"{flags}\n\n{text}")
    if a.write:
        replace_section("host-overhead", f"{describe_machine(flags)}\n\n{text}")


if __name__ == "__main__":
    try:
        main()
    except (RunFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench: {error}" if str(error) else "bench: interrupted")
