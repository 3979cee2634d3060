#!/usr/bin/env python3
"""Training by fsdp-train against what a user could take instead, on models of several sizes; started by scripts/bench peers.

In each round ours and every peer run once (A B C D A B C D), as new processes on the same weights and tokens, with the
same number of threads in all: a peer of one process has those of all ranks, and their sequences. It is compared with
ours as one process. Losses are compared
step by step; where they differ by more than the tolerance, the exit code is 1.
"""
import argparse
import collections
import dataclasses
import tempfile
from pathlib import Path

import lora
from ranks import run_group
from results import describe_machine, replace_section
from sides import MODELS, Model, Setting, Sides
from step_tables import (Comparison, differs_by, median_of, median_step, pair, ratio, table, tokens_per_second,
                         with_spread)
from steps import TOLERANCE, end, largest_difference, run, say


@dataclasses.dataclass(frozen=True)
class Peer:
    flags: tuple = ()  # of torch_peer.py
    program: str = ""  # built from a folder of its own, by PROGRAM.py
    architecture: str = ""  # the only one that it has
    contexts_of: int = 1  # its sequences are a multiple of this
    one_sequence: bool = False  # updates the weights after each; ours does so against it
    compares: bool = True  # its losses are those of ours
    alone: bool = False  # one process with all threads
    copies: bool = False  # each rank keeps all parameters
    bf16: bool = False  # can compute in it
    clips: bool = True  # gradients; ours does so against those that do

    def of(self, setting):
        """The setting as this peer has it."""
        if not self.alone:
            return setting
        return dataclasses.replace(setting, ranks=1, threads=setting.ranks * setting.threads,
                                   sequences=1 if self.one_sequence else setting.ranks * setting.sequences)


