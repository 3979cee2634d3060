"""Hugging Face's Trainer for torch_peer.py: transformers' model, with accelerate's FSDP2 where there are several ranks.

accelerate 1.15 keeps FSDP to GPUs and their like: on CPUs it takes the argument and makes DDP (AcceleratorState in
accelerate/state.py). What it checks is the kind of process group, which is set here; everything behind the check
runs on a CPU as it is.
"""
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from accelerate.state import DistributedType, PartialState
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset):
    """Sample i is tokens[i*seq : i*seq + seq + 1]; after the last the first follows."""

    def __init__(self, a, count):
        self.tokens, self.seq, self.count = np.memmap(a.data, dtype="<u2", mode="r"), a.seq, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        start = index % ((len(self.tokens) - 1) // self.seq) * self.seq
        ids = torch.from_numpy(self.tokens[start:start + self.seq + 1].astype(np.int64))
        return dict(input_ids=ids[:-1], labels=ids[1:], shift_labels=ids[1:])


class Clock(TrainerCallback):
    """Prints each step as torch_peer.py does."""

    def __init__(self, warmup, rank, world):
        self.warmup, self.rank, self.world, self.seconds, self.loss = warmup, rank, world, [], None

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        loss = self.loss.float()
        if self.world > 1:
            dist.all_reduce(loss)
        loss = float(loss) / self.world
        took = time.perf_counter() - self.begin
        if state.global_step > self.warmup:
            self.seconds.append(took)
        if self.rank == 0:
            print(json.dumps(dict(step=state.global_step, loss=loss, seconds=round(took, 6))), flush=True)


class InOrder(Trainer):
    """Samples in the order of the file; weight decay for all parameters; the loss as the mean over tokens."""
    model_accepts_loss_kwargs = False

    def __init__(self, clock, **options):
        super().__init__(callbacks=[clock], **options)
        self.clock, self.model_accepts_loss_kwargs = clock, False

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model):
        return [name for name, _ in model.named_parameters()]

    def training_step(self, *arguments, **options):
        self.clock.loss = super().training_step(*arguments, **options)
        return self.clock.loss


def make_model(a):
    if a.architecture == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=a.vocab, n_positions=a.seq, n_embd=a.dim, n_layer=a.layers, n_head=a.heads, n_inner=a.ffn,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=a.norm_eps, tie_word_embeddings=a.tie,
            use_cache=False))
    else:
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=a.vocab, max_position_embeddings=a.seq, hidden_size=a.dim, intermediate_size=a.ffn,
            num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.kv_heads,
            rms_norm_eps=a.norm_eps, rope_theta=a.rope_theta, tie_word_embeddings=a.tie, use_cache=False))
    if a.init:
        from safetensors.torch import load_file
        missing, unexpected = model.load_state_dict(load_file(a.init), strict=False)
        assert not unexpected and (not missing or (a.tie and missing == ["lm_head.weight"])), (missing, unexpected)
    return model


def run(a, rank, world):
    """Returns the seconds of the steps after the warm-up, and the number of parameters."""
    block = "GPT2Block" if a.architecture == "gpt2" else "LlamaDecoderLayer"
    fsdp = dict(fsdp=True, fsdp_config=dict(version=2, transformer_layer_cls_to_wrap=[block], cpu_ram_efficient_loading=False,
                                            reshard_after_forward=bool(a.reshard))) if world > 1 else {}
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ.get("TMPDIR", "/tmp"), "trainer"), use_cpu=True, max_steps=a.steps,
        per_device_train_batch_size=a.batch, learning_rate=a.lr, lr_scheduler_type="constant", weight_decay=a.wd,
        adam_beta1=a.beta1, adam_beta2=a.beta2, adam_epsilon=a.eps, max_grad_norm=a.clip, optim="adamw_torch_fused",
        bf16=a.dtype == "bf16", torch_compile=a.compile, save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False, ddp_backend="gloo", **fsdp)
    if world > 1:
        arguments.device  # makes the process group
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    model, clock = make_model(a), Clock(a.warmup, rank, world)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer = InOrder(clock, model=model, args=arguments, train_dataset=Samples(a, a.steps * a.batch * world))
    trainer.train()
    assert world == 1 or type(trainer.model_wrapped).__name__.startswith("FSDP"), type(trainer.model_wrapped)
    return clock.seconds, num_parameters
