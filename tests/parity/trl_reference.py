#!/usr/bin/env python3
"""Hugging Face's TRL beside the parity test of preferences: 20 steps of its trainers on small models, as tables.

  trl_reference.py                              writes trl_pairs.txt and a table of each kind of model and objective here
  trl_reference.py --kinds K,.. --objectives O,..  writes those tables only; --out FOLDER: there
  trl_reference.py --save FOLDER                writes the models as Hugging Face folders: KIND, KIND-reference, KIND-adapter
                                                and KIND-trained-adapter

Tables: lines with # say what they are of and name the columns, then one line a step. The loss is that of the step's batch
before its update, the gradient's norm is that before clipping, and the other columns have TRL's names (rewards/chosen etc.).

Pairs: `prompt | chosen | rejected`, one a line, as ids; each of both completions ends with the id of the end, 3. TRL reads
texts, which a tokenizer of one word a token makes of them; each step asserts that its batch has these ids and these alone,
and that the first of a completion is the first that counts. Step s has the pairs 4 s .. 4 s + 3, modulo 20 (KTO: rows of
which row 2 i is the chosen and row 2 i + 1 the rejected completion of pair i, modulo 40).

Weights: with i the index of an element in row-major order and `name` its parameter's name in Hugging Face's file,
  x = FNV-1a(name) + i * 0x9e3779b9; x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
in 32 bits, and u(name, i) = (x >> 8) / 2^23 - 1 in [-1, 1). An element is u / 4, that of a norm 1 + u / 4, both in fp32 (all
but the sum is exact). The reference model adds u("reference." + name, i) / 16 to each element. An adapter's A is u / 4 of its
name in PEFT's file; B is 0, in the trained adapter u / 16.

AdamW's epsilon is 1e-6: with 1e-8, its first updates amplify the rounding of gradients that are almost 0, and losses of a table
and of another program's 20 steps differ by up to 3e-5.

On several processes (torchrun) a rank has its part of the four pairs, and the table is printed, not written.
Needs torch, transformers, trl, peft, datasets and safetensors.
"""
import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
WORK = tempfile.TemporaryDirectory(prefix="trl-reference-")
os.environ["HF_HOME"] = WORK.name
import datasets
import numpy as np
import peft
import torch
import torch.distributed as dist
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

HERE = Path(__file__).resolve().parent
VOCABULARY, PAD, UNKNOWN, END = 128, 0, 1, 3
PAIRS, BATCH, STEPS = 20, 4, 20
SIZES = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=PAD,
             bos_token_id=None, eos_token_id=END, use_cache=False)
KINDS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, head_dim=12, rms_norm_eps=1e-5, attention_dropout=0.0),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, rms_norm_eps=1e-6, attention_dropout=0.0),
}
ADAPTER = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")


def dpo(loss_type="sigmoid", reference="initial", adapter=None, **options):
    return dict(trainer=trl.DPOTrainer, config=trl.DPOConfig, reference=reference, adapter=adapter,
                options=dict(beta=0.1, loss_type=loss_type, max_length=None) | options)


def others(trainer, config, **options):
    return dict(trainer=trainer, config=config, reference=None, adapter=None, options=dict(beta=0.1) | options)


OBJECTIVES = {
    "dpo": dpo(),
    "dpo_beta": dpo(beta=0.5),
    "dpo_reference": dpo(reference="other"),
    "dpo_precomputed": dpo(precompute_ref_log_probs=True),
    "dpo_precomputed_reference": dpo(reference="other", precompute_ref_log_probs=True),
    "dpo_lora": dpo(adapter="new"),
    "dpo_lora_trained": dpo(adapter="trained"),
    "dpo_norm": dpo("sigmoid_norm"),
    "robust": dpo("robust", label_smoothing=0.1),
    "hinge": dpo("hinge"),
    "hinge_beta": dpo("hinge", beta=0.04),
    "ipo": dpo("ipo"),
    "exo_pair": dpo("exo_pair", label_smoothing=0.1),
    "apo_zero": dpo("apo_zero"),
    "apo_down": dpo("apo_down"),
    "orpo": others(ORPOTrainer, ORPOConfig),
    "simpo": others(CPOTrainer, CPOConfig, loss_type="simpo", simpo_gamma=0.5, cpo_alpha=0.0),
    "simpo_smoothed": others(CPOTrainer, CPOConfig, loss_type="simpo", simpo_gamma=0.5, cpo_alpha=0.0, label_smoothing=0.1),
    "cpo": others(CPOTrainer, CPOConfig, loss_type="sigmoid", cpo_alpha=1.0),
    "cpo_smoothed": others(CPOTrainer, CPOConfig, loss_type="sigmoid", cpo_alpha=1.0, label_smoothing=0.1),
    "kto": others(trl.KTOTrainer, trl.KTOConfig) | dict(reference="initial"),
    "kto_weighted": others(trl.KTOTrainer, trl.KTOConfig, desirable_weight=1.5, undesirable_weight=0.7)
    | dict(reference="initial"),
    "kto_reference": others(trl.KTOTrainer, trl.KTOConfig) | dict(reference="other"),
}


