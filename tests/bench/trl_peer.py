#!/usr/bin/env python3
"""What fsdp-train's training on preferences is measured against: direct preference optimization by TRL's DPOTrainer, with
accelerate's FSDP2 where there are several ranks.

One process a rank, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun sets them. Rank 0 prints a JSON
object a step and one of the whole run, as torch_peer.py does, whose options have the same names here. The venv needs torch,
numpy, safetensors, transformers, accelerate, datasets and trl.

Tokens: a file of little-endian uint16. With S = --seq and P = --prompt, pair i begins at token 2 S i: its chosen sequence are S
tokens from there, its rejected one the first P of these and the S - P tokens from 2 S i + S + P. So each has S tokens, of which
S - P count, and a pair 2 S. Row b of rank r in step s is pair (s*world + r)*batch + b, modulo the number of whole pairs.

The reference is a copy of the model that TRL loads and shards (the default), or log-probabilities that it computes
beforehand (--precompute), whose time is `precompute_s`.

accelerate 1.15 keeps FSDP to GPUs and their like (torch_trainer.py says how it is had on CPUs). TRL shards the reference as one
unit, not by blocks: each of its forward passes gathers all of its parameters at once.
"""
import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import numpy as np
import torch
import torch.distributed as dist
import transformers
import trl
from accelerate.state import DistributedType, PartialState
from datasets import Dataset, disable_progress_bars, load_from_disk
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback

PAD, END = 0, 1


def parse_arguments():
    p = argparse.ArgumentParser()
    for name, value in dict(layers=30, dim=576, heads=9, kv_heads=9, ffn=1536, vocab=13824, seq=256, prompt=64).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    for name, value in dict(batch=1, steps=6, warmup=2, seed=0, threads=1, reshard=1).items():
        p.add_argument("--" + name, type=int, default=value)
    for name, value in dict(lr=1e-6, wd=0.0, beta1=0.9, beta2=0.999, eps=1e-8, clip=1.0, beta=0.1).items():
        p.add_argument("--" + name, type=float, default=value)
    p.add_argument("--rope-theta", type=float, default=10000.0)
    p.add_argument("--norm-eps", type=float, default=1e-5)
    p.add_argument("--tie", action="store_true", help="the head uses the embedding's weight")
    p.add_argument("--tuned", action="store_true", help="let oneDNN do the fp32 matrix products")
    p.add_argument("--ac", action="store_true", help="activation checkpointing of each block, TRL's default")
    p.add_argument("--precompute", action="store_true", help="log-probabilities of the reference beforehand")
    p.add_argument("--data", required=True, help="token file")
    p.add_argument("--init", help="safetensors of the first weights, with Hugging Face's names; else random ones")
    return p.parse_args()


def resident_mib(key):
    """Of this process, now (VmRSS) or at most (VmHWM)."""
    return int(re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) / 1024


