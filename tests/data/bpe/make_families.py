#!/usr/bin/env python3
"""Makes small vocabularies of the shapes that families of models have (the same normalizer, pre-tokenizer, model options
and decoder as their files), and the ids and texts that PyPI's tokenizers gives for them: families/*.json.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3; make_families.py
"""

import base64
import io
import json
import os
import shutil
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "families")
BLANK = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# What the vocabularies are learnt from.
CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the other dogs think that this is the end of the thing",
    "to be or not to be that is the question whether it is nobler in the mind to suffer the slings and arrows",
    "it's we'll they'd I've you're don't isn't; he said: \"stop!\" and then, 1234 times (or 56), nothing happened.",
    "def main():\n    for i in range(10):\n        print(i, i ** 2)\n\n    return None\n",
    "caf\u00e9 na\u00efve \u00fcber Stra\u00dfe a\u00f1o \u00e9t\u00e9 d\u00e9j\u00e0 vu \u00c5ngstr\u00f6m",
    "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u0431\u044b\u0442\u044c \u0438\u043b\u0438 \u043d\u0435 \u0431\u044b\u0442\u044c",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \u4e2d\u6587\u5b57\u7b26 \ud55c\uad6d\uc5b4 \ubb38\uc7a5 \u304c\u304e\u3050\u3052\u3054",
    "the the the then there these they this that those than thus though through 2023 2024 10 20 30",
] * 4

TEXTS = [
    "",
    "a",
    " ",
    "  ",
    "\n",
    "\t",
    " the",
    "the",
    "the quick brown fox",
    "  the  quick   brown    fox     ",
    "Hello world, na\u00efve \U0001f600\n\n  x=1",
    "It's we'll they'd I'VE YOU'RE don'T 'sit 's''t \u017f'\u017f",
    "\r\n windows \r\n\r\n lines\r",
    "tabs\t\tand\u00a0no\u00a0break\u2003em\u3000ideographic\u180emongolian\u200bzero\ufeffbom\u0085next",
    "line\u2028separator\u2029paragraph\u000bvertical\u000cform\u001funit",
    "1 12 123 1234 12345678901234567890 3.14159 1,000,000 \u00bd \u00b2 \u0663\u0664\u0665 \u2167 \u4e00\u4e8c\u4e09",
    # What NFC changes: combining marks, singletons, Korean, exclusions, marks out of order.
    "cafe\u0301 cafe\u0301s e\u0301\u0302 q\u0307\u0323 a\u0308\u0304 A\u030a \u212b \u2126 n\u0303o",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8 \ud55c\uad6d \u1100\u1161 \uac00\u11a8 \u11a8",
    "\u0958\u0915\u093c \u0915\u093c\u0958 \u09c7\u09be \u0dd9\u0dcf \u1025\u102e \u0b95\u0bca \u0b95\u0bc6\u0bbe",
    "\u304b\u3099\u304d\u3099 \u30cf\u309a \uff76\uff9e \uf900 \ufb01 \ufb1d \u1e9b\u0323 \ud834\udd5e".encode(
        "utf-16", "surrogatepass"
    ).decode("utf-16"),
    "\u0301start with a mark \u0300\u0301 x\u0334\u0301\u0323 the\u0301 end\u0301",
    # What NFKC and maps of characters change.
    "\u2460 \u33a1 \u2122 \uff21\uff22\uff23 \ufb03 x\u00b2 \u00bc \u2026 \u2025 \u3131 \uffa1 \ufdfa \u00a8 \u037a",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\u65e5\u672c\u8a9e \u4e2d\u6587\u5b57\u7b26 \ud55c\uad6d\uc5b4 \u304c\u304e \U00020000\U0002f800",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f",
    "\u202eright to left\u202c \u0644\u0627 \u200f\u05d0\u200e \u0651\u0647",
    "\x00\x01\x02\x1b[31m\x7f \x80\x9f \ufffd\uffff\U0010ffff \ufdd0",
    "\u2581 \u2581the\u2581quick \u2581\u2581",
    "!!! ??? ... --- (((x))) {[<>]} \"quoted\" `code` $100 #tag @user 50% a&b c|d ~e ^f C:\\x",
    "def f(x):\n    return x ** 2  # square\n\n\tif True:\n\t\tpass\n",
    "<0x41> <0xE2> <0x0A><unk> <pad>",
    "<s>", "</s>", "<s>the</s> the <s> the", "the<s>the", "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|> <|endoftext",
    "<|im_start|>user\nthe<|im_end|>\n<|im_start|> the <|im_end|>",
    "<extra_id_0> the <extra_id_1>the",
    " " * 70 + "the" + "\n" * 40 + " " * 3 + "\t" * 9,
    "the" * 40 + " " + "=" * 90 + "e\u0301" * 40,
    "\U0001f600" * 20 + "\u6f22" * 60,
    # Tokens that take white space along, or are white space.
    "the \n<|im_start|>\u3000 the\t<|im_end|>\u00a0\n  <|im_start|> <|im_end|>  ", "<|im_start|>", " <|im_start|> ",
    "</s>  the </s>\n\n</s><s>  </s>", "the  the   the    the\n\n\n  \t\tthe  e\u0301  \u0301  ",
    # Characters of Unicode 15 to 16.
    "\U0001faf8 \U0001f6dc\U0001fae8a \u1c89\u1c8a \ua7cb\ua7cc \U00010d50\U00010d70 \U00031350\U0002ebf0x \U0001e4d0 \U00011f02",
    # Marks and letters that came after Unicode 9, by which tokenizers normalizes.
    "x\U00010f4c\U00010f46 \u0301\U00010f4d\u0316\u0301\u0316 a\u0897\u0316 \u32ff \U0001fbf3 e\u08d3abcdefghij\u0301 e\u0301\u1abf\u0301",
    "9\U00011f50\U00010d40 +\U00010d8e !\u1b4e!\U00011f43 \u0897a \u31e4\u2ffc-\u2427",
]