FSDP2 = ("--engine", "fsdp2")
PEERS = {
    "fsdp2": Peer(FSDP2, bf16=True),
    "fsdp2 tuned": Peer((*FSDP2, "--tuned")),
    "fsdp2 compiled": Peer((*FSDP2, "--tuned", "--compile"), bf16=True),
    "ddp tuned": Peer(("--engine", "ddp", "--tuned"), copies=True),
    "one process tuned": Peer(("--engine", "none", "--tuned"), alone=True),
    "one process compiled": Peer(("--engine", "none", "--tuned", "--compile"), alone=True),
    "trainer": Peer(("--engine", "trainer", "--tuned"), bf16=True),
    "llm.c": Peer(program="llm_c", architecture="gpt2", alone=True, clips=False),
    "llama.cpp": Peer(program="llama_cpp", architecture="llama", contexts_of=256, one_sequence=True,
                      compares=False, alone=True, clips=False),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model with a length of its sequences."""
    model: Model
    sequences: int = 1  # a rank
    steps: int = 6
    warmup: int = 2


GPT2 = Model(12, 768, 12, 3072, 50257, 64, architecture="gpt2", tied=True)
CELLS = {
    "small": Cell(MODELS["small"], 4),
    "quickstart": Cell(MODELS["quickstart"], 4, 13, 3),
    "smollm2-135m": Cell(lora.MODELS["smollm2-135m"]),
    "gpt2-124m-64": Cell(GPT2, 2),
    "gpt2-124m-1024": Cell(dataclasses.replace(GPT2, sequence=1024)),
    "llama-1b": Cell(lora.MODELS["llama-1b"], steps=2, warmup=1),
    "tiny": Cell(lora.MODELS["tiny"]),
    "tiny-gpt2": Cell(Model(2, 128, 4, 512, 512, 64, architecture="gpt2", tied=True), 2),
}


class PeerSides(Sides):
    """`folders`: of the sources of llm.c and llama.cpp, by the names of their programs."""

    def __init__(self, *arguments, folders):
        super().__init__(*arguments, models={name: cell.model for name, cell in CELLS.items()})
        self.folders = folders

    def tool(self, program, *arguments):
        run_group([self.peer_python, str(Path(__file__).parent / f"{program}.py"), *map(str, arguments)], 1, 1, self.work)

    def built(self, program):
        path = self.work / program
        if not path.exists():
            self.tool(program, "build", self.folders[program], path)
        return path

    def weights_for(self, program, name, *arguments):
        path = self.work / f"{name}.{program}"
        if not path.exists():
            self.tool(program, "weights", self.weights(name), *arguments, path)
        return path

    def forget(self, model):
        super().forget(model)
        for program in self.folders:
            (self.work / f"{model}.{program}").unlink(missing_ok=True)

    def run_program(self, program, setting):
        m = self.models[setting.model]
        if program == "llm_c":
            weights = self.weights_for(program, setting.model, m.heads)
            counts = [setting.sequences, m.sequence, setting.steps]
        else:
            weights = self.weights_for(program, setting.model, m.heads, m.kv_heads or m.heads, m.sequence)
            counts = [m.sequence, setting.steps, setting.threads]
        command = [self.built(program), weights, self.tokens(setting.model), *counts]
        return self.run_of(run_group([str(word) for word in command], 1, setting.threads, self.work), setting)

    def run(self, setting, peer):
        setting = peer.of(setting)
        return self.run_program(peer.program, setting) if peer.program else self.run_peer(setting, peer.flags)


def processes(setting):
    return f"{setting.ranks} x {setting.threads}"


def can(peer, model, dtype, folders):
    """Whether the peer is there and has such a model in such a type."""
    if peer.program and peer.program not in folders:
        return False
    if model.architecture != (peer.architecture or model.architecture) or model.sequence % peer.contexts_of != 0:
        return False
    return dtype == "fp32" or peer.bf16


def lacking_gib(setting, model, copies):
    """How much more memory the weights, their gradients and AdamW's state need than is free, with a tenth and 2 GiB for
    the rest; 0: nothing."""
    needed = 1.1 * 16 * model.parameters() * (setting.ranks if copies else 1) / 2**30 + 2
    with open("/proc/meminfo", encoding="utf-8") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) / 2**20
    return max(0.0, needed - free)


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench peers")
    some = [name for name in CELLS if not name.startswith("tiny")]
    p.add_argument("--cells", default=",".join(some), help=f"of {', '.join(CELLS)} (all but tiny ones)")
    p.add_argument("--ranks", type=int, default=2, help="processes (2)")
    p.add_argument("--dtypes", default="fp32,bf16", help="fp32,bf16")
    p.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)} (all)")
    p.add_argument("--rounds", type=int, default=3, help="turns (3)")
    p.add_argument("--steps", type=int, help="of a run, 1 or 2 of them not counted (6; quickstart 13, llama-1b 2)")
    p.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of a rank (1)")
    p.add_argument("--llm-c", metavar="FOLDER", help="sources of llm.c, which is left out without them")
    p.add_argument("--llama-cpp", metavar="FOLDER",
                   help="sources of llama.cpp with libllama.so in build/bin; it is left out without them")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true", help="put the tables into tests/bench/RESULTS.md")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    for name, known in (("cells", CELLS), ("dtypes", TOLERANCE), ("peers", PEERS)):
        setattr(a, name, getattr(a, name).split(","))
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    if min(a.ranks, a.rounds, a.threads) < 1 or (a.steps is not None and a.steps < 2):
        p.error("ranks, rounds and threads are at least 1, and steps 2")
    a.folders = {name: value for name, value in (("llm_c", a.llm_c), ("llama_cpp", a.llama_cpp)) if value}
    return a


class Bench:
    def __init__(self, arguments, sides):
        self.a, self.sides = arguments, sides
        self.gemm = collections.Counter()  # the best rates so far

    def setting(self, name, dtype):
        cell = CELLS[name]
        steps = self.a.steps or cell.steps
        return Setting(name, self.a.ranks, dtype, cell.sequences, steps, min(cell.warmup, steps - 1), self.a.threads)

    def measure_gemm(self):
        """Of each of as many processes as there are ranks."""
        for dtype, rate in self.sides.gemm_rates(self.a.threads, self.a.ranks).items():
            self.gemm[dtype] = max(self.gemm[dtype], rate)

    def compare(self, setting):
        """Comparisons, and the peers that do not fit into memory with the GiB that they lack."""
        model, lacking = CELLS[setting.model].model, {}
        peers = {name: PEERS[name] for name in self.a.peers if can(PEERS[name], model, setting.dtype, self.a.folders)}
        for name, peer in peers.items():
            if (gib := lacking_gib(setting, model, peer.copies)) > 0:
                lacking[name] = gib
        theirs = {name: [] for name in peers if name not in lacking}
        for program in {peers[name].program for name in theirs} - {""}:
            self.sides.built(program)  # says what is missing before anything is measured
        jobs = {name: (peers[name].of(setting), peers[name].clips) for name in theirs}
        ours = {job: [] for job in jobs.values()}
        for number in range(self.a.rounds if theirs else 0):
            self.measure_gemm()
            for (one, clips), runs in ours.items():
                say(f"{setting.model}, {setting.dtype}, round {number + 1} of {self.a.rounds}: ours, {processes(one)}"
                    f"{'' if clips else ', without clipping'}")
                runs.append(self.sides.run_ours(one, overrides=() if clips else ("training.max_grad_norm=0",)))
            for name, runs in theirs.items():
                say(f"{setting.model}, {setting.dtype}, round {number + 1} of {self.a.rounds}: {name}")
                runs.append(self.sides.run(setting, peers[name]))
        return [self.comparison(jobs[name][0], name, ours[jobs[name]], runs) for name, runs in theirs.items()], lacking

    def comparison(self, setting, name, ours, theirs):
        pairs = zip(ours, theirs)
        difference = max(largest_difference(x.losses, y.losses) for x, y in pairs) if PEERS[name].compares else 0.0
        return Comparison(setting, name, ours, theirs, difference, TOLERANCE[setting.dtype])

    def row(self, c):
        s, peer, model = c.setting, PEERS[c.peer], CELLS[c.setting.model].model
        steps = [median_step(runs) for runs in (c.ours, c.theirs)]
        tokens = [tokens_per_second(s, model, step_s) for step_s in steps]
        rate = self.gemm[s.dtype] * 1e9 * self.a.ranks
        shares = [number * model.training_flops_per_token() / rate for number in tokens]
        memory = [median_of(runs, "peak_mib") * s.ranks for runs in (c.ours, c.theirs)]
        behind = [what for what, is_so in (("speed", steps[0] > steps[1]), ("memory", memory[0] > memory[1])) if is_so]
        return [s.dtype, c.peer, processes(s), with_spread(c.ours), with_spread(c.theirs), ratio(c.theirs, c.ours),
                f"{tokens[0]:,.0f} / {tokens[1]:,.0f}", f"{shares[0]:.0%} / {shares[1]:.0%}", pair(*memory, 0),
                f"**behind in {' and '.join(behind)}**" if behind else "ahead",
                differs_by(c) if peer.compares else "not compared"]

    def section(self, name):
        """The table of a cell, written after each type: an interrupted run keeps what it has."""
        cell, comparisons, rows = CELLS[name], [], []
        title = f"Peers: {name}, {self.a.ranks} ranks"
        for dtype in self.a.dtypes:
            setting = self.setting(name, dtype)
            compared, lacking = self.compare(setting)
            comparisons += compared
            rows += [self.row(c) for c in compared]
            rows += [[dtype, peer, "-", f"not run: needs {gib:.1f} GiB more than is free", *["-"] * 7]
                     for peer, gib in lacking.items()]
            text = table(["type", "peer", "processes x threads", "ours, s", "peer, s", "peer / ours", "tokens/s, ours / peer",
                          "of the GEMM rate, ours / peer", "MiB in all, ours / peer", "ours is", "losses differ by"], rows)
            flags = self.flags(setting, cell)
            if self.a.write:
                replace_section(title, f"### {title}\n\n{describe_machine(flags)}\n\n{text}")
        print(f"\n{title}\n{flags}\n\n{text}\n", flush=True)
        return comparisons

    def flags(self, setting, cell):
        a = self.a
        return "; ".join([f"{setting.sequences} x {cell.model.sequence} tokens a rank", f"OMP_NUM_THREADS={a.threads}",
                          f"{a.rounds} {'round' if a.rounds == 1 else 'rounds'} of {setting.steps} steps, "
                          f"{setting.warmup} not counted",
                          f"GEMM rate of a rank beside the others, by CPU time, {self.gemm['fp32']:.0f} (fp32), "
                          f"{self.gemm['bf16']:.0f} (bf16) GFLOP/s", *a.set])


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        bench = Bench(a, PeerSides(a.train_program, a.peer_python, work, a.set, folders=a.folders))
        comparisons = []
        for name in a.cells:
            comparisons += bench.section(name)
            bench.sides.forget(name)
    end(comparisons)


if __name__ == "__main__":
    run(main)
