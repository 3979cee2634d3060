#!/usr/bin/env python3
"""What fsdp-train is measured against: the same model trained by PyTorch, with FSDP2, FSDP1, DDP, alone, or
by Hugging Face's Trainer (torch_trainer.py).

One process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them. Rank 0 prints a JSON
object a step and one of the whole run. The venv needs torch, numpy and, for --init and --save, safetensors.

Tokens: a file of little-endian uint16. Sample i is tokens[i*seq : i*seq + seq + 1], the inputs and, one token on, the
targets. Row b of rank r in micro-batch m of step s is sample ((s*accum + m)*world + r)*batch + b, modulo the number of
whole samples; so reads fsdp-train with data.shuffle=false.
"""
import argparse
import json
import os
import resource
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def parse_arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--engine", default="fsdp2", choices=["fsdp2", "fsdp1", "ddp", "none", "trainer"])
    p.add_argument("--architecture", default="llama", choices=["llama", "gpt2"])
    for name, value in dict(layers=4, dim=256, heads=8, kv_heads=8, ffn=688, vocab=256, seq=256).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    for name, value in dict(batch=4, accum=1, steps=20, warmup=3, seed=0, threads=1, reshard=1).items():
        p.add_argument("--" + name, type=int, default=value)
    for name, value in dict(lr=3e-4, wd=0.1, beta1=0.9, beta2=0.95, eps=1e-8, clip=1.0).items():
        p.add_argument("--" + name, type=float, default=value)
    p.add_argument("--rope-theta", type=float, default=10000.0)
    p.add_argument("--norm-eps", type=float, default=1e-5)
    p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="of compute under FSDP")
    p.add_argument("--lora", type=int, default=0, help="train adapters of this rank alone, by PEFT (torch_lora.py)")
    p.add_argument("--tie", action="store_true", help="the head uses the embedding's weight")
    p.add_argument("--tuned", action="store_true", help="let oneDNN do the fp32 matrix products")
    p.add_argument("--compile", action="store_true", help="torch.compile on each block")
    p.add_argument("--ac", action="store_true", help="activation checkpointing of each block")
    p.add_argument("--offload", action="store_true", help="FSDP2's CPU offload")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--backend", default="gloo", choices=["gloo", "fsdp_shm"], help="for tensors in host memory (torch_backend)")
    p.add_argument("--data", help="token file; not needed with --steps 0")
    p.add_argument("--init", help="safetensors of the first weights, with Hugging Face's names")
    p.add_argument("--save", help="write the last weights to this safetensors file")
    return p.parse_args()


a = parse_arguments()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, a.norm_eps)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_dim = a.dim // a.heads
        self.q_proj = nn.Linear(a.dim, a.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(a.dim, a.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(a.dim, a.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(a.heads * self.head_dim, a.dim, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, a.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, a.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, a.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a.kv_heads != a.heads)
        return self.o_proj(o.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(a.dim, a.ffn, bias=False)
        self.up_proj = nn.Linear(a.dim, a.ffn, bias=False)
        self.down_proj = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(a.dim), Attention()
        self.post_attention_layernorm, self.mlp = RMSNorm(a.dim), FeedForward()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Block() for _ in range(a.layers))
        self.norm = RMSNorm(a.dim)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Inner()
        self.lm_head = nn.Linear(a.dim, a.vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        if a.tie:
            self.lm_head.weight = self.model.embed_tokens.weight
        head_dim = a.dim // a.heads
        frequencies = 1.0 / a.rope_theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(a.seq).float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), False)
        self.register_buffer("sin", angles.sin(), False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x, self.cos, self.sin)
        return self.lm_head(self.model.norm(x))


def blocks_of(model):
    if a.lora:
        return model.inner().layers
    return model.transformer.h if a.architecture == "gpt2" else model.model.layers


def make_model(device):
    if a.lora:
        from torch_lora import LoraLlama
        return LoraLlama(a)
    if a.architecture == "gpt2":
        from torch_gpt2 import Gpt2
        with device:
            model = Gpt2(a)
    else:
        with device:
            model = Llama()
    if a.init:
        from safetensors.torch import load_file
        weights = load_file(a.init)
        if a.tie:
            embedding = "transformer.wte.weight" if a.architecture == "gpt2" else "model.embed_tokens.weight"
            weights.setdefault("lm_head.weight", weights[embedding])
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    model.to(device)
    if a.ac:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
        kind = type(blocks_of(model)[0])
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, kind))
    if a.compile:
        for block in blocks_of(model):
            block.compile()
    return model


