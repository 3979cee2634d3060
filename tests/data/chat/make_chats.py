#!/usr/bin/env python3
"""Makes chats.json: for conversations, chat templates of model families and tokenizers of three kinds, the text, the
token ids and the mask of the assistant's tokens that transformers gives.

    pip install transformers==5.24.0; make_chats.py [TEMPLATES [OUTPUT]]

TEMPLATES is llama.cpp's folder models/templates (default: that in .deps/). Published templates have no blocks
{% generation %}, without which transformers marks nothing, so "marks" says how to put them in. The marked template must
write the same text as the published one. The test reads both.
"""

import json
import os
import sys

import tokenizers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
TEMPLATES = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, ".deps/llama.cpp-jinja-0.3.36/models/templates")
OUT = sys.argv[2] if len(sys.argv) > 2 else HERE
BEGIN, END = "{%- generation %}", "{%- endgeneration %}"

TOKENIZERS = {
    "llama3": (
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "qwen2": (
        ["<|im_start|>", "<|im_end|>", "<|im_sep|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|user|>",
         "<|assistant|>", "<|system|>", "<|end|>"],
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    ),
    "mistral": (
        ["[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"],
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
}

PLAIN = [
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello, world! caf\u00e9"},
    {"role": "user", "content": "the quick\n\nbrown fox?\n"},
    {"role": "assistant", "content": "\u65e5\u672c\u8a9e.\n\n- one\n- 1234"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}] + PLAIN
# What NFC changes, so that tokens are not the bytes of the text.
DECOMPOSED = [
    {"role": "user", "content": "cafe\u0301 e\u0301?"},
    {"role": "assistant", "content": "e\u0301 cafe\u0301 and then na\u0131\u0308ve"},
    {"role": "user", "content": "a\u0308"},
    {"role": "assistant", "content": "o\u0308h"},
]
THOUGHTS = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\nadd them\n</think>\n\n4"},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "<think>\nagain\n</think>\n\n6"},
]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}]
CALLS = [
    {"role": "user", "content": "Rain in Oslo?"},
    {"role": "assistant", "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"place": "Oslo", "days": 2}}}]},
    {"role": "tool", "content": "sun"},
    {"role": "assistant", "content": "No, sun."},
]
CONVERSATIONS = {"plain": PLAIN, "system": SYSTEM, "decomposed": DECOMPOSED, "thoughts": THOUGHTS, "calls": CALLS}

GENERATED_OR_NOT = (
    "{%- if message.role == 'assistant' %}" + BEGIN + "{{- WORDS }}" + END + "{%- else %}{{- WORDS }}{%- endif %}"
)


def marked_words(words):
    return GENERATED_OR_NOT.replace("WORDS", words)


LLAMA_MARKS = [
    ["'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}",
     "'<|end_header_id|>\\n\\n' }}" + marked_words("message['content'] | trim + '<|eot_id|>'")],
    ["{{- '{\"name\": \"' + tool_call.name + '\", ' }}", BEGIN + "{{- '{\"name\": \"' + tool_call.name + '\", ' }}"],
]
PHI4 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|im_start|>system<|im_sep|>' + "
    "message['content'] + '<|im_end|>'}}{% elif message['role'] == 'user' %}{{'<|im_start|>user<|im_sep|>' + "
    "message['content'] + '<|im_end|>'}}{% elif message['role'] == 'assistant' %}{{'<|im_start|>assistant<|im_sep|>' + "
    "message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
OLMO2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + "
    "message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}"
    "{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"
)
GEMMA3 = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set prefix = messages[0]['content'] + '\n\n' -%}"
    "{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set prefix = '' -%}{%- set loop_messages = messages -%}"
    "{%- endif -%}{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate') }}{%- endif -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') }}{{ message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)

