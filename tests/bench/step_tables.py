"""Markdown tables of measured steps."""
import dataclasses
import os
import statistics

from sides import Model, Setting


@dataclasses.dataclass
class Comparison:
    setting: Setting
    peer: str
    ours: list  # a Run a round
    theirs: list
    difference: float  # largest relative difference of a step's losses
    tolerance: float


@dataclasses.dataclass
class Own:
    """fsdp-train by itself."""
    setting: Setting
    runs: list
    waiting: float = None  # share of a step
    together: list = None  # runs in turns with `alone`
    alone: list = None  # the same work as worlds of one at once


def median_step(runs):
    return statistics.median(second for run in runs for second in run.seconds)


def with_spread(runs):
    rounds = [statistics.median(run.seconds) for run in runs]
    return f"{median_step(runs):.4g} ({min(rounds):.4g}..{max(rounds):.4g})"


def ratio(runs, others):
    """Of medians, and what the rounds had."""
    rounds = [statistics.median(x.seconds) / statistics.median(y.seconds) for x, y in zip(runs, others)]
    return f"{median_step(runs) / median_step(others):.2f} ({min(rounds):.2f}..{max(rounds):.2f})"


def tokens_per_second(setting, model, step_s):
    return setting.ranks * setting.sequences * model.sequence / step_s


def utilisation(setting, model, step_s, gemm):
    """FLOPs of the model over what its ranks' cores can do; ranks beyond the cores share them."""
    cores = min(1.0, len(os.sched_getaffinity(0)) / (setting.ranks * setting.threads))
    flops = setting.sequences * model.sequence * model.training_flops_per_token()
    return flops / step_s / (gemm[setting.dtype] * 1e9 * cores)


def table(head, rows):
    if not rows:
        return ""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def faults(runs):
    counted = [run.faults for run in runs if run.faults is not None]
    return f"{statistics.median(counted):,.0f}" if counted else "-"


def own_row(own, model, gemm):
    s, step_s = own.setting, median_step(own.runs)
    return [s.dtype, str(s.sequences), with_spread(own.runs), f"{tokens_per_second(s, model, step_s):,.0f}",
            f"{utilisation(s, model, step_s, gemm):.0%}", "-" if own.waiting is None else f"{own.waiting:.0%}",
            "-" if own.alone is None else ratio(own.together, own.alone), faults(own.runs)]


def median_of(runs, name):
    return statistics.median(getattr(run, name) for run in runs)


def pair(ours, theirs, digits):
    return f"{ours:.{digits}f} / {theirs:.{digits}f} = {ours / theirs:.2f}"


def differs_by(c):
    return f"{c.difference:.1e}" + (f" (more than {c.tolerance:.0e})" if c.difference > c.tolerance else "")


def comparison_row(c, model, gemm):
    s = c.setting
    step_s = median_step(c.theirs)
    memory, start = [pair(median_of(c.ours, name), median_of(c.theirs, name), digits)
                     for name, digits in (("peak_mib", 0), ("first_step_s", 2))]
    return [s.dtype, str(s.sequences), c.peer, with_spread(c.ours), with_spread(c.theirs), ratio(c.theirs, c.ours),
            f"{tokens_per_second(s, model, median_step(c.ours)):,.0f} / {tokens_per_second(s, model, step_s):,.0f}",
            f"{utilisation(s, model, step_s, gemm):.0%}", memory, start,
            differs_by(c)]


def tables(owns: list, comparisons: list, gemm: dict, model: Model):
    """Both tables: ours by itself, and against the peers. Ratios of time over 1 mean that ours is faster, those of
    memory and of the start under 1 that ours is smaller."""
    own = table(["type", "sequences", "step, s", "tokens/s", "of the GEMM rate", "waiting for communication",
                 "over the same work alone", "minor faults a step"], [own_row(o, model, gemm) for o in owns])
    against = table(["type", "sequences", "peer", "ours, s", "peer, s", "peer / ours", "tokens/s, ours / peer",
                     "peer's of the GEMM rate", "peak MiB a rank, ours / peer", "start to first step, s, ours / peer",
                     "losses differ by"], [comparison_row(c, model, gemm) for c in comparisons])
    return "\n\n".join(part for part in (own, against) if part)


def loss_table(comparisons: list):
    """What a run's losses came to on both sides, and how far a step's were apart."""
    rows = []
    for c in comparisons:
        ours, theirs = c.ours[0].losses, c.theirs[0].losses
        rows.append([c.setting.dtype, str(c.setting.sequences), c.peer, str(len(ours)), f"{theirs[0]:.6f}",
                     f"{ours[0]:.6f}", f"{theirs[-1]:.6f}", f"{ours[-1]:.6f}", differs_by(c)])
    return table(["type", "sequences", "peer", "steps", "first loss, peer", "ours", "last loss, peer", "ours",
                  "largest relative difference"], rows)
