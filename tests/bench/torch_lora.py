"""The fine-tuning peer of torch_peer.py: transformers' LlamaForCausalLM with PEFT's adapters on all linear layers.

The model is built without memory; each rank reads its part of the weights when the model has been sharded, so that no
rank ever holds more. The venv needs peft and transformers too.
"""
from pathlib import Path

import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

PREFIX = "adapted.base_model.model."  # of the names below in a LoraLlama


def adapter_file(path):
    """Of the adapters of the weights in a file."""
    return adapter_folder(path) / "adapter_model.safetensors"


def adapter_folder(path):
    """That PEFT writes and both sides read."""
    return Path(path).with_suffix(".adapter")


class LoraLlama(nn.Module):
    """Token ids to logits."""

    def __init__(self, a):
        super().__init__()
        config = LlamaConfig(
            vocab_size=a.vocab, hidden_size=a.dim, intermediate_size=a.ffn, num_hidden_layers=a.layers,
            num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, max_position_embeddings=a.seq,
            rms_norm_eps=a.norm_eps, rope_parameters={"rope_type": "default", "rope_theta": a.rope_theta},
            tie_word_embeddings=a.tie, attn_implementation="sdpa", use_cache=False)
        with torch.device("meta"):
            base = LlamaForCausalLM(config)
            self.adapted = get_peft_model(base, LoraConfig(
                r=a.lora, lora_alpha=2 * a.lora, target_modules="all-linear", task_type="CAUSAL_LM"))

    def forward(self, ids):
        return self.adapted(input_ids=ids, use_cache=False).logits

    def inner(self):
        return self.adapted.base_model.model.model

    def fill(self, a):
        """Gives the parameters memory and the values of a.init, or random ones."""
        self.to_empty(device="cpu")
        rotary = self.inner().rotary_emb
        self.inner().rotary_emb = type(rotary)(config=self.adapted.base_model.model.config)
        if not a.init:
            return self.draw()
        with safe_open(a.init, "pt") as base, safe_open(adapter_file(a.init), "pt") as adapters:
            for name, parameter in self.named_parameters():
                source, stored = self.stored_name(name, base, adapters)
                values = source.get_slice(stored)
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                first = 0
                if local is not parameter:
                    rank, world = parameter.device_mesh.get_local_rank(), parameter.device_mesh.size()
                    first = min(rank * (-(-parameter.shape[0] // world)), parameter.shape[0])
                with torch.no_grad():
                    local.copy_(values[first:first + local.shape[0]])

    @staticmethod
    def stored_name(name, base, adapters):
        """The file that has a parameter, and its name there."""
        name = name.removeprefix(PREFIX)
        if ".lora_" in name:
            return adapters, "base_model.model." + name.replace(".default", "")
        name = name.replace(".base_layer", "")
        tied = name == "lm_head.weight" and name not in base.keys()
        return base, "model.embed_tokens.weight" if tied else name

    @torch.no_grad()
    def draw(self):
        """B is not 0, so that all adapters have gradients from the first step on."""
        for name, parameter in self.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(std=0.01 if ".lora_" in name else 0.02)

    def save(self, path, tied):
        """Base and adapters, each with the names that they have without the other."""
        from safetensors.torch import save_file
        save_file({name.removeprefix(PREFIX).replace(".base_layer", ""): parameter.detach()
                   for name, parameter in self.named_parameters()
                   if ".lora_" not in name and not (tied and name.endswith("lm_head.weight"))}, path)
        self.adapted.save_pretrained(adapter_folder(path))
