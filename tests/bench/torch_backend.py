#!/usr/bin/env python3
"""fsdp_shm against gloo under PyTorch: collectives, and training steps of FSDP2 and DDP; started by scripts/bench, which builds
the wheel and brings the peer's venv.

Both backends run in turns: collectives in the same processes, steps as fresh process groups (A B A B). The losses of both must
be equal.
"""
import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ranks import RunFailed, run_group
from sides import MODELS, Setting, Sides
from step_tables import median_step, ratio

TOLERANCE = 1e-5  # relative, of losses: on more than two ranks the two add in different orders


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench torch-backend")
    p.add_argument("--ranks", type=int, default=2, help="processes (2)")
    p.add_argument("--rounds", type=int, default=3, help="turns of both backends with steps (3)")
    p.add_argument("--steps", type=int, default=13, help="of a run (13)")
    p.add_argument("--warmup", type=int, default=3, help="first steps of a run that do not count (3)")
    p.add_argument("--models", default="quickstart,small", help=f"of {', '.join(MODELS)} (quickstart,small)")
    p.add_argument("--engines", default="fsdp2,ddp", help="fsdp2,ddp")
    p.add_argument("--dtypes", default="fp32,bf16", help="fp32,bf16; DDP has fp32 alone")
    p.add_argument("--only", choices=["collectives", "steps"], help="one of the two")
    p.add_argument("--peer-python", help=argparse.SUPPRESS)
    p.add_argument("--site", help=argparse.SUPPRESS)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def worker():
    """One rank of the collectives."""
    import torch
    import torch.distributed as dist

    import fsdp_shm  # noqa: F401  (registers the backend)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # A copy beside the backends: where gloo takes less than five, nobody who copies each byte once is five times as fast.
    groups = {"gloo": dist.group.WORLD, "fsdp_shm": dist.new_group(backend="fsdp_shm"), "copy": None}
    rank, world = dist.get_rank(), dist.get_world_size()
    operations = {
        "all_reduce": lambda whole, part, group: dist.all_reduce(whole, group=group),
        "all_gather": lambda whole, part, group: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda whole, part, group: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda whole, part, group: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda whole, part, group: dist.all_to_all_single(other, whole, group=group),
    }
    if rank == 0:
        print(f"{'collective':15} {'bytes':>11} {'gloo':>11} {'fsdp_shm':>11}  factor {'copy':>11}", flush=True)
    for name, operation in operations.items():
        for size in (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20):
            whole = torch.ones(size // 4 // world * world)
            part = torch.ones(whole.numel() // world)
            other = torch.ones_like(whole)
            rounds = 51 if size <= 1 << 20 else 11
            seconds = {backend: [] for backend in groups}
            for turn in range(rounds + 3):
                for backend, group in groups.items():
                    dist.barrier(group=groups["fsdp_shm"])
                    begin = time.perf_counter()
                    if group:
                        operation(whole, part, group)
                    else:
                        other.copy_(whole)
                    took = time.perf_counter() - begin
                    if turn >= 3:
                        seconds[backend].append(took)
                whole.fill_(1)  # sums of sums would overflow
            gloo, ours, copy = (statistics.median(seconds[backend]) for backend in groups)
            if rank == 0:
                print(f"{name:15} {size:11,} {1e6 * gloo:8,.0f} us {1e6 * ours:8,.0f} us  {gloo / ours:6.1f} {1e6 * copy:8,.0f} us", flush=True)
    dist.destroy_process_group()


def compare_collectives(a, work):
    environment = {"PYTHONPATH": a.site}
    group = run_group([a.peer_python, __file__, "--worker"], a.ranks, 1, work, environment=environment)
    print(f"Collectives of {a.ranks} ranks: medians; bytes of the larger tensor")
    for _, line in group.lines:
        print(line)


def compare_steps(a, work):
    sides = Sides("", a.peer_python, work, [], environment={"PYTHONPATH": a.site})
    print(f"\nTraining steps of {a.ranks} ranks, 4 sequences each: medians in seconds; the factors of the rounds in parentheses")
    print(f"{'model':12} {'engine':7} {'type':5} {'gloo':>9} {'fsdp_shm':>9}  factor", flush=True)
    equal = True
    for model in a.models.split(","):
        for engine in a.engines.split(","):
            for dtype in a.dtypes.split(","):
                if engine == "ddp" and dtype != "fp32":
                    continue
                setting = Setting(model, a.ranks, dtype, 4, a.steps, a.warmup, 1)
                runs = {"gloo": [], "fsdp_shm": []}
                for _ in range(a.rounds):
                    for backend, some in runs.items():
                        some.append(sides.run_peer(setting, ["--engine", engine, "--backend", backend], stored_weights=False))
                gloo, ours = runs["gloo"], runs["fsdp_shm"]
                print(f"{model:12} {engine:7} {dtype:5} {median_step(gloo):9.4f} {median_step(ours):9.4f}  {ratio(gloo, ours)}",
                      flush=True)
                for x, y in zip(gloo[0].losses, ours[0].losses):
                    if abs(x - y) > TOLERANCE * abs(x):
                        equal = False
                        print(f"  the losses differ: {x} over gloo, {y} over fsdp_shm")
    return equal


def main():
    a = parse_arguments()
    if a.worker:
        return worker()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        try:
            if a.only != "steps":
                compare_collectives(a, work)
            if a.only != "collectives" and not compare_steps(a, work):
                return 1
        except RunFailed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