def uniform(name, shape):
    """u(name, i) of all elements, exact in fp32."""
    x = 2166136261
    for byte in name.encode():
        x = (x ^ byte) * 16777619 & 0xffffffff
    x = (np.arange(int(np.prod(shape)), dtype=np.uint64) * 0x9e3779b9 + x).astype(np.uint32)
    x = (x ^ x >> 16) * np.uint32(0x7feb352d)
    x = (x ^ x >> 15) * np.uint32(0x846ca68b)
    x ^= x >> 16
    return torch.from_numpy((x >> 8).astype(np.float32) / np.float32(2**23) - np.float32(1)).view(shape)


def make_model(kind, other=False):
    model = AutoModelForCausalLM.from_config(KINDS[kind](), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(uniform(name, parameter.shape) / 4)
            if parameter.dim() == 1:
                parameter.add_(1)
            if other:
                parameter.add_(uniform("reference." + name, parameter.shape) / 16)
    return model


def fill_adapter(model, trained):
    """Gives the adapter its weights by the names of PEFT's file."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".default." in name:
                is_b, stored = "lora_B" in name, name.replace(".default.", ".")
                parameter.copy_(uniform(stored, parameter.shape) / (16 if is_b else 4))
                if is_b and not trained:
                    parameter.zero_()


def save_models(kind, folder):
    """All that the objectives of a kind begin with; returns the folder of the model."""
    path = Path(folder)
    make_model(kind).save_pretrained(path / kind)
    make_model(kind, other=True).save_pretrained(path / f"{kind}-reference")
    for name, trained in (("adapter", False), ("trained-adapter", True)):
        model = peft.get_peft_model(make_model(kind), peft.LoraConfig(**ADAPTER))
        fill_adapter(model, trained)
        model.save_pretrained(path / f"{kind}-{name}")
    return path / kind


def make_pairs():
    """Ids of prompt, chosen and rejected, whose lengths differ; those chosen follow a rule that those rejected do not."""
    pairs, ids = [], VOCABULARY - 4
    for pair in range(PAIRS):
        prompt = [4 + (pair * 37 + position * position * 11 + position * 5) % ids for position in range(3 + pair * 5 % 8)]
        chosen, rejected = [], []
        for position in range(2 + pair * 7 % 11):
            chosen.append(4 + (7 * (chosen or prompt)[-1] + 3 + position) % ids)
        for position in range(3 + (pair * 5 + 6) % 13):
            rejected.append(4 + (pair * pair * 13 + position * position * 29 + position * 17) % ids)
        pairs.append((prompt, chosen + [END], rejected + [END]))
    return pairs


def make_tokenizer():
    words = {f"t{token}": token for token in range(VOCABULARY)} | {"<pad>": PAD, "<unk>": UNKNOWN, "</s>": END}
    for token in (PAD, UNKNOWN, END):
        del words[f"t{token}"]
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def text(tokens):
    return "".join(" </s>" if token == END else f" t{token}" for token in tokens)


def rows_of(pairs, unpaired):
    if not unpaired:
        return [dict(prompt=text(prompt), chosen=text(chosen), rejected=text(rejected)) for prompt, chosen, rejected in pairs]
    return [dict(prompt=text(prompt), completion=text(completion), label=label)
            for prompt, chosen, rejected in pairs for completion, label in ((chosen, True), (rejected, False))]


def sequences_of(inputs, ids, counted):
    """(ids, number of those before the first that counts) of each row of a batch, without what fills it up."""
    mask = inputs[ids.replace("input_ids", "attention_mask")].bool()
    found = []
    for row, length in enumerate(mask.sum(1).tolist()):
        assert mask[row, :length].all()
        counts = inputs[counted][row]
        counts = (counts != -100 if counted.endswith("labels") else counts == 1).tolist()
        first = counts.index(True)
        assert all(counts[first:length]) and not any(counts[length:])
        found.append((inputs[ids][row, :length].tolist(), first))
    return found


def expected_batch(trainer, pairs, first, count):
    """The same of the pairs (KTO: rows) that a batch is to have, by the kinds of sequences in it."""
    if isinstance(trainer, trl.KTOTrainer):
        rows = [(prompt, completion) for prompt, chosen, rejected in pairs for completion in (chosen, rejected)]
        batch = [rows[(first + row) % len(rows)] for row in range(count)]
        return {"": [(prompt + completion, len(prompt)) for prompt, completion in batch],
                "KL_": [(prompt + batch[row - 1][1], len(prompt)) for row, (prompt, _) in enumerate(batch)]}
    batch = [pairs[(first + row) % len(pairs)] for row in range(count)]
    both = {f"{kind}_": [(pair[0] + pair[which], len(pair[0])) for pair in batch]
            for which, kind in ((1, "chosen"), (2, "rejected"))}
    return {"": both["chosen_"] + both["rejected_"]} if isinstance(trainer, trl.DPOTrainer) else both


def check_batch(trainer, inputs, pairs, first, count):
    for kind, expected in expected_batch(trainer, pairs, first, count).items():
        counted = f"{kind}labels" if f"{kind}labels" in inputs else f"{kind}completion_mask"
        found = sequences_of(inputs, f"{kind}input_ids", counted)
        assert found == expected, (kind, found, expected)


class Lines(TrainerCallback):
    """What TRL logs after each step, beside the loss of the batch."""

    def __init__(self):
        self.losses, self.logs = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            self.logs.append(dict(logs))


COLUMNS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected", "kl",
           "nll_loss"]


def train(folder, kind, name):
    """The lines of a table."""
    case, pairs, lines = OBJECTIVES[name], make_pairs(), Lines()
    world = int(os.environ.get("WORLD_SIZE", 1))
    own = BATCH // world

    class Trainer(case["trainer"]):
        def training_step(self, model, inputs, *arguments, **options):
            check_batch(self, inputs, pairs, len(lines.losses) * BATCH + self.args.process_index * own, own)
            loss = super().training_step(model, inputs, *arguments, **options)
            lines.losses.append(float(self.accelerator.gather(loss).mean()))
            return loss

    arguments = case["config"](
        output_dir=str(Path(WORK.name) / "run"), use_cpu=True, bf16=False, max_steps=STEPS, per_device_train_batch_size=own,
        train_sampling_strategy="sequential", learning_rate=1e-3, lr_scheduler_type="constant", optim="adamw_torch",
        adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-6, weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=False,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        remove_unused_columns=case["trainer"] in (trl.DPOTrainer, trl.KTOTrainer), **case["options"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    more = {}
    if case["adapter"] == "new":
        more["peft_config"] = peft.LoraConfig(**ADAPTER)
    if case["adapter"] == "trained":  # TRL's reference is a copy of it, not the model without it
        model = peft.PeftModel.from_pretrained(model, f"{folder}-trained-adapter", is_trainable=True)
    if case["reference"] == "other":
        more["ref_model"] = AutoModelForCausalLM.from_pretrained(f"{folder}-reference", dtype=torch.float32)
    data = datasets.Dataset.from_list(rows_of(pairs, unpaired=case["trainer"] is trl.KTOTrainer))
    trainer = Trainer(model=model, args=arguments, train_dataset=data, processing_class=make_tokenizer(), callbacks=[lines],
                      **more)
    trainer.remove_callback(PrinterCallback)
    if case["adapter"] == "new":
        fill_adapter(trainer.model, trained=False)
    trained = [key for key, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert not case["adapter"] or all(".default." in key for key in trained), trained
    trainer.train()
    assert len(lines.losses) == len(lines.logs) == STEPS
    for loss, log in zip(lines.losses, lines.logs):
        assert abs(loss - log["loss"]) <= 1e-4 * max(1.0, abs(loss)), (loss, log["loss"])

    columns = [column for column in COLUMNS if column in lines.logs[0]]
    options = ", ".join(f"{key} {value}" for key, value in case["options"].items() if value is not None)
    what = f"{case['trainer'].__name__} of TRL {trl.__version__} on PyTorch {torch.__version__.split('+')[0]}, {kind}: {options}"
    if case["reference"] == "other":
        what += "; another reference model"
    if case["adapter"]:
        what += f"; a {case['adapter']} adapter by PEFT {peft.__version__}"
    table = [f"# {what} (trl_reference.py)", " ".join(["# step loss grad_norm", *columns])]
    for step, (loss, log) in enumerate(zip(lines.losses, lines.logs), 1):
        numbers = [loss, log["grad_norm"], *(log[column] for column in columns)]
        table.append(" ".join([str(step), *(f"{float(number):.9g}" for number in numbers)]))
    return table


def parse_arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--objectives", default=",".join(OBJECTIVES))
    p.add_argument("--out", default=HERE, type=Path)
    p.add_argument("--save", metavar="FOLDER", help="write the models there, and nothing else")
    a = p.parse_args()
    for name, known in (("kinds", KINDS), ("objectives", OBJECTIVES)):
        setattr(a, name, getattr(a, name).split(","))
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    return a


def main():
    a = parse_arguments()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if a.save:
        for kind in a.kinds:
            save_models(kind, a.save)
        return
    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
    if alone:
        lines = ["# prompt | chosen | rejected, as ids (trl_reference.py)"]
        lines += [" | ".join(" ".join(map(str, part)) for part in pair) for pair in make_pairs()]
        (a.out / "trl_pairs.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for kind in a.kinds:
        folder = save_models(kind, WORK.name)
        for name in a.objectives:
            table = "\n".join(train(folder, kind, name))
            if alone:
                (a.out / f"trl_{kind}_{name}.txt").write_text(table + "\n", encoding="utf-8")
            elif dist.get_rank() == 0:
                print(table, flush=True)


if __name__ == "__main__":
    main()