# template: a file of TEMPLATES, or the text. marks: what to replace.
FAMILIES = {
    "Llama 3.1": {
        "file": "meta-llama-Llama-3.1-8B-Instruct.jinja", "tokenizer": "llama3",
        "conversations": ["plain", "system", "decomposed", "calls"],
        "marks": LLAMA_MARKS + [
            ["{{- \"}\" }}\n        {%- endif %}", "{{- \"}<|eot_id|>\" }}" + END + "\n        {%- endif %}"],
            ["        {%- else %}\n            {{- \"<|eot_id|>\" }}\n        {%- endif %}", "        {%- endif %}"],
        ],
    },
    "Llama 3.2": {
        "file": "meta-llama-Llama-3.2-3B-Instruct.jinja", "tokenizer": "llama3",
        "conversations": ["plain", "system", "calls"], "variables": {"date_string": "26 Jul 2024"},
        "marks": LLAMA_MARKS + [["        {{- \"<|eot_id|>\" }}\n    {%- elif message.role == \"tool\"",
                                 "        {{- \"<|eot_id|>\" }}" + END + "\n    {%- elif message.role == \"tool\""]],
    },
    "Qwen2.5": {
        "file": "Qwen-Qwen2.5-7B-Instruct.jinja", "tokenizer": "qwen2",
        "conversations": ["plain", "system", "decomposed", "calls"],
        "marks": [
            ["{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
             "{{- '<|im_start|>' + message.role + '\\n' }}" + marked_words("message.content + '<|im_end|>'") + "{{- '\\n' }}"],
            ["        {{- '<|im_start|>' + message.role }}\n        {%- if message.content %}\n            {{- '\\n' + message.content }}",
             "        {{- '<|im_start|>' + message.role + '\\n' }}" + BEGIN + "{%- if message.content %}{{- message.content }}"],
            ["{{- '\\n<tool_call>\\n{\"name\": \"' }}",
             "{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n{\"name\": \"' }}"],
            ["        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\"",
             "        {{- '<|im_end|>' }}" + END + "{{- '\\n' }}\n    {%- elif message.role == \"tool\""],
        ],
    },
    "Qwen3": {
        "file": "Qwen-Qwen3-0.6B.jinja", "tokenizer": "qwen2",
        "conversations": ["plain", "system", "thoughts"],
        "marks": [
            ["{%- if loop.index0 > ns.last_query_index %}",
             "{{- '<|im_start|>' + message.role + '\\n' }}" + BEGIN + "{%- if loop.index0 > ns.last_query_index %}"],
            ["{{- '<|im_start|>' + message.role + '\\n<think>", "{{- '<think>"],
            ["{{- '<|im_start|>' + message.role + '\\n' + content }}", "{{- content }}"],
            ["        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\"",
             "        {{- '<|im_end|>' }}" + END + "{{- '\\n' }}\n    {%- elif message.role == \"tool\""],
        ],
    },
    "Gemma 2": {
        "file": "google-gemma-2-2b-it.jinja", "tokenizer": "mistral", "conversations": ["plain", "decomposed"],
        "marks": [["+ role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}",
                   "+ role + '\n' }}" + marked_words("message['content'] | trim + '<end_of_turn>'") + "{{- '\n' }}"]],
    },
    "Gemma 3": {
        "text": GEMMA3, "tokenizer": "mistral", "conversations": ["plain", "system"],
        "marks": [["{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}",
                   marked_words("message['content'] | trim + '<end_of_turn>'") + "{{- '\n' }}"]],
    },
    "Mistral 7B": {
        "text": MISTRAL, "tokenizer": "mistral", "conversations": ["plain"],
        "marks": [["{{ ' ' + message['content'] + eos_token }}", BEGIN + "{{- ' ' + message['content'] + eos_token }}" + END]],
    },
    "Mistral Nemo": {
        "file": "mistralai-Mistral-Nemo-Instruct-2407.jinja", "tokenizer": "mistral",
        "conversations": ["plain", "system"],
        "marks": [["{{- message[\"content\"] + eos_token}}", BEGIN + "{{- message[\"content\"] + eos_token }}" + END]],
    },
    "Phi 3.5": {
        "file": "microsoft-Phi-3.5-mini-instruct.jinja", "tokenizer": "qwen2", "conversations": ["plain", "system"],
        "marks": [["{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}",
                   "{{'<|assistant|>\n'}}" + BEGIN + "{{- message['content'] + '<|end|>' }}" + END + "{{- '\n' }}"]],
    },
    "Phi 4": {
        "text": PHI4, "tokenizer": "qwen2", "conversations": ["plain", "system"],
        "marks": [["{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}",
                   "{{'<|im_start|>assistant<|im_sep|>'}}" + BEGIN + "{{- message['content'] + '<|im_end|>' }}" + END]],
    },
    "OLMo 2": {
        "text": OLMO2, "tokenizer": "qwen2", "conversations": ["plain", "system"],
        "marks": [["{{ '<|assistant|>\\n' + message['content'] + eos_token }}",
                   "{{ '<|assistant|>\\n' }}" + BEGIN + "{{- message['content'] + eos_token }}" + END]],
    },
    "SmolLM3": {
        "file": "HuggingFaceTB-SmolLM3-3B.jinja", "tokenizer": "qwen2", "conversations": ["plain", "system"],
        "marks": [["{{ \"<|im_start|>assistant\\n\" + content.lstrip(\"\\n\") + \"<|im_end|>\\n\" }}",
                   "{{ \"<|im_start|>assistant\\n\" }}" + BEGIN + "{{- content.lstrip(\"\\n\") + \"<|im_end|>\" }}" + END + "{{- \"\\n\" }}"]],
    },
}


def tokenizer_of(name):
    special, roles = TOKENIZERS[name]
    made = tokenizers.Tokenizer.from_file(os.path.join(HERE, "../bpe/families", name + ".json"))
    made.add_special_tokens(special)
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    made.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(roles, file)
        file.write("\n")
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), **roles)


def main():
    made = {name: tokenizer_of(name) for name in TOKENIZERS}
    families = {}
    for name, family in FAMILIES.items():
        tokenizer = made[family["tokenizer"]]
        text = family.get("text")
        if text is None:
            with open(os.path.join(TEMPLATES, family["file"]), encoding="utf-8") as file:
                text = file.read()
        marked = text
        for old, new in family["marks"]:
            assert old in marked, (name, old)
            marked = marked.replace(old, new)
        results = {}
        for conversation in family["conversations"]:
            messages, tools = CONVERSATIONS[conversation], TOOLS if conversation == "calls" else None
            variables = family.get("variables", {})
            out = tokenizer.apply_chat_template(messages, tools=tools, chat_template=marked, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True, **variables)
            rendered = tokenizer.apply_chat_template(messages, tools=tools, chat_template=text, tokenize=False, **variables)
            assert rendered == tokenizer.apply_chat_template(messages, tools=tools, chat_template=marked, tokenize=False,
                                                             **variables), (name, conversation)
            results[conversation] = {
                "text": rendered, "ids": out["input_ids"], "mask": "".join(str(bit) for bit in out["assistant_masks"])
            }
        families[name] = {**family, "conversations": results}
    chats = {"conversations": CONVERSATIONS, "tools": TOOLS, "families": families}
    with open(os.path.join(OUT, "chats.json"), "w", encoding="utf-8") as file:
        json.dump(chats, file, ensure_ascii=True, indent=None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
