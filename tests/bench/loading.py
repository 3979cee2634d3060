#!/usr/bin/env python3
"""Loading of batches against the way of nanoGPT's train.py: random crops of a numpy memmap, stacked as torch tensors.

Both read the same uint16 file, batches of the same size, alternating in one run. nanoGPT opens the memmap anew for each
batch and converts each row by itself.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

PEER = """
import sys, time
import numpy, torch
path, rows, length, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(1)
def batch():
    data = numpy.memmap(path, dtype=numpy.uint16, mode="r")
    places = torch.randint(len(data) - length, (rows,))
    x = torch.stack([torch.from_numpy(data[i:i + length].astype(numpy.int64)) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + length].astype(numpy.int64)) for i in places])
    return x, y
batch()
begin = time.perf_counter()
for _ in range(batches):
    batch()
print((time.perf_counter() - begin) / batches * 1e6)
"""


def numbers(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed: {result.stderr.strip()}")
    return [float(line) for line in result.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="build/bin/loading")
    parser.add_argument("--peer-python", required=True, help="a Python that has torch and numpy")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
        path = os.path.join(folder, "tokens.bin")
        with open(path, "wb") as file:
            for _ in range(arguments.megabytes):
                file.write(os.urandom(1_000_000))
        print(f"A file of {arguments.megabytes} MB in the system's cache, {arguments.batches} batches, "
              f"median of {arguments.rounds} rounds, microseconds a batch\n")
        print("| rows | tokens a row | loader | a step waits, with loading ahead | nanoGPT | nanoGPT / loader |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for rows, length in ((4, 256), (12, 1024), (8, 4096)):
            ours, waits, peers = [], [], []
            for _ in range(arguments.rounds):
                made, waited = numbers([arguments.program, path, rows, length, arguments.batches])
                ours.append(made)
                waits.append(waited)
                peers.append(numbers([arguments.peer_python, "-c", PEER, path, rows, length, arguments.batches])[0])
            ours, waits, peers = map(statistics.median, (ours, waits, peers))
            print(f"| {rows} | {length} | {ours:.1f} | {waits:.1f} | {peers:.1f} | {peers / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