def byte_level(pattern, size, special, normalizer=None, pre_tokenizer=None, alphabet=None, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern == GPT2
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
            ]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet or pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def characters(normalizer, pre_tokenizer, decoder, added):
    """BPE over characters with tokens of bytes, as sentencepiece learns it."""
    learnt = Tokenizer(models.BPE(unk_token="<unk>"))
    learnt.normalizer = normalizers.Replace(" ", BLANK)
    learnt.pre_tokenizer = pre_tokenizers.Split(BLANK, behavior="merged_with_next")
    # No characters of every script: bytes stand in for them.
    common = [line for line in CORPUS if max(map(ord, line)) < 0x500]
    trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False)
    learnt.train_from_iterator([" " + line for line in common], trainer)
    model = json.loads(learnt.to_str())["model"]
    vocabulary = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    # As in Llama 2: characters come behind what is merged of them.
    vocabulary += sorted(model["vocab"], key=lambda token: (len(token) == 1, model["vocab"][token]))
    # Runs of blanks, with the merges that make them.
    merges = [[BLANK, BLANK], [BLANK * 2, BLANK * 2]] + model["merges"]
    vocabulary += [BLANK * 2, BLANK * 4]
    tokenizer = Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(vocabulary)},
            [tuple(merge) for merge in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(added)
    return tokenizer


def model_of_sentencepiece(rules):
    """Pieces, scores and the map of characters of a Unigram model."""
    with open("/tmp/rules.tsv", "w") as file:
        for source, target in rules:
            file.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n")),
        model_writer=out, vocab_size=260, model_type="unigram", hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, normalization_rule_tsv="/tmp/rules.tsv", minloglevel=2, character_coverage=0.98,
    )
    model = out.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(processor.get_piece_size())]
    return pieces, charsmap(model)


