#!/usr/bin/env python3
"""PEFT beside the parity test's LoRA: trains an adapter, makes one, or prints the logits of a model with one.

  peft_reference.py train BASE ADAPTER TOKENS    prints step, loss and gradient norm of 20 steps from that adapter
  peft_reference.py logits BASE ADAPTER          prints logits as transformers_reference.py does, one number a line
  peft_reference.py make BASE ADAPTER lora|dora  writes a random adapter of all layers, and prints these logits

BASE: a Hugging Face folder; ADAPTER: a folder of PEFT. Needs torch, transformers and peft; make_figures starts it.
"""
import os, sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np, peft, torch, torch.nn.functional as F
from transformers import AutoModelForCausalLM

# The sizes stand in llama.toml too.
LENGTH, ROWS, STEPS = 64, 8, 20
LR, BETAS, EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
command, base, adapter = sys.argv[1:4]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
if command == "make":
    torch.manual_seed(1)
    gpt2 = model.config.model_type == "gpt2"
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=3, lora_alpha=7, target_modules="all-linear", use_dora=sys.argv[4] == "dora", task_type="CAUSAL_LM",
        fan_in_fan_out=gpt2, init_lora_weights=False))
    model.save_pretrained(adapter)
else:
    model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=command == "train")
if command in ("logits", "make"):
    model.eval()
    row, column = torch.arange(2)[:, None], torch.arange(12)[None, :]
    tokens = (row * 7 + column * column * 3 + row * column * 5 + 1) % model.config.vocab_size  # token_rows in C++
    with torch.no_grad():
        logits = model(tokens).logits
    print("\n".join(f"{value:.9g}" for value in logits.flatten().tolist()))
    sys.exit()

model.train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
tokens = np.fromfile(sys.argv[4], dtype="<u2").astype(np.int64)
samples = (len(tokens) - 1) // LENGTH
for step in range(STEPS):
    rows = np.stack([tokens[(step * ROWS + b) % samples * LENGTH:][:LENGTH + 1] for b in range(ROWS)])
    ids = torch.from_numpy(rows)
    loss = F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{step + 1} {loss.item():.9g} {norm.item():.9g}", flush=True)
