#!/usr/bin/env python3
"""A visit to a GPU: runs the queue of questions QUEUE (tests/gpu_check/visits; visit_queue.py has its form), in order and in turns
(A B A B), with clocks and power beside each figure, and compares what it finds with what was predicted. Started by scripts/gpu_visit.

It ends on time: an entry that does not end in its seconds, and those for which no time is left, are named. An entry that fails does not
end the visit. OUTPUT gets at most 8 files; report.md has the table, which is also the last thing that is printed. The exit code is 0 if
all entries ran, whether or not predictions held, else 1.
"""
import argparse
import dataclasses
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import libtorch
from check import PROJECT, CannotStart, new_folder, start_programs
from programs import Failed
from visit_clocks import ClockLog
from visit_queue import BadQueue, read_queue
from visit_runs import Runs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "bench"), str(HERE.parent / "cuda_standin")]
from gpu_device import NoGpu, find_gpu  # noqa: E402
from gpu_models import GIB, ON_GPUS  # noqa: E402
from gpu_tables import peak_rate  # noqa: E402
from run import preload  # noqa: E402
from step_tables import table  # noqa: E402

RESERVE_S = 3  # for the report
LINES_OF_LOG = 80


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/gpu_visit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("queue", type=Path, metavar="QUEUE")
    p.add_argument("--minutes", type=float, help="that the visit may take (what the queue says)")
    p.add_argument("--entries", help="some of the queue's, by name, separated by commas; of 'NAME: ...' NAME suffices")
    p.add_argument("--output", type=Path, help="a new folder for the report (gpu-visit-DATE-TIME)")
    p.add_argument("--b", type=Path, metavar="DIR", help="programs of build b (programs-b of a pack)")
    p.add_argument("--libtorch", type=Path, help="as for scripts/gpu_check")
    p.add_argument("--standin", type=Path, metavar="LIB", help="a trial without a GPU: the folder of the stand-in's libraries, with tiny "
                                                               "models; no figure of it means anything")
    p.add_argument("--list", action="store_true", help="print the entries, and end")
    p.add_argument("--bin", type=Path, required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.minutes is not None and not a.minutes > 0:
        p.error(f"--minutes: expected more than 0, found {a.minutes:g}")
    a.output = new_folder(p, a.output, "gpu-visit")
    return a


@dataclasses.dataclass
class Result:
    entry: object
    state: str = "not run"  # ran, failed, skipped, unfinished, not run
    why: str = ""
    runs: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def of(self, side):
        return [run for run in self.runs if run.side == side]

    def median(self, side, figure):
        values = [run.figures[figure] for run in self.of(side) if figure in run.figures]
        return statistics.median(values) if values else None

    def found(self, figure):
        """None where the runs did not tell."""
        own = "A" if self.entry.against is None else "B"
        if figure.partition(":")[0] == "ratio":
            of = figure.partition(":")[2] or "step_ms"
            other, mine = self.median("A", of), self.median("B", of)
            return other / mine if other is not None and mine else None
        if figure == "losses_differ":
            return largest_difference(self.of("A"), self.of("B"))
        return self.median(own, figure)

    def clocks(self):
        return "; ".join(f"{run.side} {run.clocks}" for run in self.runs if run.clocks) or "-"


def largest_difference(runs, others):
    pairs = [(x, y) for run in runs for other in others for x, y in zip(run.losses, other.losses)]
    if not pairs or any(len(run.losses) != len(other.losses) for run in runs for other in others):
        return None
    return max(abs(x - y) / max(abs(y), 1e-30) if x != y else 0.0 for x, y in pairs)


def number(value):
    return "-" if value is None else f"{value:.6g}"


class Visit:
    def __init__(self, a, queue, runs, facts, ends_at):
        self.a, self.queue, self.runs, self.facts, self.ends_at = a, queue, runs, facts, ends_at
        self.results = [Result(entry) for entry in queue.entries]

    def take(self, result, clocks):
        entry, begin = result.entry, time.monotonic()
        left = self.ends_at - begin
        if left < 1:
            result.why = "no time was left"
            return
        if entry.needs and shutil.which(entry.needs) is None:
            result.state, result.why = "skipped", f"needs {entry.needs}, which is not on PATH"
            return
        missing = [side.build for side in entry.sides() if side.build not in self.runs.programs]
        if missing:
            result.state, result.why = "skipped", f"needs build {missing[0]}; see --b"
            return
        limit = min(entry.seconds, left)
        for programs in self.runs.programs.values():
            programs.begin(f"{self.queue.entries.index(entry) + 1:02}", limit)
        try:
            self.take_turns(result, clocks)
            result.state = "ran"
        except Failed as why:
            out_of_time = time.monotonic() - begin >= limit - 0.5
            result.state, result.why = "unfinished" if out_of_time else "failed", str(why)
        except (ArithmeticError, AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as why:  # of what a program wrote
            result.state, result.why = "failed", f"what the programs wrote is not as expected: {type(why).__name__}: {why}"
        result.seconds = time.monotonic() - begin

    def take_turns(self, result, clocks):
        entry = result.entry
        for _ in range(entry.rounds):
            for name, side in zip("AB", entry.sides()):
                begin = time.monotonic()
                run = self.runs.run(entry, side, name)
                run.begin, run.end = begin, time.monotonic()
                run.clocks = clocks.between(run.begin, run.end)
                result.runs.append(run)

    def run(self):
        with ClockLog() as clocks:
            for number, result in enumerate(self.results):
                self.take(result, clocks)
                head = result.why.partition("\n")[0]
                print(f"{number + 1:3} of {len(self.results)}  {result.state:10} {result.entry.name} ({result.seconds:.0f} s)"
                      f"{': ' + head if head else ''}", flush=True)
                self.keep_logs(result)
                self.write()
        print(f"\n{self.table()}\n\n{self.verdict()}; {self.a.output / 'report.md'}")
        return 0 if all(result.state in ("ran", "skipped") for result in self.results) else 1

    def rows(self, result):
        entry = result.entry
        predicted = {one.figure: one for one in entry.predictions} or {"step_ms": None}
        for figure, prediction in predicted.items():
            found = result.found(figure)
            ratio = found / prediction.value if prediction and found is not None and prediction.value else None
            verdict = "-" if prediction is None else "no figure" if found is None else "hit" if prediction.holds(found) else "refuted"
            yield [entry.name, figure, number(found), str(prediction) if prediction else "-", "-" if ratio is None else f"{ratio:.3f}",
                   verdict if result.state == "ran" else result.state if found is None else f"{verdict}, {result.state}", result.clocks()]

    def table(self):
        return table(["entry", "figure", "found", "predicted", "found / predicted", "verdict", "clocks and power of each run"],
                     [row for result in self.results for row in self.rows(result)])

    def verdict(self):
        verdicts = [row[5].partition(",")[0] for result in self.results for row in self.rows(result)]
        texts = [f"Predictions: {verdicts.count('hit')} hit, {verdicts.count('refuted')} refuted"]
        for state in ("failed", "unfinished", "not run", "skipped"):
            names = [result.entry.name for result in self.results if result.state == state]
            texts += [f"{len(names)} {state}: {', '.join(names)}"] if names else []
        return "; ".join(texts)

    def write(self):
        lines = [f"# Visit to {self.facts[0]}, {datetime.date.today().isoformat()}", "", f"**{self.verdict()}.**", "",
                 *[f"- {fact}" for fact in self.facts], "", self.table()]
        for result in self.results:
            if result.why and result.state in ("failed", "unfinished"):
                lines += ["", f"## {result.state}: {result.entry.name}", "", "```", result.why.strip(), "```"]
        (self.a.output / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if self.runs.tables:
            (self.a.output / "ledger.md").write_text("\n\n".join(self.runs.tables) + "\n", encoding="utf-8")

    def keep_logs(self, result):
        """Each run in a line, and the ends of the logs in one file."""
        with open(self.a.output / "runs.jsonl", "a", encoding="utf-8") as lines:
            for run in result.runs:
                print(json.dumps(dict(entry=result.entry.name, side=run.side, seconds=round(run.end - run.begin, 3), figures=run.figures,
                                      losses=run.losses, clocks=str(run.clocks) if run.clocks else None)), file=lines)
        logs = self.runs.programs["a"].logs
        with open(self.a.output / "log.txt", "a", encoding="utf-8") as all_logs:
            for path in sorted(logs.iterdir()):
                text = path.read_text(encoding="utf-8", errors="replace").splitlines()
                print(f"=== {result.entry.name}, {path.name}", *text[:1], *text[1:][-LINES_OF_LOG:], sep="\n", file=all_logs)
                path.unlink()


def chosen_entries(queue, names):
    if not names:
        return queue
    wanted = [name.strip() for name in names.split(",")]
    entries = tuple(entry for entry in queue.entries if entry.name in wanted or entry.name.partition(":")[0] in wanted)
    known = {name for entry in queue.entries for name in (entry.name, entry.name.partition(":")[0])}
    for name in wanted:
        if name not in known:
            raise BadQueue(f"--entries: expected some of {', '.join(entry.name for entry in queue.entries)}; found '{name}'")
    return dataclasses.replace(queue, entries=entries)


def standin_environment(libraries):
    return dict(LD_PRELOAD=preload(libraries.resolve()), STANDIN_GPUS="1", STANDIN_STACKS="0", OMP_NUM_THREADS="1")


def facts_of(a):
    """The GPU, and what MFU is a share of."""
    if a.standin:
        return ["the stand-in for CUDA, whose figures mean nothing"], peak_rate("H100", None, None)
    gpu = find_gpu()
    peak = peak_rate(gpu["name"], None, 989.4)
    return [f"{gpu['name']}, {gpu['total_bytes'] / GIB:.1f} GiB, {gpu['driver']}; MFU of {peak[0]:.4g} TFLOP/s ({peak[1]})"], peak


def visit(a, work):
    began = time.monotonic()
    queue = chosen_entries(read_queue(a.queue, ON_GPUS.models), a.entries)
    if a.list:
        for entry in queue.entries:
            print(f"{entry.seconds:5g} s  {entry.name}: {', '.join(f'{one.figure} {one}' for one in entry.predictions)}")
        return 0
    minutes = a.minutes or queue.minutes
    facts, peak = facts_of(a)
    logs = work / "logs"
    logs.mkdir()
    programs, of_programs = start_programs(a.bin, work, logs, a.libtorch, "cuda")
    builds = {"a": programs}
    b = a.b or PROJECT / "programs-b/bin"
    if a.b or b.is_dir():
        builds["b"], of_b = start_programs(b.resolve(), work, logs, a.libtorch, "cuda")
        of_programs = [*of_programs, f"b: {of_b[0]}"]
    if a.standin:
        for one in builds.values():
            one.environment.update(standin_environment(a.standin))
    a.output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(a.queue, a.output / "queue.toml")
    if not a.standin and shutil.which("nvidia-smi"):
        told = subprocess.run(["nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE,MEMORY"], capture_output=True, text=True)
        (a.output / "nvidia-smi.txt").write_text(told.stdout, encoding="utf-8")
    runs = Runs(builds, queue.models, work, peak[0], tiny=a.standin is not None)
    return Visit(a, queue, runs, [*facts, *of_programs, f"{minutes:g} minutes"], began + 60 * minutes - RESERVE_S).run()


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="gpu-visit-") as work:
        return visit(a, Path(work))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BadQueue, CannotStart, Failed, NoGpu, libtorch.NoLibtorch, OSError) as error:
        sys.exit(f"gpu_visit: {error}")
    except KeyboardInterrupt:
        sys.exit("gpu_visit: interrupted; the report has the entries before")