def fields(data):
    """The fields of a protocol buffer."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            size = number()
            yield key >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[key & 7]


def charsmap(model):
    normalizer = next(value for field, value in fields(model) if field == 3)
    return next(value for field, value in fields(normalizer) if field == 2)


def rules():
    """A part of nmt_nfkc: white space, forms of Latin letters, ligatures, half-width kana, some symbols."""
    found = {c: " " for c in "\t\n\r\u00a0\u2003\u3000\u2028\u2029\u200b\ufeff"}
    found.update({chr(c): "" for c in [1, 2, 0x1B, 0x7F, 0x80, 0x9F, 0x1F]})
    ranges = [range(0xC0, 0x180), range(0xB2, 0xBF), range(0x2460, 0x246A), range(0xFB00, 0xFB05), range(0xFF21, 0xFF5B),
              range(0xFF66, 0xFF9E), [0x2122, 0x2026, 0x2025, 0x33A1, 0x212B, 0x2126, 0xA8, 0x37A, 0x958]]
    for code in (code for span in ranges for code in span):
        composed = unicodedata.normalize("NFKC", chr(code))
        if composed != chr(code):
            found[chr(code)] = composed
        decomposed = unicodedata.normalize("NFKD", chr(code))
        if decomposed != composed:
            found[decomposed] = composed
    return sorted(found.items())


def unigram(pieces, normalizer, pre_tokenizer, decoder, unk_id, byte_fallback, special):
    tokenizer = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], unk_id, byte_fallback))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(special)
    return tokenizer


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    sequence = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    prepend = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    ends = ["<unk>", "<s>", "</s>"]
    im = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made = {
        "gpt2": byte_level(GPT2, 360, ["<|endoftext|>"]),
        "llama3": byte_level(LLAMA3, 360, ["<|begin_of_text|>", "<|endoftext|>"], ignore_merges=True),
        "qwen2": byte_level(QWEN2, 360, im, normalizers.NFC()),
        "qwen2_nfkc": byte_level(QWEN2, 330, im, normalizers.NFKC()),
        "llama2": characters(prepend, None, sequence, ends),
        # Older files say that these are normalized.
        "llama2_older": characters(prepend, None, sequence, [AddedToken(t, normalized=True, special=True) for t in ends]),
        "mistral": characters(
            None, pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False), sequence, ends
        ),
        "metaspace_always": characters(
            None, pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=True),
            decoders.Metaspace(BLANK, prepend_scheme="always"), ends,
        ),
    }
    # Vocabularies without all bytes, as of SmolLM2 and Pythia: they drop the others, or have a token for them.
    some = sorted(pre_tokenizers.ByteLevel.alphabet())[:200]
    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made["smollm2"] = byte_level(GPT2, 300, im, pre_tokenizer=digits, alphabet=some)
    made["unknown_bytes"] = byte_level(GPT2, 300, im, alphabet=some)
    made["pythia"] = byte_level(GPT2, 300, ["<|endoftext|>"], normalizers.NFC(), alphabet=some)
    made["pythia"].add_tokens([AddedToken(" " * count, normalized=True) for count in range(4, 1, -1)])
    # Phi-4's tokens take the white space on both sides along, those of Phi-3 the one behind them.
    removed = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    both = [AddedToken(t, lstrip=True, rstrip=True, normalized=False, special=True) for t in im]
    made["phi4"] = byte_level(LLAMA3, 300, both, pre_tokenizer=removed)
    right = [AddedToken(t, rstrip=t in ("</s>", "<|im_end|>"), normalized=False, special=True) for t in ends + im]
    made["phi3"] = characters(prepend, None, sequence, right)
    # Gemma's pre-tokenizer splits by the blanks that its normalizer has replaced.
    made["gemma"] = characters(
        normalizers.Replace(" ", BLANK),
        pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False),
        decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]),
        ends + ["<bos>"],
    )
    made["gemma"].add_tokens([AddedToken(t, normalized=False) for t in ("\n\n", "\n\n\n", BLANK * 3, "<table>")])
    # A token that users add is looked for in the normalized text.
    made["qwen2_nfkc"].add_tokens([AddedToken("ca\ufb01\u0301", normalized=True, special=False)])
    pieces, characters_map = model_of_sentencepiece(rules())
    precompiled = normalizers.Precompiled(characters_map)
    metaspace = pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=True)
    back = decoders.Metaspace(BLANK, prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"]
    made["t5"] = unigram(
        pieces, precompiled, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]), back, 2, False, special
    )
    made["t5_newer"] = unigram(
        pieces,
        normalizers.Sequence([precompiled, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), BLANK)]),
        metaspace, back, 2, False, special,
    )
    bytes_behind = pieces + [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    made["unigram_bytes"] = unigram(bytes_behind, prepend, metaspace, sequence, 2, True, special)

    vectors = {"tokenizers_version": tokenizers.__version__, "texts": TEXTS, "ids": {}, "decoded": {}}
    for name, tokenizer in made.items():
        path = os.path.join(OUT, name + ".json")
        content = json.loads(tokenizer.to_str())
        if name == "unknown_bytes":
            content["model"] |= {"unk_token": "!", "fuse_unk": True}
        with open(path, "w") as file:
            json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
        read = Tokenizer.from_file(path)
        encoded = [read.encode(text, add_special_tokens=False).ids for text in TEXTS]
        vectors["ids"][name] = encoded
        vectors["decoded"][name] = [read.decode(ids, skip_special_tokens=False) for ids in encoded]
    with open(os.path.join(OUT, "vectors.json"), "w") as file:
        json.dump(vectors, file, separators=(",", ":"))
        file.write("\n")

    # The vocabulary of qwen2 in its two files.
    folder = os.path.join(OUT, "qwen2_files")
    os.makedirs(folder)
    data = json.loads(made["qwen2"].to_str())
    with open(os.path.join(folder, "vocab.json"), "w") as file:
        json.dump(data["model"]["vocab"], file, separators=(",", ":"))
    with open(os.path.join(folder, "merges.txt"), "w") as file:
        file.write("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in data["model"]["merges"]))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        added = {
            str(token["id"]): {key: token[key] for key in token if key != "id"} for token in data["added_tokens"]
        }
        json.dump(
            {"add_prefix_space": False, "added_tokens_decoder": added, "eos_token": "<|im_end|>",
             "tokenizer_class": "Qwen2Tokenizer"}, file, indent=2,
        )


if __name__ == "__main__":
    main()
