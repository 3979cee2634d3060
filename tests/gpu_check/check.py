#!/usr/bin/env python3
"""The first visit to a machine with an NVIDIA GPU, in less than 20 minutes and without a network; started by
scripts/gpu_check, which builds.

Runs the tests that need a GPU, compares short runs of fsdp-train (GPU and CPU, again, offloaded, CUDA graphs, float8, two
ranks), measures, and lets compute-sanitizer look at the kernels. A step that fails does not end the check. The report is
OUTPUT/report.md, with what each program printed in OUTPUT/logs. The exit code is 0 if no step failed, else 1.
"""
import argparse
import datetime
import shutil
import sys
import tempfile
import time
from pathlib import Path

import libtorch
from pack import pack
from programs import Failed, Programs, Skipped
from report import Outcome, render, verdict
from steps import STEPS, Visit
from training import Training

PROJECT = Path(__file__).resolve().parents[2]


class CannotStart(Exception):
    """The check cannot begin; the text says why and what to do."""


def parse_arguments():
    names = [step.name for step in STEPS]
    p = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, help="a new folder for the report (gpu-check-DATE-TIME)")
    p.add_argument("--steps", help=f"of {', '.join(names)} (all)")
    p.add_argument("--configurations", help="of tests/cuda_standin/matrix.txt, for the step of that name (all that have losses)")
    p.add_argument("--minutes", type=float, default=20, help="that all steps may take (20)")
    p.add_argument("--libtorch", type=Path, help="the folder that contains torch/ and nvidia/ of torch "
                                                 f"{libtorch.VERSION} for CUDA 13, such as a site-packages (.deps/, or the packages of "
                                                 "this Python)")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: a trial without a GPU")
    p.add_argument("--pack", type=Path, metavar="DIR", help="make a folder of at most 64 MB to take to another machine, which "
                                                            "has the libtorch that they were built with, and end")
    p.add_argument("--b", type=Path, metavar="FOLDER", help="with --pack: programs of another build, with which scripts/gpu_visit "
                                                            "compares")
    p.add_argument("--bin", type=Path, required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.steps = a.steps.split(",") if a.steps else names
    for name in a.steps:
        if name not in names:
            p.error(f"--steps: expected some of {', '.join(names)}, found '{name}'")
    if a.b and not a.pack:
        p.error("--b: expected --pack DIR beside it, found none")
    if not a.minutes > 0:
        p.error(f"--minutes: expected more than 0, found {a.minutes:g}")
    a.output = new_folder(p, a.output, "gpu-check")
    return a


def new_folder(parser, given, name):
    folder = (given or Path(f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}")).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"--output: expected a new folder, found {folder}; name another one")
    return folder


def start_programs(folder, work, logs, given_libtorch, device):
    """The programs, with the libtorch that they load, and what they are."""
    programs, source = Programs(folder, work, logs), "where the build found it"
    if not programs.has("fsdp-train"):
        raise CannotStart(f"expected fsdp-train in {folder}, found none; build it (scripts/build --cuda)")
    ended = None if given_libtorch else programs.run("fsdp-train", "--version")
    if ended is None or ended.code != 0:
        found = libtorch.find(PROJECT, given_libtorch, device)
        programs, source = Programs(folder, work, logs, libtorch.libraries(found)), str(found)
        ended = programs.run("fsdp-train", "--version")
    if ended.code != 0:
        raise CannotStart(f"expected programs that run with libtorch from {source}, found one that ended with {ended.code}:"
                          f"{ended.last_lines()}\n  They need x86_64, glibc 2.34 and libstdc++ of GCC 12 or later")
    return programs, [", ".join(ended.output.split("\n")).strip(", "), f"libtorch from {source}"]


def take(step, visit, seconds):
    if seconds < 1:
        return Outcome(step, "failed", "no time was left; see --minutes")
    visit.programs.begin(f"{STEPS.index(step) + 1:02}-{step.name}", min(step.seconds, seconds))
    begin = time.monotonic()
    try:
        finding = step.take(visit)
        outcome = Outcome(step, "passed", finding.found, finding.expected, details=finding.details)
    except Skipped as why:
        outcome = Outcome(step, "skipped", str(why))
    except Failed as why:
        outcome = Outcome(step, "failed", str(why))
    except (ArithmeticError, AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as why:  # of what a program wrote
        outcome = Outcome(step, "failed", f"what the programs wrote is not as expected: {type(why).__name__}: {why}")
    outcome.seconds = time.monotonic() - begin
    return outcome


def check(a, work):
    logs = a.output / "logs"
    logs.mkdir(parents=True)
    programs, facts = start_programs(a.bin, work, logs, a.libtorch, a.device)
    visit = Visit(a.device, programs, Training(programs, work, a.device), work,
                  a.configurations.split(",") if a.configurations else [])
    steps, outcomes = [step for step in STEPS if step.name in a.steps], []
    ends_at = time.monotonic() + 60 * a.minutes
    # Other steps depend on what the first one learns.
    for step in steps if steps[0] is STEPS[0] else [STEPS[0], *steps]:
        outcome = take(step, visit, ends_at - time.monotonic())
        if step in steps:
            outcomes.append(outcome)
            head, _, rest = outcome.found.partition("\n")
            print(f"{outcome.result:8}{step.title} ({outcome.seconds:.0f} s): {head}{' ...' if rest else ''}", flush=True)
        title = f"Check of {visit.name}, {datetime.date.today().isoformat()}"
        (a.output / "report.md").write_text(render(title, facts, outcomes, steps), encoding="utf-8")
    print(f"{verdict(outcomes, steps)}; the report is {a.output / 'report.md'}")
    return 1 if any(outcome.result == "failed" for outcome in outcomes) else 0


def main():
    a = parse_arguments()
    if a.pack:
        return pack(PROJECT, a.bin, a.pack, a.device == "cuda", a.b)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        try:
            return check(a, Path(work))
        except BaseException:
            if not (a.output / "report.md").exists():
                shutil.rmtree(a.output, ignore_errors=True)
            raise


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CannotStart, Failed, libtorch.NoLibtorch, OSError) as error:
        sys.exit(f"gpu_check: {error}")
    except KeyboardInterrupt:
        sys.exit("gpu_check: interrupted; the report has the steps before")