def wrap(model, device):
    """The model under the engine: units of a block each, and one of the rest."""
    low = torch.bfloat16 if a.dtype == "bf16" else None
    reduce = torch.float32 if low else None
    if a.engine == "fsdp2":
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        options = dict(reshard_after_forward=bool(a.reshard),
                       mp_policy=MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce))
        if device.type == "cpu":
            from torch.distributed.device_mesh import init_device_mesh
            options["mesh"] = init_device_mesh("cpu", (world,))
        if a.offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        for block in blocks_of(model):
            fully_shard(block, **options)
        return fully_shard(model, **options)
    if a.engine == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({type(blocks_of(model)[0])}), device_id=device, use_orig_params=True,
            mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=reduce) if low else None)
    if a.engine == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return model


def train(model, device):
    """Runs the steps; returns the seconds of those after the warm-up."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=a.lr, betas=(a.beta1, a.beta2), eps=a.eps,
                                  weight_decay=a.wd, fused=True)
    tokens = np.memmap(a.data, dtype="<u2", mode="r") if a.steps else []
    samples = (len(tokens) - 1) // a.seq
    seconds = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # of the steps, not of what came before
    for step in range(a.steps):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin, total = time.perf_counter(), 0.0
        for micro in range(a.accum):
            first = ((step * a.accum + micro) * world + rank) * a.batch
            starts = [(first + row) % samples * a.seq for row in range(a.batch)]
            rows = np.stack([tokens[start:start + a.seq + 1] for start in starts]).astype(np.int64)
            ids = torch.from_numpy(rows).to(device)
            if a.engine == "fsdp2":
                model.set_requires_gradient_sync(micro == a.accum - 1)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()) / a.accum
            loss.backward()
            total += loss.detach()
        if a.engine == "fsdp1":
            norm = model.clip_grad_norm_(a.clip)
        else:
            norm = nn.utils.clip_grad_norm_(trained, a.clip)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if a.engine != "none":
            dist.all_reduce(total)
            total /= world
        loss = float(total)
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
        if step >= a.warmup:
            seconds.append(took)
        if rank == 0:
            print(json.dumps(dict(step=step + 1, loss=loss, grad_norm=float(norm), seconds=round(took, 6))), flush=True)
    return seconds


def summarize(seconds, num_parameters, device):
    seconds.sort()
    median = seconds[len(seconds) // 2] if seconds else 0
    name = a.engine + ("+compile" if a.compile else "") + ("+tuned" if a.tuned else "")
    summary = dict(
        engine=name, dtype=a.dtype, params=num_parameters, world=world, step_median_s=round(median, 6),
        step_min_s=round(seconds[0], 6) if seconds else 0,
        tokens_per_s=round(a.batch * a.accum * a.seq * world / median, 1) if median else 0,
        peak_rss_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1), torch=torch.__version__)
    if device.type == "cuda":
        summary["peak_cuda_mib"] = torch.cuda.max_memory_allocated() >> 20
        summary["peak_cuda_reserved_mib"] = torch.cuda.max_memory_reserved() >> 20
    print(json.dumps(summary), flush=True)


def save(model):
    if a.lora:
        return model.save(a.save, a.tie)
    weights = model.state_dict()
    if a.engine == "fsdp2":
        weights = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in weights.items()}
    if rank == 0:
        from safetensors.torch import save_file
        save_file({name.replace("_checkpoint_wrapped_module.", ""): tensor.cpu().contiguous().clone()
                   for name, tensor in weights.items() if not (a.tie and name == "lm_head.weight")}, a.save)


def main():
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    if a.tuned:
        torch.set_float32_matmul_precision("medium")
    device = torch.device("cpu")
    if a.engine == "trainer":
        from torch_trainer import run
        seconds, num_parameters = run(a, rank, world)
        if rank == 0:
            summarize(seconds, num_parameters, device)
        os._exit(0)
    if a.device == "cuda":
        device = torch.device(f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}")
        torch.cuda.set_device(device)
    if a.engine != "none":
        if a.backend == "fsdp_shm":
            import fsdp_shm  # noqa: F401  (registers the backend)
        dist.init_process_group(a.backend if device.type == "cpu" else f"cpu:{a.backend},cuda:nccl")
    model = make_model(device)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    model = wrap(model, device)
    if a.lora:
        model.fill(a)
    seconds = train(model, device)
    if rank == 0:
        summarize(seconds, num_parameters, device)
    if a.save:
        save(model)
    sys.stdout.flush()
    if a.engine != "none":
        dist.barrier()
        time.sleep(0.3)
    os._exit(0)  # the end of gloo's threads is a race that is lost now and then


main()
