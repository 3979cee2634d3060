#!/usr/bin/env python3
"""Trains the parity test's model with PyTorch's FSDP2 and prints its table: step, loss, gradient norm.
With --model-ranks, that many neighbours compute each block together (parallelize_module), as with mesh.model.

Started by make_figures, which exports the initial weights and says what it is for, and by dcp_test.cpp, which lets a
run go on from a checkpoint of torch.distributed.checkpoint. Needs torch 2.11 or later and safetensors.
Run one process a rank with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.
"""
import argparse, contextlib, os
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

parser = argparse.ArgumentParser()
parser.add_argument("--weights", help="else the random ones of PyTorch")
parser.add_argument("--tokens", required=True)
parser.add_argument("--tied", action="store_true")
parser.add_argument("--bf16", action="store_true", help="bf16 parameters, fp32 reduction")
parser.add_argument("--model-ranks", type=int, default=1, help="of a group; the groups share the rows")
parser.add_argument("--first", type=int, default=0, help="steps that the run has done")
parser.add_argument("--steps", type=int, default=20, help="after which it ends")
parser.add_argument("--load", help="folder of torch.distributed.checkpoint to go on from")
parser.add_argument("--save", help="folder of torch.distributed.checkpoint to write at the end")
parser.add_argument("--flat", action="store_true", help="flattened optimizer state in both")
parser.add_argument("--torchtitan", action="store_true", help="names, rotation and state dicts of torchtitan's Llama 3")
parser.add_argument("--rows", type=int, default=8, help="of a step")
arguments = parser.parse_args()

# The sizes stand in parity_test.cpp too.
VOCAB, DIM, INNER, LAYERS, HEADS, KV_HEADS, LENGTH = 256, 64, 172, 3, 4, 2, 64
LR, BETAS, EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), self.weight, 1e-5)


def linear(rows, columns):
    return nn.Linear(rows, columns, bias=False)


TITAN = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3",
         "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "self_attn": "attention",
         "mlp": "feed_forward", "embed_tokens": "tok_embeddings", "lm_head": "output"}


def named(name):
    return TITAN.get(name, name) if arguments.torchtitan else name


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    if arguments.torchtitan:  # pairs of neighbours, as complex numbers there
        pairs = x.unflatten(-1, (half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
        cos, sin = cos[..., :half], sin[..., :half]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Module(nn.Module):
    """Its modules have the names of transformers here, and in state dicts perhaps those of torchtitan."""
    def add(self, **modules):
        for name, module in modules.items():
            self.add_module(named(name), module)

    def __getattr__(self, name):
        return super().__getattr__(named(name))


class Attention(Module):
    def __init__(self):
        super().__init__()
        self.size = DIM // HEADS
        self.add(q_proj=linear(DIM, DIM), k_proj=linear(DIM, KV_HEADS * self.size),
                 v_proj=linear(DIM, KV_HEADS * self.size), o_proj=linear(DIM, DIM))

    def forward(self, x, cos, sin):
        def heads(y):
            return y.view(*x.shape[:2], -1, self.size).transpose(1, 2)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class FeedForward(Module):
    def __init__(self):
        super().__init__()
        self.add(gate_proj=linear(DIM, INNER), up_proj=linear(DIM, INNER), down_proj=linear(INNER, DIM))

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(Module):
    def __init__(self):
        super().__init__()
        self.add(input_layernorm=Norm(), post_attention_layernorm=Norm(), self_attn=Attention(), mlp=FeedForward())

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(Module):
    def __init__(self):
        super().__init__()
        self.add(embed_tokens=nn.Embedding(VOCAB, DIM), layers=nn.ModuleList(Block() for _ in range(LAYERS)), norm=Norm())


class Llama(Inner if arguments.torchtitan else Module):
    def __init__(self):
        super().__init__()
        if not arguments.torchtitan:
            self.model = Inner()
        self.add(lm_head=linear(DIM, VOCAB))
        inner = self.inner()
        if arguments.tied:
            self.lm_head.weight = inner.embed_tokens.weight
        size = DIM // HEADS
        angles = torch.outer(torch.arange(LENGTH).float(), 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def inner(self):
        return self if arguments.torchtitan else self.model

    def forward(self, ids):
        x = self.inner().embed_tokens(ids)
        for block in self.inner().layers:
            x = block(x, self.cos, self.sin)
        return self.lm_head(self.inner().norm(x))


def parallelize(model, mesh):
    """The plan of torchtitan's Llama 3, whose logits stay cut along the vocabulary."""
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })
    for block in model.model.layers:
        parallelize_module(block, mesh, {
            "input_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(input_layouts=(Shard(1), None, None),
                                            desired_input_layouts=(Replicate(), None, None)),
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
        })


torch.manual_seed(1234)
model = Llama()
if arguments.weights:
    weights = load_file(arguments.weights)
    if arguments.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
cut = arguments.model_ranks > 1
data_ranks = world // arguments.model_ranks
mesh = init_device_mesh("cpu", (data_ranks, arguments.model_ranks), mesh_dim_names=("data", "model"))
if cut:
    parallelize(model, mesh["model"])
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
precision = half if arguments.bf16 else MixedPrecisionPolicy()
for block in model.inner().layers:
    fully_shard(block, mesh=mesh["data"], mp_policy=precision)
fully_shard(model, mesh=mesh["data"], mp_policy=precision)
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
flat = StateDictOptions(flatten_optimizer_state_dict=arguments.flat or arguments.torchtitan)
position = {"step": torch.tensor(0, dtype=torch.int32), "ntokens_seen": torch.tensor(0)}  # torchtitan's TrainState


def state():
    model_state, optimizer_state = get_state_dict(model, optimizer, options=flat)
    if arguments.torchtitan:
        return model_state | {"optimizer": optimizer_state, "train_state": position}
    return {"model": model_state, "optimizer": optimizer_state}


if arguments.load:
    loaded = state()
    dcp.load(loaded, checkpoint_id=arguments.load)
    weights = {name: loaded[name] for name in model.state_dict()} if arguments.torchtitan else loaded["model"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=loaded["optimizer"], options=flat)
    if arguments.torchtitan:
        assert position["step"].item() == arguments.first, position
tokens = np.fromfile(arguments.tokens, dtype="<u2").astype(np.int64)
samples = (len(tokens) - 1) // LENGTH
local_rows = arguments.rows // data_ranks
for step in range(arguments.first, arguments.steps):
    first = step * arguments.rows + mesh.get_local_rank("data") * local_rows
    rows = np.stack([tokens[(first + b) % samples * LENGTH:][:LENGTH + 1] for b in range(local_rows)])
    ids = torch.from_numpy(rows)
    with loss_parallel() if cut else contextlib.nullcontext():
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP).full_tensor()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    mean = (loss.full_tensor() if cut else loss).detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"{step + 1} {mean.item() / world:.9g} {norm.item():.9g}", flush=True)
if arguments.save:
    position["step"].fill_(arguments.steps)
    dcp.save(state() | ({} if arguments.torchtitan else {"step": arguments.steps}), checkpoint_id=arguments.save)
dist.barrier()
os._exit(0)  # gloo's teardown may wait for a peer that is gone
