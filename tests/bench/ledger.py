#!/usr/bin/env python3
"""Where the time of a step on a GPU goes, kernel by kernel (ledger_step.py has the kernels, their bytes and their FLOPs).

  ledger.py --derive MODEL                 without a GPU: bytes, launches and milliseconds of a step, and what each change brings
  ledger.py --trace FILE --model MODEL     a profile of logging.profile_steps beside them: what is lost against the ceilings
  ledger.py --check build-cuda             whether the ledger has the launches of the code, seen on the stand-in for CUDA

MODEL is llama-1.3b or gpt2-124m of tests/bench/gpu_models.py, with its sequences unless --sequences says otherwise.
"""
import argparse
import collections
import dataclasses
import itertools
import json
import re
import sys
import tempfile
from pathlib import Path

from gpu_models import ON_GPUS
from ledger_step import BESIDE, BY_A_KEY, CHANGES, IN_THE_CODE, UNCOUNTED, Ceilings, Step, expected_of, kind_of
from ranks import RunFailed
from sides import Model, Setting, Sides
from step_tables import table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cuda_standin"), str(HERE.parent / "gpu_check")]
from run import preload, read_reports  # noqa: E402
from step_profile import busy  # noqa: E402

# Small, with as many rows and tokens as the real ones, on which the number of launches depends.
CHECKED = {"llama": (Model(3, 256, 2, 688, 32000, 2048), 4), "gpt2": (Model(3, 128, 2, 512, 50257, 2048, "gpt2", tied=True), 8)}


SMALL_COPY = 512 << 10  # bytes


def number(value, digits=3):
    return f"{value:,.{digits}f}" if value else "-"


class NoKernels(Exception):
    """A trace without kernels; the text says which."""


# What is derived.

@dataclasses.dataclass
class Row:
    name: str
    group: str
    launches: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0

    def cells(self):
        return [self.name, str(self.launches or "-"), number(self.bytes / 1e9), number(self.flops / 1e9, 0), number(1e3 * self.seconds)]


def rows_of(step, speeds):
    rows = {}
    for launch in step.launches:
        row = rows.setdefault(launch.row, Row(launch.row, launch.group))
        row.launches += bool(launch.kind)
        row.bytes, row.flops, row.seconds = row.bytes + launch.bytes, row.flops + launch.flops, row.seconds + speeds.seconds(launch)
    return list(rows.values())


def derived_ms(step, ceilings):
    speeds = expected_of(step, ceilings)
    return 1e3 * sum(speeds.seconds(launch) for launch in step.launches)


@dataclasses.dataclass
class Change:
    name: str
    done: bool
    before_ms: float
    after_ms: float
    launches: int  # fewer
    gigabytes: float  # fewer

    def cells(self):
        return [self.name, CHANGES[self.name], "in the code" if self.done else f"by {BY_A_KEY[self.name]}" if self.name in BY_A_KEY else "to do", number(self.before_ms - self.after_ms),
                str(self.launches), number(self.gigabytes), number(self.after_ms, 2)]


def changes_of(model, sequences, ceilings, done):
    """One after the other, those of the code first and then those of a key: what each brings beside those before it."""
    applied, before, found = [], Step(model, sequences), []
    for name in sorted(CHANGES, key=lambda name: (name not in done, name not in BY_A_KEY)):
        applied.append(name)
        after = Step(model, sequences, applied)
        found.append(Change(name, name in done, derived_ms(before, ceilings), derived_ms(after, ceilings),
                            len(before.launched()) - len(after.launched()),
                            (total_bytes(before) - total_bytes(after)) / 1e9))
        before = after
    return found


def total_bytes(step):
    return sum(launch.bytes for launch in step.launches)


