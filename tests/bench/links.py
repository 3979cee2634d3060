#!/usr/bin/env python3
"""Steps of two hosts on a slow link with several settings, one after another in the same run: seconds of a step beside those that
fsdp-plan --simulate has predicted before (unless --measured-only), and the bytes that a host has received beside those of the formula.

    scripts/bench links --rate 1gbit --delay 1ms -- '' 'fsdp.strategy=no_shard'

Each argument behind -- is a text of overrides; the first is what the others are compared with, '' the config as it is, and 'alone' a run on
each host without the other, both at the same time. Hosts are network namespaces, whose links send so many bits a second (and, with a delay,
pass them on later). With training.local_steps, a run needs a multiple of them and one more, which training.steps in its setting may say:
its last step, which exchanges what is left, does not count. Needs root and iproute2 with tc.
"""
import argparse
import ctypes
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from results import describe_machine, replace_section
from ranks import free_port, rank_environment
from sides import MODELS
from simulate import SHM, Bench, Links, SlowHosts

HOSTS = 2
ALONE = "alone"
CLONE_NEWNET = 0x40000000


def rate_in_mbit(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mg])bit", text)
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"expected a rate such as 100mbit or 1gbit; found '{text}'")
    return round(float(found[1]) * (1000 if found[2] == "g" else 1))


def delay_in_ms(text):
    found = re.fullmatch(r"(\d+)(?:ms)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected whole milliseconds such as 1ms, or 0; found '{text}'")
    return int(found[1])


def list_of(kind):
    return lambda text: [kind(part) for part in text.split(",")]


class Interface:
    """Counts the bytes that eth0 of a namespace has received, at any time later."""

    def __init__(self, namespace):
        thread = threading.Thread(target=self.open, args=(namespace,))  # only this thread enters the namespace
        self.file = None
        thread.start()
        thread.join()
        if self.file is None:
            raise SystemExit(f"cannot enter the network namespace {namespace}; run as root")

    def open(self, namespace):
        with open(f"/run/netns/{namespace}", "rb") as names:
            if ctypes.CDLL(None, use_errno=True).setns(names.fileno(), CLONE_NEWNET) == 0:
                self.file = open("/proc/thread-self/net/dev", encoding="ascii")

    def received(self):
        self.file.seek(0)
        return int(next(line for line in self.file if line.strip().startswith("eth0:")).split(":")[1].split()[0])


class StepWatch(threading.Thread):
    """Notes how much an interface has received whenever a step has been written to the metrics."""

    def __init__(self, metrics, interface):
        super().__init__(daemon=True)
        self.metrics, self.interface, self.over, self.received = metrics, interface, threading.Event(), {}

    def run(self):
        position, rest = 0, ""
        while not self.over.wait(0.01):
            try:
                with open(self.metrics, encoding="utf-8") as file:
                    file.seek(position)
                    text = file.read()
                    position = file.tell()
            except OSError:
                continue
            bytes_now = self.interface.received()
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                if "step_seconds" in line:
                    self.received[json.loads(line)["step"]] = bytes_now

    def bytes_of_step(self, after, steps):
        """Mean over the steps behind `after`."""
        return (self.received[steps] - self.received[after]) / (steps - after)


