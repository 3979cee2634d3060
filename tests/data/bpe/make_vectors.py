#!/usr/bin/env python3
"""Makes the vocabularies and vectors in this folder with PyPI's tokenizers, from a folder of texts.

    pip install tokenizers==0.23.3; make_vectors.py FOLDER_OF_TEXTS
"""

import glob
import json
import os
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = [
    "",
    "a",
    " ",
    "\n",
    "Hello world, naïve 😀\n\n  x=1",
    "It's we'll they'd I'VE YOU'RE don'T 'sit 's''t ſ'ſ",
    "one  two   three    four\tfive\t\tsix \n seven\n\n\neight   ",
    "   leading and trailing   ",
    "\r\n windows \r\n\r\n lines\r",
    "1 12 123 1234 12345678901234567890 3.14159 1,000,000 ½ ² ٣٤٥ Ⅷ 一二三",
    "Ünïcödé ÅÄÖ åäö ß ẞ Ĳ ĳ ǅ ﬁ ﬀ",
    "Ελληνικά Русский עברית العربية हिन्दी ไทย 日本語 中文字 한국어",
    "e\u0301 n\u0303 a\u0308\u0304 \u0627\u0644\u0644\u0651\u0647",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ❤️ ☺",
    "a\u00a0b\u2003c\u2028d\u2029e\u3000f\u180eg\u200bh\ufeffi\u0085j\u000bk\u000cl\u001fm",
    "\x00\x01\x02\x1b[31m\x7f",
    "!!! ??? ... --- ___ *** (((x))) {[<>]} \"quoted\" `code` $100 #tag @user 50% a&b c|d ~e ^f",
    "http://example.com/path?query=1&b=2#frag user@example.org C:\\Windows\\x",
    "def f(x):\n    return x ** 2  # square\n\n\tif True:\n\t\tpass\n",
    "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer",
    "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|> <|endoftext",
    "<|endoftext|><|endoftext|>",
    "<|end<|endoftext|>oftext|> <|begin_of_text|>x<|long|><|long|er|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethethetheandandandandandandandandandandandtotototototo",
    " " * 100 + "x" + "\n" * 70 + " " * 3 + "\t" * 20,
    "=" * 200 + "\n" + "-" * 77 + "\n\n",
    "\U0001f600" * 30,
    "\ufffd\uffff\U0010ffff",
    "A" * 31 + " " + "b" * 48 + " " + "c" * 49 + " " + "d" * 1000,
]


def train(files, tokenizer, size, special):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train(files, trainer)


def string_merges(path):
    """Older versions write merges as "a b"."""
    with open(path) as file:
        data = json.load(file)
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    with open(path, "w") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))


def compact(path):
    with open(path) as file:
        data = json.load(file)
    with open(path, "w") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))


def main():
    files = sorted(glob.glob(os.path.join(sys.argv[1], "*.txt")))[:6]
    made = {}

    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    train(files, gpt2, 700, ["<|endoftext|>"])
    made["gpt2_kind"] = gpt2

    llama = Tokenizer(models.BPE(ignore_merges=True))
    llama.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    llama.decoder = decoders.ByteLevel()
    train(files, llama, 600, [])
    # A token that no merges make: only ignore_merges finds it.
    vocabulary = json.loads(llama.to_str())
    vocabulary["model"]["vocab"]["Ġquestion"] = len(vocabulary["model"]["vocab"])
    llama = Tokenizer.from_str(json.dumps(vocabulary))
    llama.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>"])
    llama.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))],
    )
    made["llama3_kind"] = llama

    digits = Tokenizer(models.BPE())
    digits.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(" to ", behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    digits.decoder = decoders.ByteLevel()
    train(files, digits, 500, ["<|endoftext|>"])
    digits.add_special_tokens(["<|long|>"])
    digits.add_tokens(["<|long|er|>", "    ", "\t\t", AddedToken("ïcö", normalized=True)])
    made["digits_kind"] = digits

    prefix = Tokenizer(models.BPE())
    prefix.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    prefix.decoder = decoders.ByteLevel()
    train(files, prefix, 400, ["<|endoftext|>"])
    made["prefix_kind"] = prefix

    removed = Tokenizer(models.BPE())
    removed.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+"), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    removed.decoder = decoders.ByteLevel()
    train(files, removed, 400, [])
    made["removed_kind"] = removed

    vectors = {"tokenizers_version": tokenizers.__version__, "texts": TEXTS, "ids": {}, "vocab_size": {}}
    for name, tokenizer in made.items():
        path = os.path.join(HERE, name + ".json")
        tokenizer.save(path)
        if name in ("gpt2_kind", "digits_kind"):
            string_merges(path)
        else:
            compact(path)
        read = Tokenizer.from_file(path)
        vectors["ids"][name] = [read.encode(text, add_special_tokens=False).ids for text in TEXTS]
        vectors["vocab_size"][name] = read.get_vocab_size()

    # The vocabulary of gpt2_kind in GPT-2's two files.
    with open(os.path.join(HERE, "gpt2_kind.json")) as file:
        model = json.load(file)["model"]
    os.makedirs(os.path.join(HERE, "gpt2_files"), exist_ok=True)
    with open(os.path.join(HERE, "gpt2_files", "encoder.json"), "w") as file:
        json.dump(model["vocab"], file)
    with open(os.path.join(HERE, "gpt2_files", "vocab.bpe"), "w") as file:
        file.write("#version: 0.2\n" + "".join(merge + "\n" for merge in model["merges"]))
    with open(os.path.join(HERE, "vectors.json"), "w") as file:
        json.dump(vectors, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