def derive(model, sequences, ceilings, done):
    step = Step(model, sequences, done)
    rows = rows_of(step, expected_of(step, ceilings))
    groups = collections.Counter()
    for row in rows:
        groups[row.group] += row.seconds
    total = derived_ms(step, ceilings)
    rate = sequences * model.sequence * model.training_flops_per_token() / (total / 1e3) / 1e12
    print(table(["kernel", "launches", "GB", "GFLOP", "ms"], [row.cells() for row in rows]))
    print("\nSums: " + ", ".join(f"{group} {1e3 * seconds:.1f}" for group, seconds in groups.items()) + " ms")
    print(f"\n{len(step.launched())} launches, {total_bytes(step) / 1e9:.1f} GB, {total:.1f} ms, {rate:.0f} TFLOP/s of the model "
          f"(before all changes: {len(Step(model, sequences).launched())} launches, {derived_ms(Step(model, sequences), ceilings):.1f} ms)\n")
    print(table(["change", "what it is", "state", "ms less", "launches less", "GB less", "ms after it"],
                [change.cells() for change in changes_of(model, sequences, ceilings, done)]))


# What a trace has.

@dataclasses.dataclass
class Measured:
    name: str
    launches: int = 0
    seconds: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    ceiling: float = 0.0  # seconds
    exact: bool = True  # the trace has as many launches of this kind as the ledger, so that each was found

    def lost(self):
        return self.seconds - self.ceiling

    def cells(self):
        def rate(amount, digits):
            return number(amount / self.seconds / 1e12, digits) if self.seconds > 0 else "-"
        return [self.name + ("" if self.exact else " *"), str(self.launches), number(1e3 * self.seconds), number(1e3 * self.ceiling),
                number(1e3 * self.lost()), rate(self.bytes, 2), rate(self.flops, 0)]


