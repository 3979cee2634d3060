#!/usr/bin/env python3
"""A tiny random model of Hugging Face's transformers, and the loss of one.

  transformers_round_trip.py make KIND FOLDER           saves it there; prints its logits as transformers_reference.py does
  transformers_round_trip.py loss FOLDER TOKENS LENGTH  prints the mean loss over all whole samples of a uint16 token file
  transformers_round_trip.py train FOLDER               prints the losses of five steps, with experts of balanced ones

Needs torch, transformers, numpy and safetensors.
"""
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy
import torch
import transformers
from transformers import AutoModelForCausalLM

SIZES = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=32, initializer_range=0.2)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def make(kind):
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.2,
                                       attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0)
    if kind == "qwen2":
        return transformers.Qwen2Config(**SIZES | dict(num_key_value_heads=2, tie_word_embeddings=True))
    if kind == "mistral":
        return transformers.MistralConfig(**SIZES | dict(num_key_value_heads=2, head_dim=12, sliding_window=None))
    if kind == "mistral_window":
        return transformers.MistralConfig(**SIZES | dict(num_key_value_heads=2, sliding_window=5))
    if kind == "qwen3":
        return transformers.Qwen3Config(**SIZES | dict(num_key_value_heads=2, head_dim=12))
    if kind == "mixtral":
        return transformers.MixtralConfig(**SIZES | dict(num_key_value_heads=2, num_local_experts=6))
    if kind == "qwen3_moe":
        return transformers.Qwen3MoeConfig(**SIZES | dict(num_key_value_heads=2, head_dim=12, num_experts=6, num_experts_per_tok=3,
                                                          moe_intermediate_size=20, decoder_sparse_step=2, norm_topk_prob=True))
    if kind == "olmo2":
        return transformers.Olmo2Config(**SIZES | dict(num_key_value_heads=2, pad_token_id=0, eos_token_id=1))
    if kind == "smollm3":
        return transformers.SmolLM3Config(**SIZES | SPECIAL | dict(num_key_value_heads=2, no_rope_layer_interval=2))
    if kind in ("phi3", "phi3_window"):
        more = dict(num_key_value_heads=2) if kind == "phi3" else dict(sliding_window=5, partial_rotary_factor=0.5)
        return transformers.Phi3Config(**SIZES | SPECIAL | more)
    if kind == "gemma2":
        return transformers.Gemma2Config(**SIZES | SPECIAL | dict(
            num_hidden_layers=3, num_key_value_heads=2, head_dim=12, sliding_window=5, query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0, final_logit_softcapping=3.0))
    if kind == "gemma3_text":
        return transformers.Gemma3TextConfig(**SIZES | SPECIAL | dict(
            num_hidden_layers=4, num_key_value_heads=2, head_dim=12, sliding_window=5, sliding_window_pattern=3,
            query_pre_attn_scalar=20, rope_theta=5e4, rope_local_base_freq=1e3, rope_scaling=dict(rope_type="linear", factor=2.0)))
    if kind in ("gpt_neox", "gpt_neox_serial"):
        return transformers.GPTNeoXConfig(**SIZES | SPECIAL | dict(
            rotary_pct=0.25 if kind == "gpt_neox" else 1.0, use_parallel_residual=kind == "gpt_neox"))
    if kind == "granite":
        return transformers.GraniteConfig(**SIZES | SPECIAL | dict(
            num_key_value_heads=2, attention_multiplier=0.4, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=1.5))
    if kind == "olmo3":
        return transformers.Olmo3Config(**SIZES | dict(
            num_hidden_layers=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, sliding_window=5, rope_theta=2e4,
            rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, attention_factor=1.2,
                              beta_fast=8.0, beta_slow=1.0)))
    if kind == "seed_oss":
        return transformers.SeedOssConfig(**SIZES | SPECIAL | dict(num_key_value_heads=2, head_dim=12, attention_dropout=0.0,
                                                                   residual_dropout=0.0))
    if kind == "ernie4_5":
        return transformers.Ernie4_5Config(**SIZES | SPECIAL | dict(num_key_value_heads=2, head_dim=12))
    if kind == "helium":
        return transformers.HeliumConfig(**SIZES | SPECIAL | dict(num_key_value_heads=2, head_dim=8))
    if kind == "glm4":
        return transformers.Glm4Config(**SIZES | SPECIAL | dict(num_key_value_heads=2, head_dim=12))
    if kind in ("exaone4", "exaone4_without_windows"):
        return transformers.Exaone4Config(**SIZES | SPECIAL | dict(
            num_hidden_layers=4, num_key_value_heads=2, **(
                dict(sliding_window=5, sliding_window_pattern=2) if kind == "exaone4" else dict(
                    sliding_window=None, layer_types=["full_attention"] * 4))))
    if kind == "qwen2_yarn":
        return transformers.Qwen2Config(**SIZES | dict(
            num_key_value_heads=2, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=8)))
    if kind == "qwen3_yarn":
        return transformers.Qwen3Config(**SIZES | dict(num_key_value_heads=2, head_dim=12, rope_scaling=dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=0.3, beta_fast=6.0,
            truncate=False)))
    if kind == "phi3_longrope":
        return transformers.Phi3Config(**SIZES | SPECIAL | dict(
            num_key_value_heads=2, partial_rotary_factor=0.75, original_max_position_embeddings=8, rope_scaling=dict(
                type="longrope", short_factor=[1.0, 1.25, 2.0], long_factor=[1.0, 3.5, 20.0])))
    if kind == "llama_dynamic":
        return transformers.LlamaConfig(**SIZES | dict(
            max_position_embeddings=8, rope_scaling=dict(rope_type="dynamic", factor=4.0)))
    extra = {"llama": {}, "llama_tied": dict(tie_word_embeddings=True), "llama_gqa": dict(num_key_value_heads=2),
             "llama_geglu": dict(hidden_act="gelu_pytorch_tanh"),
             "llama3": dict(attention_bias=True, mlp_bias=True, rope_scaling=dict(
                 rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=16))}[kind]
    return transformers.LlamaConfig(**SIZES | extra)


def token_rows(columns, vocabulary):  # that of C++
    row, column = torch.arange(2)[:, None], torch.arange(columns)[None, :]
    return (row * 7 + column * column * 3 + row * column * 5 + 1) % vocabulary


def train(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = token_rows(13, model.config.vocab_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print("# losses of transformers", transformers.__version__)
    for _ in range(5):
        optimizer.zero_grad()
        has_experts = hasattr(model.config, "router_aux_loss_coef")
        output = model(tokens[:, :-1], **(dict(output_router_logits=True) if has_experts else {}))
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
        if has_experts:
            loss = loss + model.config.router_aux_loss_coef * output.aux_loss
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}")


def main():
    command, *arguments = sys.argv[1:]
    if command == "train":
        return train(*arguments)
    if command == "make":
        kind, folder = arguments
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(make(kind)).float().eval()
        with torch.no_grad():  # of biases and norms too, which start alike
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(folder)
        tokens = token_rows(12, model.config.vocab_size)
        with torch.no_grad():
            print("\n".join(f"{value:.9g}" for value in model(tokens).logits.flatten().tolist()))
        return
    folder, path, length = arguments[0], arguments[1], int(arguments[2])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.from_numpy(numpy.fromfile(path, "<u2").astype("int64"))
    samples = (len(tokens) - 1) // length
    inputs = tokens[:samples * length].view(samples, length)
    targets = tokens[1:samples * length + 1].view(samples, length)
    with torch.no_grad():
        logits = model(inputs).logits
    print(f"{torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten()).item():.9g}")


main()
