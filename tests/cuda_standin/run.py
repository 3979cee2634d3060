#!/usr/bin/env python3
"""Runs programs of the CUDA flavour on the stand-in for CUDA.

  tests/cuda_standin/run.py [--build build-cuda] [--mode inline|late|races|numbers] [NAME...]
  tests/cuda_standin/run.py --mode gpu [--jobs 4] [NAME...]        without the stand-in, on this machine's GPUs
  tests/cuda_standin/run.py --list

NAME is a configuration of matrix.txt; without one, all that are in the mode run. A run fails when its exit code is not the
expected one, when a process did what CUDA forbids (a violation), when a rank wrote no report, or when it called more than the
budget of its configuration; in the modes numbers and gpu, when its losses or gradient norms are not those of a run on the CPU.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from preference_files import write_preferences
LIBRARIES = ("libstandin_exit.so", "libcudart.so.13", "libcuda.so.1", "libcublasLt.so.13", "libcublas.so.13", "libcudnn.so.9",
             "libnccl.so.2", "libcupti.so.13")
MODES = {"i": ("inline", {}),
         "l": ("late", {"STANDIN_LATE": "1", "STANDIN_KERNEL_US": "20", "STANDIN_SEED": "1"}),
         "r": ("races", {"STANDIN_RACES": "1"}),
         "n": ("numbers", {"STANDIN_RACES": "1"}),
         "g": ("gpu", {})}
COMPARED = "ng"  # with the CPU
PROGRAMS_WITH_NUMBERS = ("train", "resume", "evaluate", "generate")
NUMBERS = ("loss", "grad_norm", "validation_loss", "validation_accuracy")
GPU_ONLY = ("training.cuda_graphs=", "training.logits_mib=", "training.product_trials=", "comm.backend=", "logging.nvtx=", "logging.memory_snapshot=")
TIME_LIMIT = 250  # seconds of a program, which takes one or two where nothing else runs
PINNED_BESIDE = 8192  # bytes of batches
CONFIG = """
[run]
output_dir = "out"
[model]
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 64
[data]
train = ["train.bin"]
validation = ["validation.bin"]
sequence_length = 32
micro_batch_size = 2
[training]
steps = 3
device = "cuda"
[fsdp]
min_num_params = 30_000
[comm]
timeout_seconds = 60
[checkpoint]
save_at_end = false
[logging]
peak_tflops = 1.0
"""


@dataclasses.dataclass
class Configuration:
    ranks: int
    modes: str  # of the default run; in the full run all have all modes that they can have
    name: str
    program: str
    overrides: list = dataclasses.field(default_factory=list)
    environment: dict = dataclasses.field(default_factory=dict)
    exit_code: int = 0
    text: str = ""  # expected in the output
    budget: dict = dataclasses.field(default_factory=dict)
    tolerance: float = 0  # of numbers, relative, if it is not that of the type of the parameters

    def has_numbers(self, on_gpu=False):
        has = self.program in PROGRAMS_WITH_NUMBERS and self.exit_code == 0
        return has and not (on_gpu and any(name.startswith("STANDIN_") for name in self.environment))

    def tolerated(self, mode, name):
        """A GPU adds in other orders than a CPU, which gradients show more than losses do."""
        is_float = not any(word.startswith("mixed_precision.param_dtype=") for word in self.overrides)
        if mode != "g":
            return self.tolerance or (1e-5 if is_float else 1e-2)
        of_losses = self.tolerance or (1e-4 if is_float else 1e-2)
        return 10 * of_losses if name == "grad_norm" else of_losses


def read_matrix():
    sets, configurations = {}, {}
    for line in (HERE / "matrix.txt").read_text().splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0] == "set":
            sets[words[1]] = words[2:]
            continue
        configuration = Configuration(int(words[0]), words[1], words[2], words[3])
        for word in [part for word in words[4:] for part in (sets[word[1:]] if word.startswith(":") else [word])]:
            key, value = re.split("<=|=", word, maxsplit=1)
            if "<=" in word and "." not in key:
                configuration.budget[key.replace("_", " ")] = float(value)
            elif key == "exit":
                configuration.exit_code = int(value)
            elif key == "tolerance":
                configuration.tolerance = float(value)
            elif key == "text":
                configuration.text = value.replace("_", " ")
            elif key.isupper():
                configuration.environment[key] = value
            else:
                configuration.overrides.append(word)
        if configuration.name in configurations:
            sys.exit(f"matrix.txt: {configuration.name} is there twice")
        configurations[configuration.name] = configuration
    return configurations


def write_inputs(folder):
    (folder / "config.toml").write_text(CONFIG)
    for name, count in (("train.bin", 4000), ("validation.bin", 300)):
        tokens = [0 if i % 29 == 28 else 1 + (3 * (i % 7) + i * i // 3) % 255 for i in range(count)]
        (folder / name).write_bytes(struct.pack(f"<{count}H", *tokens))
    answers = [([1 + i % 40, 2 + 3 * i % 50, 7], [60 + (i + place) % 90 + place for place in range(4 + (i + rejected) % 5)], not rejected)
               for i in range(40) for rejected in (False, True)]
    write_preferences(folder / "answers.bin", answers)


def preload(libraries):
    """LD_PRELOAD of the stand-in in the folder `libraries`."""
    missing = [name for name in LIBRARIES if not (libraries / name).exists()]
    if missing:
        sys.exit(f"{libraries}: expected the stand-in; {', '.join(missing)} is missing; build the target standin")
    return ":".join(str(libraries / name) for name in LIBRARIES)


def read_reports(folder, prefix):
    """The counts of all processes, and their violations."""
    counts, violations = [], []
    for path in sorted(folder.glob(prefix + ".rank*")):
        own = {}
        for line in path.read_text().splitlines():
            number, _, name = line.partition("\t")
            if number == "VIOLATION":
                violations.append(name)
            else:
                own[name] = int(number)
        counts.append(own)
    return counts, violations


def calls_a_step(few, many, steps):
    """From the counts of two runs of which one has so many steps more."""
    return {name: (count - few.get(name, 0)) / steps for name, count in many.items()}


class Run:
    """The processes of one configuration in one mode."""

    def __init__(self, build, configuration, mode, folder):
        self.bin = build / "bin"
        self.configuration = configuration
        self.folder = folder
        self.mode = mode
        self.largest = None  # difference of a number to the CPU's, relative
        self.output = ""
        libraries = build / "tests" / "cuda_standin" / "lib"
        self.words = []
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", **MODES[mode][1])
        if mode != "g":
            self.environment.update(LD_PRELOAD=preload(libraries), STANDIN_GPUS=str(max(2, configuration.ranks)))
            self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        if mode in COMPARED:
            self.words = ["training.steps=6", "optimizer.lr=0.001"]
            if not any(word.startswith("optimizer.name=") for word in configuration.overrides):
                self.words.append("optimizer.eps=1e-4")  # or the signs of gradients near 0 would decide
        if mode == "n":
            self.environment["STANDIN_NUMBERS"] = str(libraries / "libstandin_numbers.so")
        self.environment.update(configuration.environment)
        self.reports_expected = 0
        write_inputs(folder)

    def on_cpu(self, folder):
        """The same on the CPU, without the stand-in."""
        run = Run(self.bin.parent, self.configuration, self.mode, folder)
        run.environment.update(LD_PRELOAD="", CUDA_VISIBLE_DEVICES="")
        run.configuration = dataclasses.replace(
            self.configuration, overrides=[word for word in self.configuration.overrides if not word.startswith(GPU_ONLY)])
        run.words = [*self.words, "training.device=cpu"]
        return run

    def start(self, program, *words, ranks=1, timeout=TIME_LIMIT, report="report", reports=True):
        """Returns the exit code; -1 for a run that did not end."""
        command = [self.bin / program, *words]
        of_rank = [f"{name}={value}" for name, value in self.configuration.environment.items() if "$RANK" in value]
        if of_rank:
            command = ["sh", "-c", " ".join(of_rank) + ' exec "$0" "$@"', *command]
        if ranks > 1:
            command = [self.bin / "fsdp-launch", "--nproc-per-node", str(ranks), "--shutdown-timeout", "5", "--", *command]
        if reports and self.mode != "g":
            self.reports_expected += ranks
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True,
                                   env=dict(self.environment, STANDIN_REPORT=str(self.folder / report)))
        try:
            self.output += process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            self.output += process.communicate()[0]
            return -1
        return process.returncode

    def train(self, *words, report="report"):
        return self.start("fsdp-train", "config.toml", *self.words, *self.configuration.overrides, *words,
                          ranks=self.configuration.ranks, report=report)

    def run(self):
        """The exit code of the configuration's program."""
        program = self.configuration.program
        if program == "train":
            return self.train()
        if program == "resume":
            code = self.train("training.steps=2", "checkpoint.save_at_end=true")
            return code or self.train("training.steps=4", "checkpoint.save_at_end=true", "checkpoint.resume=latest")
        if program == "budget":
            self.short, self.long = 10, 14  # graphs are recorded by then
            code = self.train(f"training.steps={self.short}", "run.output_dir=short", report="short")
            return code or self.train(f"training.steps={self.long}", "run.output_dir=long", report="long")
        if program == "late-save":
            code = self.train()
            late = read_reports(self.folder, "*")[0][-1]["collectives"] if code == 0 else 0
            # Late enough for a time-out, but on time for what the other rank waits for after it.
            self.environment["STANDIN_FAULT"] = f"rank=1,do=nccl_late:{late},do=nccl_late_seconds:5"
            return code or self.train("checkpoint.save_at_end=true", "comm.timeout_seconds=3", report="late")
        if program == "pinned":
            code = self.train("training.steps=10")
            before = len(self.output)
            code = code or self.start("fsdp-train", "config.toml", *self.configuration.overrides, "--plan", "--json", "--world-size",
                                      str(self.configuration.ranks), reports=False)
            self.plan = json.loads(self.output[self.output.index("{", before):]) if code == 0 else None
            return code
        if program == "generate":
            code = self.train("checkpoint.save_at_end=true")
            return code or self.start("fsdp-generate", "out", "--prompt", "abc", "--max-new-tokens", "4", reports=False)
        if program == "evaluate":
            code = self.train("checkpoint.save_at_end=true")
            return code or self.train("--evaluate", "out")
        if program == "ranks":
            return self.start("comm_gpu_test", "--gtest_filter=LaunchedRanks.*", ranks=self.configuration.ranks)
        if program == "doctor":
            return self.start("fsdp-train", "doctor", "config.toml", reports=False)
        if program in ("dry-run", "explain-step"):
            code = self.start("fsdp-train", "config.toml", *self.configuration.overrides, "--" + program,
                              ranks=1 if program == "dry-run" else self.configuration.ranks)
            return code
        sys.exit(f"matrix.txt: {self.configuration.name}: no program {program}")

    def difference(self):
        if self.largest is None:
            return ""
        return f", off by {self.largest:.1e}" + (f", losses by {self.largest_of_loss:.1e}" if self.largest_of_loss != self.largest else "")

    def problems(self):
        configuration = self.configuration
        code = self.run()
        problems = []
        if code != configuration.exit_code:
            problems.append("it did not end" if code == -1 else f"exit code {code}, expected {configuration.exit_code}")
        if configuration.text and configuration.text not in self.output.replace("_", " "):
            problems.append(f"the output lacks \"{configuration.text}\"")
        if configuration.program == "late-save" and list(self.folder.glob("out/step-*/manifest.json")):
            problems.append("a checkpoint was committed after NCCL was aborted")
        self.counts, violations = read_reports(self.folder, "*")
        problems += [f"violation: {text}" for text in violations]
        if len([own for own in self.counts if own]) < self.reports_expected and configuration.exit_code == 0:
            problems.append(f"{len(self.counts)} reports, expected {self.reports_expected}")
        if self.mode in COMPARED and not problems:
            problems += self.other_numbers()
        if configuration.program == "pinned" and not problems:
            problems += self.pinned_otherwise_than_planned()
        # How often late streams make libtorch's caches ask for more depends on how late they are.
        if configuration.budget and self.mode == "i" and not problems:
            problems += self.over_budget()
        return problems

    def numbers(self):
        """Of each line of the metrics, by step and name."""
        numbers = {}
        for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            numbers.update({(values["step"], name): values[name] for name in NUMBERS if values.get(name) is not None})
        return numbers

    def samples(self):
        return re.findall(r"sample at step \d+:\n.*?(?=\nstep \d|\ninfo: |\nfinished|\Z)", self.output, re.S)

    def other_numbers(self):
        """How this run's numbers differ from those of the CPU."""
        folder = self.folder / "cpu"
        folder.mkdir()
        reference = self.on_cpu(folder)
        code = reference.run()
        texts = self.samples(), reference.samples()
        self.output += reference.output
        if code != 0:
            return [f"exit code {code} on the CPU"]
        found, expected = self.numbers(), reference.numbers()
        if found.keys() != expected.keys() or not expected:
            return [f"numbers of steps {sorted({step for step, _ in found})}, on the CPU {sorted({step for step, _ in expected})}"]
        if self.mode == "n" and self.configuration.tolerated("n", "loss") <= 1e-5 and texts[0] != texts[1]:
            return [f"samples {texts[0]}, on the CPU {texts[1]}"]
        differences = {key: abs(found[key] - value) / max(abs(value), 1e-6) for key, value in expected.items()}
        self.largest = max(differences.values())
        self.largest_of_loss = max(difference for (_, name), difference in differences.items() if name.endswith("loss"))
        return [f"step {step}: {name} {found[step, name]}, on the CPU {expected[step, name]}"
                for (step, name), difference in differences.items()
                if not difference <= self.configuration.tolerated(self.mode, name)]

    def pinned_otherwise_than_planned(self):
        planned = self.plan["memory"]["pinned_bytes"]
        return [f"rank {rank} pins {own['pinned bytes']} bytes, planned {planned}, and no more than {PINNED_BESIDE} for batches"
                for rank, own in enumerate(self.counts)
                if not 0 <= own["pinned bytes"] - planned <= PINNED_BESIDE]

    def over_budget(self):
        called, unit = self.counts[0], ""
        if self.configuration.program == "budget":
            short, long = (read_reports(self.folder, prefix)[0][0] for prefix in ("short", "long"))
            called = calls_a_step(short, long, self.long - self.short)
            unit = " a step"
        self.called = called
        return [f"{name}: {called.get(name, 0):g}{unit}, budget {most:g}"
                for name, most in self.configuration.budget.items() if called.get(name, 0) > most]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build-cuda")
    parser.add_argument("--mode", choices=[name for name, _ in MODES.values()], default="inline")
    parser.add_argument("--list", action="store_true", help="print the configurations")
    parser.add_argument("--counts", action="store_true", help="print what was called")
    parser.add_argument("--all", action="store_true", help="run those that are not in the mode by default too")
    parser.add_argument("--jobs", type=int, default=1, help="configurations at a time (1)")
    arguments = parser.parse_args()
    mode = next(letter for letter, (name, _) in MODES.items() if name == arguments.mode)
    matrix = read_matrix()
    unknown = [name for name in arguments.names if name not in matrix]
    if unknown:
        sys.exit(f"expected configurations of matrix.txt; found {', '.join(unknown)}")
    if mode in COMPARED:
        unknown = [name for name in arguments.names if not matrix[name].has_numbers(mode == "g")]
        if unknown:
            sys.exit(f"these configurations have no numbers to compare: {', '.join(unknown)}")
        matrix = {name: one for name, one in matrix.items() if one.has_numbers(mode == "g")}
    if arguments.list:
        for configuration in matrix.values():
            print(configuration.ranks, configuration.modes, configuration.name)
        return 0
    chosen = [matrix[name] for name in arguments.names]
    chosen = chosen or [one for one in matrix.values() if (one.modes == "N") <= (mode in COMPARED) and (one.modes == "L") <= (mode == "l")
                        and (arguments.all or mode == "g" or mode in one.modes.lower())]

    def taken(configuration):
        """What is to be printed, and whether it failed."""
        with tempfile.TemporaryDirectory(prefix="standin-") as folder:
            began = time.monotonic()
            run = Run(arguments.build.resolve(), configuration, mode, pathlib.Path(folder))
            problems = run.problems()
            lines = [f"{'FAILED' if problems else 'passed'} {configuration.name} ({arguments.mode}, {configuration.ranks} ranks, "
                     f"{time.monotonic() - began:.1f} s){run.difference()}"]
            if problems:
                lines += [run.output + "".join(f"  {problem}\n" for problem in problems)]
            if arguments.counts:
                called = getattr(run, "called", run.counts[0] if run.counts else {})
                lines += [f"  {count:10g}  {name}" for name, count in called.items()]
            return "\n".join(lines), bool(problems)

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        for text, failed in pool.map(taken, chosen):
            print(text, flush=True)
            failures += failed
    if len(chosen) > 1:
        print(f"{len(chosen)} runs, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
