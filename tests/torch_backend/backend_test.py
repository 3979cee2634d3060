#!/usr/bin/env python3
"""torch.distributed over fsdp_shm against the same over gloo: collectives, messages, groups, failures, and training by FSDP2
and DDP. The module fsdp_shm must be importable."""
import os
import tempfile
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn as nn

import fsdp_shm  # noqa: F401  (registers the backend)

WORLD = 4
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [1, 7, 4096, 300_001]


def on_rank(rank, world, backend, folder, body):
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world,
                            timeout=timedelta(seconds=60))
    body()
    dist.destroy_process_group()


def run(world, body, backend="gloo"):
    """Runs a function in processes of one group; a failure of one is thrown."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(on_rank, (world, backend, folder, body), nprocs=world)


def values(dtype, numel, seed):
    """Of this rank; small, so that sums and products of four are exact in the types of 16 bits too."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    numbers = torch.randint(1, 4, (numel,), generator=generator)
    return numbers == 2 if dtype == torch.bool else numbers.to(dtype)


def expect(found, expected, what):
    assert found.dtype == expected.dtype and torch.equal(found, expected), f"{what}: {found} instead of {expected}"


def compare_reductions():
    shm, rank = dist.new_group(backend="fsdp_shm"), dist.get_rank()
    assert dist.get_backend(shm) == "fsdp_shm"
    operations = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    bitwise = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    for dtype in FLOATS + INTEGERS:
        for op in operations + (bitwise if dtype in INTEGERS else []):
            for numel in SIZES:
                what, mine = f"{op} of {numel} {dtype}", values(dtype, numel, 1)
                reduced, by_gloo = mine.clone(), mine.clone()
                dist.all_reduce(reduced, op, group=shm)
                dist.all_reduce(by_gloo, op)
                expect(reduced, by_gloo, f"all_reduce by {what}")
                at_root = mine.clone()
                dist.reduce(at_root, 2, op, group=shm)
                expect(at_root, by_gloo if rank == 2 else mine, f"reduce by {what}")
                whole = values(dtype, numel * WORLD, 2)
                part = torch.empty(numel, dtype=dtype)
                dist.reduce_scatter_tensor(part, whole, op, group=shm)
                dist.all_reduce(whole, op)
                expect(part, whole[rank * numel:(rank + 1) * numel], f"reduce_scatter by {what}")
    mean = values(torch.float32, 1000, 3)
    expected = mean.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=shm)
    dist.all_reduce(expected)
    expect(mean, expected / WORLD, "AVG")
    complex_sum = torch.complex(values(torch.float32, 9, 4), values(torch.float32, 9, 5))
    by_gloo = complex_sum.clone()
    dist.all_reduce(complex_sum, group=shm)
    dist.all_reduce(by_gloo)
    expect(complex_sum, by_gloo, "complex numbers")


def compare_moves():
    shm, rank = dist.new_group(backend="fsdp_shm"), dist.get_rank()
    for dtype in FLOATS + INTEGERS + [torch.bool, torch.complex64]:
        for numel in SIZES:
            mine, what = values(dtype, numel, 6), f"{numel} {dtype}"
            expected = [torch.empty_like(mine) for _ in range(WORLD)]
            dist.all_gather(expected, mine)
            found = [torch.empty_like(mine) for _ in range(WORLD)]
            dist.all_gather(found, mine, group=shm)
            flat = torch.empty(WORLD * numel, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine, group=shm)
            gathered = [torch.empty_like(mine) for _ in range(WORLD)] if rank == 1 else None
            dist.gather(mine, gathered, 1, group=shm)
            for each in range(WORLD):
                expect(found[each], expected[each], f"all_gather of {what}")
                expect(flat[each * numel:(each + 1) * numel], expected[each], f"all_gather_into_tensor of {what}")
                if rank == 1:
                    expect(gathered[each], expected[each], f"gather of {what}")
                sent = mine.clone()
                dist.broadcast(sent, each, group=shm)
                expect(sent, expected[each], f"broadcast of {what}")
            part = torch.empty_like(mine)
            dist.scatter(part, expected if rank == 3 else None, 3, group=shm)
            expect(part, expected[rank], f"scatter of {what}")
            exchanged = torch.empty(WORLD * numel, dtype=dtype)
            dist.all_to_all_single(exchanged, flat, group=shm)
            expect(exchanged, expected[rank].repeat(WORLD), f"all_to_all of {what}")
    columns = torch.arange(12.0).view(3, 4).t() + rank
    dist.all_reduce(columns, group=shm)
    expect(columns, WORLD * torch.arange(12.0).view(3, 4).t() + 6, "a transposed tensor")


