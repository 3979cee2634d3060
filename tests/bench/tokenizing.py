#!/usr/bin/env python3
"""Tokenizing by byte-level BPE against PyPI's tokenizers: the same text, the same ids, one run.

The vocabulary is a tokenizer.json, by default one that tokenizers learns from the text. The text is repeated to
--megabytes. Both sides are timed as a whole, from the text in memory's cache to ids, the programs' start apart:
fsdp-data reads a file and writes a token file; the peer encodes the lines of a list, by encode_batch_fast (without
offsets), which is how it uses several threads.
"""

import argparse
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEER = """
import sys, time
import tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8", newline="").read()
size = 1 << 16
parts, begin = [], 0
while begin < len(text):
    end = text.rfind("\\n", begin, begin + size)
    end = len(text) if end <= begin else end
    parts.append(text[begin:end])
    begin = end
begin = time.perf_counter()
count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(parts, add_special_tokens=False))
print(time.perf_counter() - begin, count)
"""

LEARN = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train([sys.argv[2]], trainers.BpeTrainer(vocab_size=int(sys.argv[3]), show_progress=False,
    special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save(sys.argv[1])
"""


def output(command, **environment):
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed: {result.stderr.strip()}")
    return result.stdout


def seconds(command):
    begin = time.perf_counter()
    output(command)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="fsdp-data")
    parser.add_argument("--peer-python", required=True, help="a Python that has tokenizers")
    parser.add_argument("--texts", required=True, help="folder of .txt files")
    parser.add_argument("--tokenizer", help="a tokenizer.json; default: learnt, 8,000 tokens")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
        one = b"".join(open(path, "rb").read() for path in sorted(glob.glob(os.path.join(arguments.texts, "*.txt"))))
        text, few = os.path.join(folder, "text"), os.path.join(folder, "few")
        with open(text, "wb") as file:
            for _ in range(max(1, arguments.megabytes * 1_000_000 // len(one))):
                file.write(one)
        with open(few, "wb") as file:
            file.write(one[:1000])
        tokenizer = arguments.tokenizer
        if not tokenizer:
            tokenizer = os.path.join(folder, "tokenizer.json")
            output([arguments.peer_python, "-c", LEARN, tokenizer, text, "8000"])
        megabytes = os.path.getsize(text) / 1e6
        version = output([arguments.peer_python, "-c", "import tokenizers; print(tokenizers.__version__)"]).strip()
        name = os.path.basename(arguments.tokenizer) if arguments.tokenizer else "learnt, 8,000 tokens"
        print(f"Byte-level BPE ({name}), {megabytes:.0f} MB of text, tokenizers {version}, "
              f"median of {arguments.repetitions}\n")
        print("| threads | fsdp-data | tokenizers | ratio |\n| ---: | ---: | ---: | ---: |")
        for threads in arguments.threads:
            ours, peers = [], []

            def command(source):
                return [arguments.program, "tokenize", source, "--tokenizer", tokenizer, "--output",
                        os.path.join(folder, "out.bin"), "--document-separator", "none", "--threads", str(threads)]

            for _ in range(arguments.repetitions):
                start = seconds(command(few))
                ours.append(seconds(command(text)) - start)
                peer = output([arguments.peer_python, "-c", PEER, tokenizer, text],
                              RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM=str(threads > 1).lower())
                peers.append(float(peer.split()[0]))
            ours_median, peers_median = statistics.median(ours), statistics.median(peers)
            print(f"| {threads} | {megabytes / ours_median:.1f} MB/s | {megabytes / peers_median:.1f} MB/s "
                  f"| {peers_median / ours_median:.1f} |", flush=True)


if __name__ == "__main__":
    main()