class LinkBench(Bench):
    """Runs of so many ranks on each of two hosts."""

    def __init__(self, programs, folder, model, ranks, steps, warm_up, sequences, length):
        super().__init__(programs, folder)
        self.ranks, self.steps, self.warm_up = ranks, steps, warm_up
        self.tokens = HOSTS * ranks * sequences * (length or model.sequence)
        self.received = None
        del self.keys["fsdp.min_num_params"]
        keys = {"hidden_size": model.hidden, "intermediate_size": model.intermediate, "num_hidden_layers": model.layers,
                "num_attention_heads": model.heads, "vocab_size": model.vocabulary, "max_position_embeddings": model.sequence}
        self.keys.update({f"model.{name}": value for name, value in keys.items()})
        self.keys.update({"training.steps": steps, "data.micro_batch_size": sequences, "data.sequence_length": length or model.sequence,
                          "comm.timeout_seconds": 600, "comm.backend": "hierarchical" if ranks > 1 else "gloo"})

    def launch(self, links, ranks, arguments):
        if not links.mbit:
            return super().launch(links, ranks, arguments)
        program = [str(self.programs / "fsdp-train"), *arguments]
        cores = sorted(os.sched_getaffinity(0))
        own = len(cores) // HOSTS
        # Ranks that take turns on a core measure so only where they see no more cores than their host would have.
        takes_turns = arguments[0] == "doctor" and 0 < own < self.ranks
        with SlowHosts(HOSTS, links, self.programs) as hosts:
            watch = StepWatch(self.folder / "run" / "metrics.jsonl", Interface(hosts.names[0]))
            watch.start()
            processes = []
            for rank in range(ranks):
                host, local = divmod(rank, self.ranks)
                environment = rank_environment(rank, ranks, 29500, threads=1)
                environment.update(LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(self.ranks), MASTER_ADDR=hosts.addresses[0],
                                   GLOO_SOCKET_IFNAME="eth0")
                pinned = ["taskset", "-c", ",".join(map(str, cores[host * own:][:own]))] if takes_turns else []
                processes.append(subprocess.Popen(hosts.on(host, [*pinned, *program]), env=environment, stdout=subprocess.PIPE,
                                                  stderr=subprocess.STDOUT, text=True))
            text = self.finish(processes)
            watch.over.set()
            watch.join()
            self.received = watch
            return text

    def alone(self):
        """Mean seconds of a step of runs on one host each, at the same time."""
        jobs, folders = [], []
        for host in range(HOSTS):
            folders.append(self.folder / f"alone-{host}")
            shutil.rmtree(folders[-1], ignore_errors=True)
            program = [str(self.programs / "fsdp-train"), self.config({}), f"run.output_dir={folders[-1]}", "comm.backend=auto"]
            port = free_port()
            jobs += [subprocess.Popen(program, env=rank_environment(rank, self.ranks, port, threads=1), stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True) for rank in range(self.ranks)]
        self.finish(jobs)
        return statistics.mean(self.step_seconds(folder) for folder in folders)

    def step_seconds(self, folder):
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [json.loads(line) for line in lines if "step_seconds" in line]
        # The last step of a run with local steps exchanges what is left, which a longer run does as seldom.
        last = steps[-1]["step"] if any("exchange_seconds" in line for line in steps) else steps[-1]["step"] + 1
        return statistics.mean(line["step_seconds"] for line in steps if self.warm_up < line["step"] < last)

    def predicted_plan(self, links, overrides):
        world = HOSTS * self.ranks
        words = overrides.split()
        if overrides == ALONE:
            calibration = self.calibrate(SHM, max(2, self.ranks), "float32", "shm")
            plan = self.simulate([self.config({"comm.backend": "shm"}), "--world-size", str(self.ranks), "--calibration", calibration,
                                  "--cores-per-rank", str(self.cores / world)])
            return {**plan, "bytes_from_other_hosts": 0}
        dtype = next((word.partition("=")[2] for word in words if word.startswith("mixed_precision.param_dtype=")), "float32")
        calibration = self.calibrate(links, world, dtype, self.keys["comm.backend"])
        return self.simulate([self.config({}), *words, "--world-size", str(world), "--gpus-per-node", str(self.ranks), "--calibration",
                              calibration, "--cores-per-rank", str(self.cores / world)])

    def run(self, links, overrides):
        """Mean seconds of a step, and mean bytes that a host has received in it."""
        if overrides == ALONE:
            return self.alone(), 0
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.launch(links, HOSTS * self.ranks, [self.config({}), *overrides.split()])
        steps = next((int(word.partition("=")[2]) for word in overrides.split() if word.startswith("training.steps=")), self.steps)
        steps -= "training.local_steps=" in overrides
        return self.step_seconds(self.folder / "run"), self.received.bytes_of_step(self.warm_up, steps)


