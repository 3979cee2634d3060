#!/usr/bin/env python3
"""Weights of torchft's DiLoCo (torchft 0.2) for the two replicas and the steps of outer_optimizer_test.cpp.

    torchft_diloco.py >torchft_diloco.txt          needs torch and torchft

A line for each case and replica: fragments, delay, mixing, momentum, nesterov, replica, and the weights after the last step.
"""
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchft.local_sgd import DiLoCo

REPLICAS, UNITS, WIDTH, LOCAL_STEPS, STEPS, LR = 2, 2, 5, 4, 16, 0.7
CASES = [(1, 0, 0.0, 0.9, True), (1, 0, 0.0, 0.0, False), (1, 0, 0.0, 0.5, False), (1, 2, 0.5, 0.9, True), (2, 0, 0.0, 0.9, True),
         (2, 1, 0.0, 0.9, True), (2, 1, 0.25, 0.5, False)]


class Replicas:
    """What DiLoCo needs of torchft's Manager, for replicas that none leaves."""
    _use_async_quorum = False

    def __init__(self):
        self.step = 0

    def allreduce(self, tensor, should_quantize=False):
        dist.all_reduce(tensor)
        tensor /= REPLICAS
        done = torch.futures.Future()
        done.set_result(tensor)
        return done

    def should_commit(self):
        self.step += 1
        return True

    def current_step(self):
        return self.step

    def __getattr__(self, _):
        return lambda *args: None


def moves(replica, step, unit):
    i = torch.arange(WIDTH)
    return ((replica * 7 + step * 3 + unit * 5 + i * 11) % 13 - 6).float() / 64


def run(replica, rendezvous, lines):
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=replica, world_size=REPLICAS)
    for fragments, delay, mixing, momentum, nesterov in CASES:
        weights = [torch.nn.Parameter(torch.arange(WIDTH).float() / 8 - unit) for unit in range(UNITS)]
        modules = [torch.nn.ParameterList(weights[i::fragments]) for i in range(fragments)]
        inner = torch.optim.SGD(weights, lr=1.0)
        outer = [torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum, nesterov=nesterov) for module in modules]
        with DiLoCo(Replicas(), modules, inner, outer, LOCAL_STEPS, fragment_sync_delay=delay, fragment_update_alpha=mixing):
            for step in range(1, STEPS + 1):
                for unit, weight in enumerate(weights):
                    weight.grad = -moves(replica, step, unit)
                inner.step()
        values = " ".join(f"{value.item():.9g}" for weight in weights for value in weight)
        lines.append(f"{fragments} {delay} {mixing} {momentum} {int(nesterov)} {replica} {values}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        lines = manager.list()
        mp.spawn(run, (f"{folder}/rendezvous", lines), REPLICAS)
        print("\n".join(sorted(lines)))