def kernels_of_trace(path):
    """(name, begin, duration) in microseconds, as they ran."""
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    found = [(event["name"], float(event["ts"]), float(event["dur"])) for event in events
             if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return sorted(found, key=lambda event: event[1])


def calls_of_trace(kernels):
    """By kind, the microseconds of each call. An attention is several kernels in a row, and a product may be summed by one more."""
    calls, unknown, last = collections.defaultdict(list), collections.Counter(), None
    for name, _, duration in kernels:
        kind = kind_of(name)
        if kind is None:
            unknown[name] += duration
            calls["unknown " + name].append(duration)
        elif kind == "split of a product" and calls["product"]:
            calls["product"][-1] += duration
            continue
        elif kind == last == "attention":
            calls[kind][-1] += duration
        else:
            calls[kind].append(duration)
        last = kind
    return calls


def joined(step, calls, ceilings):
    """Rows of the ledger with the microseconds of a trace."""
    rows = {}
    for kind, launches in itertools.groupby(sorted(step.launched(), key=lambda launch: launch.kind), key=lambda launch: launch.kind):
        launches, durations = list(launches), calls.pop(kind, [])
        if len(launches) == len(durations):
            pairs = [(launch.row, launch, duration, True) for launch, duration in zip(launches, durations)]
        else:
            share = sum(durations) / len(launches)
            name = f"all of kind '{kind}': {len(durations)} launches, {len(launches)} in the ledger"
            pairs = [(name, launch, share, False) for launch in launches]
        for name, launch, duration, exact in pairs:
            row = rows.setdefault(name, Measured(name, exact=exact))
            row.launches, row.seconds = row.launches + 1, row.seconds + duration / 1e6
            row.bytes, row.flops = row.bytes + launch.bytes, row.flops + launch.flops
            row.ceiling += ceilings.seconds(launch) if durations else 0.0  # nothing of the kind ran
    for name, durations in calls.items():
        if durations:
            text = f"not in the ledger: {name.removeprefix('unknown ')[:90].replace('|', '/')}"
            rows[text] = Measured(text, len(durations), sum(durations) / 1e6)
    return sorted(rows.values(), key=lambda row: -row.lost())


def read_trace(path, model, sequences, ceilings, done):
    """The table, the sentence about it, and the milliseconds that are lost."""
    kernels = kernels_of_trace(path)
    if not kernels:
        raise NoKernels(f"expected a trace with kernels of a GPU in {path.name}, found none; write it with logging.profile_steps")
    rows = joined(Step(model, sequences, done), calls_of_trace(kernels), ceilings)
    span = max(begin + duration for _, begin, duration in kernels) - kernels[0][1]
    working = busy([(begin, begin + duration) for _, begin, duration in kernels])
    lost_ms = sum(1e3 * row.lost() for row in rows)
    summary = (f"{len(kernels)} kernels and copies, {working / 1e3:.2f} ms busy of {span / 1e3:.2f}; ceilings {ceilings.tb_s:g} TB/s and "
               f"{ceilings.tflops:g} TFLOP/s; {lost_ms:.2f} ms over them")
    head = ["kernel", "launches", "ms", "at the ceiling", "lost, ms", "TB/s", "TFLOP/s"]
    return table(head, [row.cells() for row in rows]), summary, lost_ms


# What the code launches.

def is_small_copy(name):
    """Of scalars, tokens and counts, or of no more than takes a microsecond or two."""
    size = re.match(r"(?:copy|memset) of (\d+) bytes", name)
    return size is not None and int(size.group(1)) < SMALL_COPY


def launches_on_standin(build, model, sequences, *overrides):
    """The names of the launches of one step, in order."""
    with tempfile.TemporaryDirectory(prefix="fsdp-ledger-") as work:
        environment = {"LD_PRELOAD": preload(build / "tests/cuda_standin/lib"), "STANDIN_GPUS": "1", "STANDIN_STACKS": "0",
                       "STANDIN_FASTEST_ALGORITHM": "1", "STANDIN_REPORT": f"{work}/report", "STANDIN_LAUNCHES": f"{work}/launches"}
        sides = Sides(build / "bin/fsdp-train", "", work, ["logging.peak_tflops=1"], {"checked": model}, "cuda", environment)
        sides.run_ours(Setting("checked", 1, "bf16", sequences, 4, 1, 1), overrides=overrides, stored_weights=False)
        _, violations = read_reports(Path(work), "report")
        if violations:
            raise RunFailed(f"fsdp-train did what CUDA forbids: {violations[0]}")
        names = [line for path in sorted(Path(work).glob("launches*")) for line in path.read_text(encoding="utf-8").splitlines()]
    names = [name for name in names if not is_small_copy(name)]
    updates = [at for at, name in enumerate(names) if kind_of(name) == "adamw"]
    ends = [at for at in updates if at + 1 not in updates]
    if len(ends) < 2:
        raise RunFailed(f"expected launches of AdamW's kernel, one a step; found {len(ends)} among {len(names)} launches; build the target standin")
    return names[ends[-2] + 1:ends[-1] + 1]


def label(kind, sizes=(), to=""):
    return f"product {' x '.join(map(str, sizes))} to {to}" if kind == "product" else kind


def differences(step, names):
    """Sentences about launches that the ledger lacks or has too many of, or in another order."""
    unknown = collections.Counter(name for name in names if kind_of(name) is None)
    if unknown:
        return [f"the ledger does not know a kernel that is launched {count} times a step: {name[:200]}" for name, count in unknown.items()]
    found = [(kind_of(name), name if kind_of(name) in ("product", "copy") else kind_of(name))
             for name in names if kind_of(name) not in UNCOUNTED]
    expected = [(launch.kind, label(launch.kind, launch.sizes, launch.to))
                for launch in step.launched() if launch.kind not in UNCOUNTED]
    counts, ledger = (collections.Counter(text for _, text in every) for every in (found, expected))
    texts = [f"{text}: {counts[text]} launches a step, {ledger[text]} in the ledger"
             for text in sorted(counts | ledger) if counts[text] != ledger[text]]
    if texts:
        return texts
    orders = [[text for kind, text in every if kind not in BESIDE] for every in (found, expected)]
    for at, (ours, its) in enumerate(zip(*orders)):
        if ours != its:
            return [f"launch {at + 1} of the step is '{ours}', '{its}' in the ledger"]
    return []


def fitting_changes(launched):
    """The fewest changes with which the ledger has the launches of all models; None if there are none such."""
    def launches(changes):
        return [[(launch.kind, launch.sizes) for launch in Step(*CHECKED[name], changes).launched()] for name in launched]
    visible = [change for change in CHANGES if launches((change,)) != launches(())]
    for count in range(len(visible) + 1):
        for changes in itertools.combinations(visible, count):
            if not any(differences(Step(*CHECKED[name], changes), names) for name, names in launched.items()):
                return changes
    return None


def check(build, done):
    launched = {name: launches_on_standin(build, *checked) for name, checked in CHECKED.items()}
    failed = False
    for name, names in launched.items():
        problems = differences(Step(*CHECKED[name], done), names)
        print(f"{name}: {len(names)} launches a step, " + ("as in the ledger" if not problems else "not as in the ledger"))
        for problem in problems:
            print("  " + problem)
        failed |= bool(problems)
    for key in dict.fromkeys(BY_A_KEY.values()):
        changes = [change for change, its in BY_A_KEY.items() if its == key]
        for name, checked in CHECKED.items():
            problems = differences(Step(*checked, (*done, *changes)), launches_on_standin(build, *checked, key))
            print(f"{name} with {key}: " + ("as in the ledger" if not problems else "not as in the ledger"))
            for problem in problems:
                print("  " + problem)
            failed |= bool(problems)
    if failed:
        changes = fitting_changes(launched)
        known = f"with {', '.join(changes) or 'no change'}, they are" if changes is not None else "with no choice of its changes they are"
        print(f"The ledger was read with the changes of lib/: {', '.join(done) or 'none'}; {known} the launches of lib/. Write down those "
              "that lib/ has in IN_THE_CODE of tests/bench/ledger_step.py, and tell new kernels in its class Step.")
    return 1 if failed else 0


def parse_arguments():
    p = argparse.ArgumentParser(prog="ledger.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--derive", choices=ON_GPUS.models, metavar="MODEL")
    what.add_argument("--trace", type=Path, metavar="FILE")
    what.add_argument("--check", type=Path, metavar="BUILD")
    p.add_argument("--model", choices=ON_GPUS.models, help="of the trace")
    p.add_argument("--sequences", type=int, help="of a micro-batch")
    p.add_argument("--with", dest="done", metavar="CHANGE,...", help="changes that the code has, in place of those that it has; 'all', 'none'")
    p.add_argument("--tb-s", type=float, default=Ceilings.tb_s, help="ceiling of bytes (%(default)s)")
    p.add_argument("--tflops", type=float, default=Ceilings.tflops, help="ceiling of products (%(default)s)")
    a = p.parse_args()
    if a.trace and not a.model:
        p.error("--trace: expected --model, found none; name the model of the run")
    a.done = {None: IN_THE_CODE, "all": tuple(CHANGES), "none": ()}.get(a.done, tuple((a.done or "").split(",")))
    for name in a.done:
        if name not in CHANGES:
            p.error(f"--with: expected some of {', '.join(CHANGES)}, found '{name}'")
    return a


def main():
    a = parse_arguments()
    if a.check:
        return check(a.check.resolve(), a.done)
    name = a.derive or a.model
    model, sequences = ON_GPUS.models[name], a.sequences or ON_GPUS.sequences[name]
    ceilings = dataclasses.replace(Ceilings(), tb_s=a.tb_s, tflops=a.tflops)
    if a.derive:
        derive(model, sequences, ceilings, a.done)
    else:
        text, summary, _ = read_trace(a.trace, model, sequences, ceilings, a.done)
        print(f"{text}\n\n{summary}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (NoKernels, RunFailed) as error:
        sys.exit(f"ledger: {error}")
