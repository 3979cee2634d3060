#!/usr/bin/env python3
"""Makes preferences.json: for the files in preferences/, each in a form of public data sets, the token ids that TRL's DPOTrainer
and KTOTrainer give for each answer with its prompt, and the mask of the tokens that are learnt.

    pip install trl==1.16.0 transformers==5.24.0; make_preferences.py [TEMPLATES [OUTPUT]]

TEMPLATES and OUTPUT are as for make_chats.py. The ids, and the token with which an answer begins, are those of the trainers'
_prepare_dataset(). Rows of LLaMA-Factory and axolotl become TRL's before that, as their converters do it. TRL learns everything
behind the prompt. The mask has less: of it, only what apply_chat_template(return_assistant_tokens_mask=True) marks, that is,
neither the line end behind the end of a turn nor the user's messages between the assistant's.
"""

import json
import os
from types import SimpleNamespace

from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import DPOTrainer, KTOTrainer
from trl.data_utils import maybe_extract_prompt

from make_chats import FAMILIES, HERE, OUT, TOKENIZERS
from make_forms import message_of, templates_of

FIELDS, MESSAGES = "pairs of answers ({}, chosen, rejected)", "labelled conversations ({}, label)"
PAIRS, LABELS, ALPACA = "pairs of conversations (chosen, rejected)", "labelled answers ({}, label)", "Alpaca's pairs (instruction, {})"
# The form that is said, and the template: chatml, none, or a family of make_chats.py.
FILES = {
    "trl_prompt.jsonl": (FIELDS.format("prompt"), "Qwen2.5"),
    "trl_texts.jsonl": (FIELDS.format("prompt"), "chatml"),
    "trl_plain.jsonl": (FIELDS.format("prompt"), "none"),
    "trl_shared.jsonl": (PAIRS, "Qwen2.5"),
    "trl_shared_plain.jsonl": ("pairs of texts (chosen, rejected)", "none"),
    "trl_text_and_lists.jsonl": (PAIRS, "Qwen3"),
    "trl_turns.jsonl": (FIELDS.format("prompt"), "chatml"),
    "trl_tools.jsonl": (FIELDS.format("prompt"), "Qwen2.5"),
    "trl_labels.jsonl": (LABELS.format("prompt, completion"), "Qwen2.5"),
    "trl_labels_plain.jsonl": (LABELS.format("prompt, completion"), "none"),
    "llama_factory_sharegpt.json": (FIELDS.format("conversations"), "chatml"),
    "llama_factory_alpaca.json": (ALPACA.format("chosen, rejected"), "Qwen2.5"),
    "llama_factory_kto.json": (MESSAGES.format("messages"), "chatml"),
    "llama_factory_kto_sharegpt.jsonl": (MESSAGES.format("conversations"), "chatml"),
    "llama_factory_kto_alpaca.jsonl": (LABELS.format("instruction, output"), "chatml"),
    "axolotl_messages.jsonl": (FIELDS.format("messages"), "Qwen2.5"),
    "axolotl_intel.jsonl": (FIELDS.format("question"), "chatml"),
    "axolotl_icr.jsonl": (FIELDS.format("input"), "chatml"),
    "axolotl_argilla.jsonl": (ALPACA.format("chosen_response, rejected_response"), "chatml"),
    "axolotl_kto_intel.jsonl": (LABELS.format("question, completion"), "chatml"),
    "axolotl_kto_argilla.jsonl": (LABELS.format("instruction, completion"), "chatml"),
}


def rows_of(name):
    with open(os.path.join(HERE, "preferences", name), encoding="utf-8") as file:
        text = file.read()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def answer_of(value):
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    return [message_of(each) for each in (value if isinstance(value, list) else [value])]


def trl_row(row, name):
    """A row in TRL's form with a prompt, in messages unless there is no template."""
    out = {"tools": row["tools"]} if "tools" in row else {}
    if name.endswith("_plain.jsonl"):
        return {**maybe_extract_prompt(row), **out}
    if isinstance(row.get("chosen"), list) and not isinstance(row.get("prompt"), list):
        return {**maybe_extract_prompt(row), **out}
    label = [row[key] for key in ("label", "kto_tag") if key in row]
    if label:
        out["label"] = bool(label[0])
    prompt = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    messages = row.get("conversations") or row.get("messages")
    if label and messages:
        out["completion"] = [message_of(messages[-1])]
        prompt += [message_of(each) for each in messages[:-1]]
    else:
        for to, keys in (("chosen", ("chosen", "chosen_response")), ("rejected", ("rejected", "rejected_response")),
                         ("completion", ("completion", "output"))):
            out.update({to: answer_of(row[key]) for key in keys if key in row})
        for question, answer in row.get("history", []):
            prompt += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if "instruction" in row:
            prompt.append({"role": "user", "content": "\n".join(text for text in (row["instruction"], row.get("input")) if text)})
        else:
            given = messages or row.get("prompt") or row.get("question") or row.get("input")
            prompt += [{"role": "user", "content": given}] if isinstance(given, str) else [message_of(each) for each in given]
    return {"prompt": prompt, **out}


def prepared(row, tokenizer):
    """[(is preferred, ids of the prompt, ids of the answer)]"""
    trainer = (KTOTrainer if "completion" in row else DPOTrainer).__new__(KTOTrainer if "completion" in row else DPOTrainer)
    trainer._tokenizer, trainer.calculate_KL = tokenizer, False
    arguments = SimpleNamespace(dataset_num_proc=None, max_length=None)
    out = next(iter(trainer._prepare_dataset(Dataset.from_list([row]), tokenizer, arguments, "eval")))
    if "completion" in row:
        return [(row["label"], out["prompt_ids"], out["completion_ids"])]
    return [(True, out["prompt_ids"], out["chosen_ids"]), (False, out["prompt_ids"], out["rejected_ids"])]


def encoded(row, tokenizer):
    made = []
    for preferred, prompt, answer in prepared(row, tokenizer):
        ids = prompt + answer
        mask = [1] * len(ids)
        if tokenizer.chat_template:
            messages = row["prompt"] + row["completion" if "completion" in row else "chosen" if preferred else "rejected"]
            tools = row.get("tools")
            marked = tokenizer.apply_chat_template(messages, tools=json.loads(tools) if isinstance(tools, str) else tools,
                                                   tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            assert marked["input_ids"] == ids
            mask = marked["assistant_masks"]
        mask = [0] * len(prompt) + list(mask[len(prompt):])
        made.append({"preferred": bool(preferred), "begin": len(prompt), "ids": ids, "mask": "".join(map(str, mask))})
    return made


def main():
    made = {}
    for name, (form, template) in FILES.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, "qwen2", "tokenizer.json"), **TOKENIZERS["qwen2"][1])
        tokenizer.chat_template = templates_of(template)[0]
        made[name] = {
            "form": form,
            "template": FAMILIES[template]["file"] if template in FAMILIES else template,
            "answers": [answer for row in rows_of(name) for answer in encoded(trl_row(row, name), tokenizer)],
        }
    with open(os.path.join(OUT, "preferences.json"), "w", encoding="utf-8") as file:
        json.dump(made, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