def forget_peak():
    """VmHWM counts from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


class Clock(TrainerCallback):
    """Prints each step as torch_peer.py does."""

    def __init__(self, warmup, rank, world):
        self.warmup, self.rank, self.world, self.seconds, self.loss = warmup, rank, world, [], None
        self.begun, self.cpu_s, self.peak_before = time.perf_counter(), [], 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.before_s = time.perf_counter() - self.begun

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.warmup:
            self.peak_before = resident_mib("VmHWM")
            forget_peak()
        self.begin, self.begin_cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        loss = self.loss.float()
        if self.world > 1:
            dist.all_reduce(loss)
        loss = float(loss) / self.world
        took = time.perf_counter() - self.begin
        if state.global_step > self.warmup:
            self.seconds.append(took)
            self.cpu_s.append(time.process_time() - self.begin_cpu)
        if self.rank == 0:
            print(json.dumps(dict(step=state.global_step, loss=loss, seconds=round(took, 6))), flush=True)


class Tokenized(trl.DPOTrainer):
    """Takes ids in the order of the file."""

    def _prepare_dataset(self, dataset, *_):
        return dataset

    def _precompute_ref_logps(self, *arguments):
        begin = time.perf_counter()
        dataset = super()._precompute_ref_logps(*arguments)
        self.precompute_s = time.perf_counter() - begin
        return dataset

    def training_step(self, *arguments, **options):
        loss = super().training_step(*arguments, **options)
        self.clock.loss = loss.detach().clone()
        return loss


def write_model(a, folder):
    """A folder of Hugging Face, from which TRL loads the model and the reference."""
    config = LlamaConfig(
        vocab_size=a.vocab, max_position_embeddings=a.seq, hidden_size=a.dim, intermediate_size=a.ffn, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, rms_norm_eps=a.norm_eps, rope_theta=a.rope_theta,
        tie_word_embeddings=a.tie, pad_token_id=PAD, bos_token_id=None, eos_token_id=END, use_cache=False,
        architectures=["LlamaForCausalLM"], dtype="float32")
    if a.init:
        config.save_pretrained(folder)
        (folder / "model.safetensors").symlink_to(Path(a.init).resolve())
    else:
        LlamaForCausalLM(config).save_pretrained(folder)


def write_pairs(a, world, folder):
    tokens, rows = np.memmap(a.data, dtype="<u2", mode="r").astype(np.int64), []
    count = len(tokens) // (2 * a.seq)
    for pair in range(a.steps * a.batch * world):
        chosen, rejected = tokens[pair % count * 2 * a.seq:][:2 * a.seq].reshape(2, a.seq)
        rows.append(dict(prompt_ids=chosen[:a.prompt].tolist(), chosen_ids=chosen[a.prompt:].tolist(),
                         rejected_ids=rejected[a.prompt:].tolist()))
    Dataset.from_list(rows).save_to_disk(str(folder))  # precomputed values of a data set that is in memory alone work on one rank


def shared_folder(rank, world):
    """A temporary folder of rank 0 that all know."""
    name = [tempfile.mkdtemp(prefix="trl-peer-") if rank == 0 else ""]
    if world > 1:
        dist.broadcast_object_list(name)
    return Path(name[0])


def make_tokenizer():
    words = {"<pad>": PAD, "</s>": END}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="<pad>", eos_token="</s>")


def make_arguments(a, world, folder):
    fsdp = dict(fsdp=True, fsdp_config=dict(
        version=2, transformer_layer_cls_to_wrap=["LlamaDecoderLayer"], cpu_ram_efficient_loading=False,
        reshard_after_forward=bool(a.reshard))) if world > 1 else {}
    arguments = trl.DPOConfig(
        output_dir=str(folder), beta=a.beta, precompute_ref_log_probs=a.precompute, max_length=None, use_cpu=True, bf16=False,
        max_steps=a.steps, per_device_train_batch_size=a.batch, train_sampling_strategy="sequential", learning_rate=a.lr,
        lr_scheduler_type="constant", weight_decay=a.wd, adam_beta1=a.beta1, adam_beta2=a.beta2, adam_epsilon=a.eps,
        max_grad_norm=a.clip, optim="adamw_torch_fused", gradient_checkpointing=a.ac, save_strategy="no", logging_strategy="no",
        report_to=[], disable_tqdm=True, dataloader_pin_memory=False, ddp_backend="gloo", **fsdp)
    if world > 1:
        arguments.device  # makes the process group
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return arguments


def main():
    a = parse_arguments()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    if a.tuned:
        torch.set_float32_matmul_precision("medium")
    disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.setdefault("TQDM_DISABLE", "1")
    if world > 1:
        dist.init_process_group("gloo")
    folder = shared_folder(rank, world)
    arguments = make_arguments(a, world, folder / "run")
    if rank == 0:
        write_model(a, folder / "model")
        write_pairs(a, world, folder / "pairs")
    if world > 1:
        dist.barrier()
    clock = Clock(a.warmup, rank, world)
    trainer = Tokenized(model=str(folder / "model"), args=arguments, train_dataset=load_from_disk(str(folder / "pairs")),
                        processing_class=make_tokenizer(), callbacks=[clock])
    trainer.remove_callback(PrinterCallback)
    trainer.clock = clock
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    trainer.train()
    assert world == 1 or type(trainer.model_wrapped).__name__.startswith("FSDP"), type(trainer.model_wrapped)
    steps_peak = resident_mib("VmHWM")
    peaks = [(max(clock.peak_before, steps_peak), steps_peak)]
    if world > 1:
        gathered = [None] * world
        dist.all_gather_object(gathered, peaks[0])
        peaks = gathered
    if rank == 0:
        median = sorted(clock.seconds)[len(clock.seconds) // 2] if clock.seconds else 0
        print(json.dumps(dict(
            engine="trl+fsdp2" if world > 1 else "trl", reference="precomputed" if a.precompute else "model",
            params=num_parameters, world=world, step_mean_s=round(sum(clock.seconds) / max(len(clock.seconds), 1), 6), step_median_s=round(median, 6),
            step_min_s=round(min(clock.seconds, default=0), 6),
            step_cpu_s=round(sum(clock.cpu_s) / max(len(clock.cpu_s), 1), 6),
            tokens_per_s=round(2 * a.batch * a.seq * world / median, 1) if median else 0,
            before_steps_s=round(clock.before_s, 2), precompute_s=round(getattr(trainer, "precompute_s", 0), 2),
            peak_rss_mib=[round(whole, 1) for whole, _ in peaks], steps_peak_rss_mib=[round(steps, 1) for _, steps in peaks],
            trl=trl.__version__, torch=torch.__version__)), flush=True)
    sys.stdout.flush()
    if world > 1:
        dist.barrier()
        time.sleep(0.3)
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the end of gloo's threads is a race that is lost now and then


if __name__ == "__main__":
    main()
