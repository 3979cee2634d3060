#!/usr/bin/env python3
"""Many runs of two ranks on the stand-in for CUDA, with injected faults and without.

  tests/cuda_standin/soak.py [--faults 200] [--good 500] [--kind throws] [--seed 1] [--jobs 2] [--build build-cuda]

A run with a fault must end with one of the exit codes that docs/launching.md gives for it, within two minutes; one without
must end with 0. It ends with 1 if any did not. The test suite has a few of them (standin/exit_codes); these numbers take most of an
hour on two cores.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import random
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import run

STEPS = 8
OVERRIDES = [f"training.steps={STEPS}", 'mixed_precision.param_dtype="bfloat16"', "checkpoint.interval_steps=4"]
TIME_LIMIT = 120  # seconds of a run
PEER_LOST, TIMEOUT = 5, 6


def fault(choose, kind):
    """The kind of a fault, the environment that injects it, and the exit codes that are right."""
    rank, step = choose.randrange(2), choose.randrange(1, STEPS + 1)
    place, collective = choose.choice(["step", "forward", "collective"]), choose.randrange(3, 40)
    kinds = {
        "throws": ("do=throw", {1}),
        "exits with 3": ("do=exit:3", {3}),
        "killed": ("do=kill", {137}),
        "stopped": ("do=stop", {PEER_LOST, TIMEOUT}),
        "sleeps": ("do=sleep:30", {PEER_LOST, TIMEOUT}),
        "out of memory": (f"do=cuda_malloc:{choose.randrange(1, 4)}", {1}),
        "NCCL refuses": (f"do=nccl_refuse:{collective}", {PEER_LOST}),
        "NCCL fails": (f"do=nccl_fail:{collective}", {PEER_LOST}),
        "a late peer": (f"do=nccl_late:{collective},do=nccl_late_seconds:30", {PEER_LOST, TIMEOUT}),
    }
    if kind and kind not in kinds:
        sys.exit(f"--kind: expected one of {', '.join(kinds)}; found {kind}")
    kind = kind or choose.choice(list(kinds))
    action, codes = kinds[kind]
    if "cuda" in action or "nccl" in action:
        return kind, {"STANDIN_FAULT": f"rank={rank},{action}"}, codes
    return kind, {"FSDP_INJECT_FAULT": f"rank={rank},step={step},at={place},{action}"}, codes


def one_run(build, environment):
    """The exit code, the violations, the output and the seconds of a run."""
    configuration = run.Configuration(ranks=2, modes="l", name="soak", program="train", overrides=OVERRIDES,
                                      environment=environment)
    with tempfile.TemporaryDirectory(prefix="standin-soak-") as folder:
        began = time.monotonic()
        processes = run.Run(build, configuration, "l", pathlib.Path(folder))
        processes.environment.update(STANDIN_KERNEL_US="0", STANDIN_STACKS="0")
        timeout = ["comm.timeout_seconds=3"] if environment else []
        code = processes.start("fsdp-train", "config.toml", *OVERRIDES, *timeout, ranks=2, timeout=TIME_LIMIT)
        return code, run.read_reports(processes.folder, "*")[1], processes.output, time.monotonic() - began


class Soak:
    def __init__(self, arguments):
        self.build = arguments.build.resolve()
        self.lock = threading.Lock()
        self.codes = collections.defaultdict(collections.Counter)
        self.problems = []
        self.longest = 0.0

    def trial(self, task):
        name, environment, expected = task
        code, violations, output, seconds = one_run(self.build, environment)
        with self.lock:
            self.codes[name][code] += 1
            self.longest = max(self.longest, seconds)
            if code not in expected or violations:
                self.problems.append(f"{name} {environment}: exit code {code}, expected {sorted(expected)}"
                                     + "".join(f"; violation: {text}" for text in violations) + "\n" + output[-3000:])
            done = sum(sum(codes.values()) for codes in self.codes.values())
            if done % 20 == 0:
                print(f"{done} runs, {len(self.problems)} problems", flush=True)

    def report(self):
        for name, codes in sorted(self.codes.items()):
            print(f"  {name:14s} " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
        print(f"{sum(sum(codes.values()) for codes in self.codes.values())} runs, the longest {self.longest:.1f} s, "
              f"{len(self.problems)} problems")
        for problem in self.problems[:5]:
            print(problem)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--good", type=int, default=500)
    parser.add_argument("--kind", help="of all faults; without it they are mixed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--build", type=pathlib.Path, default=run.HERE.parents[1] / "build-cuda")
    arguments = parser.parse_args()
    choose = random.Random(arguments.seed)
    tasks = [fault(choose, arguments.kind) for _ in range(arguments.faults)] + [("no fault", {}, {0})] * arguments.good
    soak = Soak(arguments)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(soak.trial, tasks))
    soak.report()
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