def compare_objects_and_functions():
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
    shm, rank = dist.new_group(backend="fsdp_shm"), dist.get_rank()
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank, "more": "x" * rank}, group=shm)
    assert [each["rank"] for each in objects] == list(range(WORLD)), objects
    told = [rank]
    dist.broadcast_object_list(told, 2, group=shm)
    assert told == [2], told
    at_root = [None] * WORLD if rank == 0 else None
    dist.gather_object(rank * 10, at_root, 0, group=shm)
    assert rank != 0 or at_root == [0, 10, 20, 30], at_root
    given = [None]
    dist.scatter_object_list(given, ["a", "b", "c", "d"] if rank == 1 else None, 1, group=shm)
    assert given == ["abcd"[rank]], given

    mine = values(torch.float32, 8, 7)
    total = mine.clone()
    dist.all_reduce(total)
    expect(torch.as_tensor(all_reduce(mine, "sum", shm)), total, "functional all_reduce")
    expect(torch.as_tensor(reduce_scatter_tensor(mine, "avg", 0, shm)), total[2 * rank:2 * rank + 2] / WORLD,
           "functional reduce_scatter")
    expected = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(expected, mine)
    expect(torch.as_tensor(all_gather_tensor(mine, 0, shm)), torch.cat(expected), "functional all_gather")
    with dist.distributed_c10d._coalescing_manager(group=shm, device=None):
        first, second = mine.clone(), mine.clone()
        dist.all_reduce(first, group=shm)
        dist.all_reduce(second, group=shm)
    expect(first, total, "coalesced all_reduce")
    expect(second, total, "coalesced all_reduce")

    work = dist.all_reduce(mine, group=shm, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    expect(doubled.wait(), 2 * total, "a future")
    assert work.wait() and work.is_completed() and work.is_success()
    dist.barrier(group=shm)


def exchange_messages():
    shm, rank = dist.new_group(backend="fsdp_shm"), dist.get_rank()
    to, of = (rank + 1) % WORLD, (rank - 1) % WORLD
    for numel in SIZES:
        got, mine = torch.zeros(numel), torch.full((numel,), float(rank))
        operations = [dist.P2POp(dist.isend, mine, to, group=shm), dist.P2POp(dist.irecv, got, of, group=shm)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        expect(got, torch.full((numel,), float(of)), "batch_isend_irecv")
    if rank == 0:
        seen = set()
        for _ in range(1, WORLD):
            got = torch.zeros(3, dtype=torch.int64)
            sender = dist.recv(got, group=shm, tag=5)
            assert got.tolist() == [sender] * 3, (got, sender)
            seen.add(sender)
        assert seen == {1, 2, 3}, seen
    else:
        dist.send(torch.full((3,), rank), 0, group=shm, tag=5)


def use_groups():
    rank = dist.get_rank()
    odd, even = dist.new_group([1, 3], backend="fsdp_shm"), dist.new_group([0, 2], backend="fsdp_shm")
    mine = torch.tensor([1.0 + rank])
    dist.all_reduce(mine, group=odd if rank % 2 else even)
    assert mine.item() == (6 if rank % 2 else 4), mine
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name, expected in (("rows", 2 * (rank % 2) + 2), ("columns", 4 * (rank // 2) + 1)):
        mine = torch.tensor([rank])
        dist.all_reduce(mine, group=mesh.get_group(name))
        assert mine.item() == expected, (name, mine)


def fail_in_groups_of_their_own():
    rank = dist.get_rank()
    different = dist.new_group(backend="fsdp_shm")
    error = error_of(lambda: dist.all_reduce(torch.ones(3 + rank), group=different))
    assert "is in another collective" in error, error
    hurried = dist.new_group(backend="fsdp_shm", timeout=timedelta(seconds=1))
    patient = dist.new_group(backend="fsdp_shm")
    if rank != 2:
        error = error_of(lambda: dist.barrier(group=hurried))
        assert "no result within 1 s" in error and "no answer from rank 2" in error, error
        error = error_of(lambda: dist.irecv(torch.ones(1), 2, group=patient).wait(timedelta(milliseconds=300)))
        assert "no result within 0.3 s" in error and "recv from rank 2" in error, error
    dist.barrier()
    error = error_of(lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(0.5), group=patient))
    assert "found PREMUL_SUM" in error, error
    mortal = dist.new_group(backend="fsdp_shm")
    dist.barrier()
    if rank == 3:
        os._exit(0)
    begin = time.monotonic()
    error = error_of(lambda: dist.all_reduce(torch.ones(2), group=mortal))
    assert "no answer from rank 3" in error and time.monotonic() - begin < 5, error
    os._exit(0)  # gloo's group has lost a rank


def error_of(body):
    try:
        body()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("expected a RuntimeError")


def losses(rank, backend, engine, folder):
    """Of a small model on two ranks, each with batches of its own."""
    dist.init_process_group(backend, init_method=f"file://{folder}/{engine}-{backend}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(37, 37), nn.Tanh()) for _ in range(3)), nn.Linear(37, 11))
    if engine == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if engine == "fsdp2-bf16" else \
            MixedPrecisionPolicy()
        mesh = init_device_mesh("cpu", (2,))
        for part in model:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found, generator = [], torch.Generator().manual_seed(1 + rank)
    for _ in range(6):
        inputs = torch.randn(8, 37, generator=generator)
        targets = torch.randint(11, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append((total.item(), float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)))
    dist.barrier()
    dist.destroy_process_group()
    return found


def train(rank, folder):
    torch.set_num_threads(1)
    for engine in ("fsdp2", "fsdp2-bf16", "ddp"):
        ours, by_gloo = (losses(rank, backend, engine, folder) for backend in ("fsdp_shm", "gloo"))
        assert ours == by_gloo, f"{engine}: {ours} instead of {by_gloo}"


class OfGloo(unittest.TestCase):
    def test_reductions_have_its_results(self):
        run(WORLD, compare_reductions)

    def test_moves_have_its_results(self):
        run(WORLD, compare_moves)

    def test_objects_and_functional_collectives_have_its_results(self):
        run(WORLD, compare_objects_and_functions)

    def test_losses_of_fsdp2_and_ddp_are_its_losses(self):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(train, (folder,), nprocs=2)


class OfItsOwn(unittest.TestCase):
    def test_messages(self):
        run(WORLD, exchange_messages)

    def test_groups(self):
        run(WORLD, use_groups, backend="fsdp_shm")

    def test_failures_name_ranks(self):
        run(WORLD, fail_in_groups_of_their_own)


if __name__ == "__main__":
    unittest.main(verbosity=2)
