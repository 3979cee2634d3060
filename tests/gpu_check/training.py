"""Short runs of fsdp-train, and what two of them differ by."""
import dataclasses
import itertools
import json
import math
import sys
from pathlib import Path

from programs import Failed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
from sides import write_tokens  # noqa: E402


@dataclasses.dataclass
class Run:
    losses: list
    norms: list
    steps: list  # the lines of metrics.jsonl
    output: str
    folder: Path


@dataclasses.dataclass
class Difference:
    """The largest relative one of a step's losses, and of its gradient norms."""
    loss: float
    norm: float

    def __str__(self):
        return "no difference" if self.loss == self.norm == 0 else f"losses differ by {self.loss:.1e}, norms by {self.norm:.1e}"


def difference(run, other):
    def largest(ours, theirs):
        return max(abs(x - y) / max(abs(y), 1e-30) for x, y in zip(ours, theirs, strict=True))
    return Difference(largest(run.losses, other.losses), largest(run.norms, other.norms))


class Training:
    """Runs on `device`, the one that is checked. Equal requests share a run, unless a label tells them apart."""

    def __init__(self, programs, work, device):
        self.programs, self.work, self.device = programs, work, device
        self.numbers, self.known = itertools.count(1), {}

    def tokens(self, name, vocabulary, count):
        path = self.work / f"{name}.bin"
        if not path.exists():
            write_tokens(path, vocabulary, count)

    def run(self, *overrides, config="small", device=None, ranks=1, label=""):
        key = (overrides, config, device or self.device, ranks, label)
        if key not in self.known:
            self.known[key] = self.new_run(overrides, config, device or self.device, ranks)
        return self.known[key]

    def new_run(self, overrides, config, device, ranks):
        self.tokens("small", 512, 8 * 64 + 1)  # so few that a loss falls soon
        if config == "medium":
            self.tokens("medium", 50304, 1024 * 1024)
        folder = self.work / f"run-{next(self.numbers)}"
        words = [HERE / f"{config}.toml", f"run.output_dir={folder}", f"training.device={device}", *overrides]
        if ranks > 1:
            train = self.programs.folder / "fsdp-train"
            ended = self.programs.run_well("fsdp-launch", "--nproc-per-node", ranks, "--", train, *words)
        else:
            ended = self.programs.run_well("fsdp-train", *words)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [line for line in map(json.loads, lines) if "step_seconds" in line]
        run = Run([step["loss"] for step in steps], [step["grad_norm"] for step in steps], steps, ended.output, folder)
        check_numbers(run, ended.log)
        return run


def check_numbers(run, log):
    """A run whose numbers mean nothing is a failure, though it may equal another such run."""
    for name in ("loss", "grad_norm"):
        for step in run.steps:
            if not isinstance(step[name], (int, float)) or not math.isfinite(step[name]) or step[name] <= 0:
                raise Failed(f"{name} of step {step['step']} is {step[name]} ({log})")
    if len(run.losses) < 2:
        raise Failed(f"{len(run.losses)} steps were recorded ({log})")
    if not run.losses[-1] < run.losses[0]:
        raise Failed(f"the loss does not fall: {run.losses[0]:.6g} at the first step, {run.losses[-1]:.6g} at the last ({log})")
