#!/usr/bin/env python3
"""Makes forms.json: for the files in forms/, each in a form of public data sets, the token ids that transformers gives for its
conversations, and the mask of the tokens that TRL, axolotl or LLaMA-Factory learn.

    pip install transformers==5.24.0; make_forms.py [TEMPLATES [OUTPUT]]

TEMPLATES and OUTPUT are as for make_chats.py. The mask is that of apply_chat_template(return_assistant_tokens_mask=True), without
the messages of weight 0, and without the prompt of a prompt and its completion.
"""

import gzip
import json
import os
import sys

from transformers import PreTrainedTokenizerFast

from make_chats import FAMILIES, HERE, OUT, TEMPLATES, TOKENIZERS

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}"
    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
OPENAI, SHAREGPT = "OpenAI's messages ({}: role, content)", "ShareGPT ({}: from, value)"
ALPACA, PROMPT = "Alpaca (instruction, output)", "prompt and completion (prompt, completion)"
# The form that is said, and the template: chatml, none, or a family of make_chats.py.
FILES = {
    "sharegpt.json": (SHAREGPT.format("conversations"), "chatml"),
    "sharegpt_names.jsonl": (SHAREGPT.format("conversations"), "chatml"),
    "sharegpt_system.json": (SHAREGPT.format("conversations"), "chatml"),
    "sharegpt_tools.jsonl": (SHAREGPT.format("conversations"), "Qwen2.5"),
    "sharegpt.jsonl.gz": (SHAREGPT.format("conversations"), "chatml"),
    "alpaca.json": (ALPACA, "chatml"),
    "alpaca_text.jsonl": (ALPACA, "Qwen2.5"),
    "alpaca_history.json": (ALPACA, "chatml"),
    "alpaca.jsonl.gz": (ALPACA, "chatml"),
    "openai.json": (OPENAI.format("messages"), "chatml"),
    "openai.jsonl": (OPENAI.format("messages"), "chatml"),
    "openai_weight.jsonl": (OPENAI.format("messages"), "chatml"),
    "openai_tools.jsonl": (OPENAI.format("messages"), "Qwen2.5"),
    "openai_parallel.jsonl": (OPENAI.format("messages"), "Qwen2.5"),
    "trl_texts.jsonl": (PROMPT, "none"),
    "trl_messages.jsonl": (PROMPT, "Qwen2.5"),
    "trl_turns.jsonl": (PROMPT, "chatml"),
    "parts.jsonl": (OPENAI.format("messages"), "chatml"),
    "parts_conversations.json": (OPENAI.format("conversations"), "chatml"),
    "parts_prompt.jsonl": (PROMPT, "chatml"),
}
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
         "function_call": "assistant", "observation": "tool"}


def rows_of(name):
    opened = gzip.open if name.endswith(".gz") else open
    with opened(os.path.join(HERE, "forms", name), "rt", encoding="utf-8") as file:
        text = file.read()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def message_of(given):
    message = {key: value for key, value in given.items() if value is not None and key != "weight"}
    if "from" in message:
        role, value = message.pop("from"), message.pop("value")
        message = {"role": ROLES.get(role, role), "content": value, **message}
        if role == "function_call":
            calls = json.loads(message.pop("content"))
            calls = calls if isinstance(calls, list) else [calls]
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    if isinstance(message.get("content"), list):
        message["content"] = "".join(part["text"] for part in message["content"])
    for call in message.get("tool_calls", []):
        if isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def conversation_of(row):
    """(messages, the number of them that are a prompt, whether each message counts)"""
    if "instruction" in row:
        given = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        for prompt, answer in row.get("history", []):
            given += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        prompt = "\n".join(text for text in (row["instruction"], row.get("input")) if text)
        given += [{"role": "user", "content": prompt}, {"role": "assistant", "content": row["output"]}]
        prompts = 0
    elif "prompt" in row:
        given, prompts = row["prompt"] + row["completion"], len(row["prompt"])
    else:
        given, prompts = row.get("messages") or row["conversations"], 0
        if row.get("system") and given[0].get("from") != "system":
            given = [{"from": "system", "value": row["system"]}] + given
    return [message_of(each) for each in given], prompts, [each.get("weight", 1) == 1 for each in given]


def ids_of(messages, how, template, tokenizer):
    return tokenizer.apply_chat_template(messages, **{**how, "chat_template": template})["input_ids"]


def encoded(row, tokenizer, template, published):
    if template is None:  # TRL adds the end of the text to the completion.
        prompt = tokenizer(row["prompt"])["input_ids"]
        ids = tokenizer(row["prompt"] + row["completion"] + tokenizer.eos_token)["input_ids"]
        assert ids[:len(prompt)] == prompt
        return ids, [0] * len(prompt) + [1] * (len(ids) - len(prompt))
    messages, prompts, counts = conversation_of(row)
    tools = row.get("tools") or None
    how = {"tools": json.loads(tools) if isinstance(tools, str) else tools, "chat_template": template, "tokenize": True,
           "return_dict": True}
    out = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, **how)
    if published:
        assert ids_of(messages, how, published, tokenizer) == out["input_ids"]
    ids, mask = out["input_ids"], list(out["assistant_masks"])
    turn = -1
    turns = [count for message, count in zip(messages, counts) if message["role"] == "assistant"]
    for i, bit in enumerate(out["assistant_masks"]):
        turn += 1 if bit and (i == 0 or not out["assistant_masks"][i - 1]) else 0
        mask[i] = 1 if bit and turns[turn] else 0
    assert turn + 1 == len(turns)
    if prompts:
        prompt = tokenizer.apply_chat_template(messages[:prompts], add_generation_prompt=True, **how)["input_ids"]
        assert ids[:len(prompt)] == prompt
        mask = [0] * len(prompt) + mask[len(prompt):]
    return ids, mask


def templates_of(name):
    """(the template with blocks {% generation %}, the published one)"""
    if name in ("chatml", "none"):
        return CHATML if name == "chatml" else None, None
    with open(os.path.join(TEMPLATES, FAMILIES[name]["file"]), encoding="utf-8") as file:
        text = published = file.read()
    for old, new in FAMILIES[name]["marks"]:
        text = text.replace(old, new)
    return text, published


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, "qwen2", "tokenizer.json"), **TOKENIZERS["qwen2"][1])
    made = {}
    for name, (form, template) in FILES.items():
        rows = [encoded(row, tokenizer, *templates_of(template)) for row in rows_of(name)]
        made[name] = {
            "form": form,
            "template": FAMILIES[template]["file"] if template in FAMILIES else template,
            "ids": [ids for ids, mask in rows],
            "mask": ["".join(map(str, mask)) for ids, mask in rows],
        }
    with open(os.path.join(OUT, "forms.json"), "w", encoding="utf-8") as file:
        json.dump(made, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