def compare(bench, links, settings, rounds, place, predicts):
    predictions = {}
    for text in settings if predicts else []:
        predictions[text] = bench.predicted_plan(links, text)
        print(f"  predicted, {place}, '{text}': {predictions[text]['step_seconds']:.4f} s a step", flush=True)
    measured = {text: [] for text in settings}
    for _, text in itertools.product(range(rounds), settings):
        measured[text].append(bench.run(links, text))
    rows, first = [], None
    for text in settings:
        seconds, received = (statistics.median(values) for values in zip(*measured[text]))
        speed = bench.tokens / seconds
        first = first or speed
        row = f"| {place} | `{text or 'as it is'}` | {seconds:.3f} | {speed:.0f} | {speed / first:.2f} | {received / 1e6:.2f} |"
        if predicts:
            plan = predictions[text]
            formula = plan["bytes_from_other_hosts"]
            row += (f" {formula / 1e6:.2f} | {received / formula if formula else 0:.3f} | {plan['step_seconds']:.3f} | "
                    f"{plan['step_seconds'] / seconds - 1:+.1%} |")
        rows.append(row)
        print(row, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of fsdp-train and fsdp-plan")
    parser.add_argument("--rate", type=list_of(rate_in_mbit), default=[1000], help="of each link: 1gbit, or several: 100mbit,1gbit (1gbit)")
    parser.add_argument("--delay", type=delay_in_ms, default=0, help="one way, of each packet: 1ms (0)")
    parser.add_argument("--ranks", type=list_of(int), default=[1], help="on each host: 1, or several: 1,2 (1)")
    parser.add_argument("--models", default="29m", help=f"of {', '.join(LINK_MODELS)} (29m)")
    parser.add_argument("--steps", type=int, default=8, help="of a run (8)")
    parser.add_argument("--warm-up", type=int, default=2, help="steps that do not count (2)")
    parser.add_argument("--sequences", type=int, default=2, help="of a rank and micro-batch (2)")
    parser.add_argument("--length", type=int, default=0, help="tokens of a sequence (the model's most)")
    parser.add_argument("--rounds", type=int, default=1, help="each runs all settings; the median counts (1)")
    parser.add_argument("--measured-only", action="store_true", help="without simulation and the calibration that it needs")
    parser.add_argument("--write", action="store_true", help="put the figures into RESULTS.md")
    parser.add_argument("settings", nargs="*", metavar="OVERRIDES", help="overrides of a setting, with spaces between them")
    arguments = parser.parse_args()
    settings = arguments.settings or ["", "fsdp.strategy=no_shard"]
    unknown = [name for name in arguments.models.split(",") if name not in LINK_MODELS]
    if unknown or arguments.steps <= arguments.warm_up or arguments.warm_up < 1 or min(arguments.ranks) < 1:
        parser.error(f"expected models of {', '.join(LINK_MODELS)}, ranks, and more steps than warm-up; found {' '.join(sys.argv[1:])}")
    if len(set(settings)) != len(settings):
        parser.error("expected settings that differ")
    rows = []
    for name, ranks in itertools.product(arguments.models.split(","), arguments.ranks):
        with tempfile.TemporaryDirectory() as folder:
            bench = LinkBench(arguments.bin, Path(folder), LINK_MODELS[name], ranks, arguments.steps, arguments.warm_up, arguments.sequences,
                              arguments.length)
            for mbit in arguments.rate:
                tokens = arguments.sequences * (arguments.length or LINK_MODELS[name].sequence)
                place = f"{name}, {tokens} tokens a rank, {HOSTS} x {ranks} ranks, {mbit} Mbit/s{f', {arguments.delay} ms' if arguments.delay else ''}"
                rows += compare(bench, Links(mbit, arguments.delay), settings, arguments.rounds, place,
                                not arguments.measured_only)
    head, line = "| run | settings | s a step | tokens/s | against the first | received, MB |", "| --- | --- | ---: | ---: | ---: | ---: |"
    if not arguments.measured_only:
        head, line = f"{head} formula, MB | ratio | simulated, s | off by |", f"{line} ---: | ---: | ---: | ---: |"
    table = "\n".join([head, line, *rows])
    print(f"\n{table}")
    if arguments.write:
        rates = ", ".join(map(str, arguments.rate))
        replace_section(f"links-{rates}", f"## Two hosts on links of {rates} Mbit/s\n\n{describe_machine('one thread a rank')}\n\n{table}")
    return 0


LINK_MODELS = {"29m": MODELS["small"], "135m": MODELS["135m"]}

if __name__ == "__main__":
    sys.exit(main())
