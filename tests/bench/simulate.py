#!/usr/bin/env python3
"""Steps of fsdp-plan --simulate against measured ones: real runs of this machine over shared memory and over gloo between
network namespaces whose links are slowed down, and published speeds of others (published_steps.json).

Calibration measures the machine (fsdp-train doctor --calibrate): compute with a process for each core, links with as many
processes as a run has over them, anew in each round, since the speed of a machine that others share changes. No run of the comparison is used for it. Of published speeds one row of each table is. --published compares these alone, which needs neither
measurements nor namespaces; runs over gloo need root and iproute2 with tc.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

from mpi import Hosts
from ranks import free_port, rank_environment
from results import describe_machine, replace_section

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
TOLERANCE, PUBLISHED_TOLERANCE = 0.05, 0.15
STEPS, WARM_UP = 14, 4


@dataclasses.dataclass(frozen=True)
class Links:
    """Of a host to the others; none: all ranks are on one host and share memory."""
    mbit: int = 0
    delay_ms: int = 0

    def __str__(self):
        return f"gloo, {self.mbit} Mbit/s, {self.delay_ms} ms" if self.mbit else "shm"


SHM, FAST, SLOW, FAR = Links(), Links(2000), Links(400), Links(1000, 3)
SMALL = {"model.hidden_size": 384, "model.intermediate_size": 1024, "model.num_hidden_layers": 4, "model.num_attention_heads": 6}
WIDE = {"model.hidden_size": 768, "model.intermediate_size": 2048, "model.num_hidden_layers": 3, "model.num_attention_heads": 12}
DEEP = {"model.hidden_size": 256, "model.intermediate_size": 688, "model.num_hidden_layers": 12, "model.num_attention_heads": 4}
NO_PREFETCH = {"fsdp.forward_prefetch": "none", "fsdp.backward_prefetch": "none"}
# (links, ranks, model, what differs from the defaults)
RUNS = [
    (SHM, 2, SMALL, {}), (SHM, 2, WIDE, {}), (SHM, 2, DEEP, {}), (SHM, 4, SMALL, {}), (SHM, 8, SMALL, {}),
    (SHM, 2, WIDE, {"mixed_precision.param_dtype": "bfloat16"}),
    (SHM, 4, DEEP, {"fsdp.strategy": "shard_grad_op"}),
    (SHM, 2, SMALL, {"training.gradient_accumulation_steps": 4, "training.no_sync": True}),
    (FAST, 2, SMALL, {}), (FAST, 2, WIDE, {"fsdp.backward_prefetch": "post"}), (FAST, 4, DEEP, {}),
    (FAST, 2, DEEP, {"fsdp.forward_prefetch": "explicit", "fsdp.limit_all_gathers": False}),
    (SLOW, 2, SMALL, {}), (SLOW, 2, SMALL, NO_PREFETCH), (SLOW, 4, SMALL, {"fsdp.backward_prefetch": "post"}),
    (SLOW, 2, WIDE, {"fsdp.strategy": "no_shard"}), (SLOW, 8, SMALL, {}),
    (FAR, 2, DEEP, {}), (FAR, 4, DEEP, {"fsdp.forward_prefetch": "explicit", "fsdp.limit_all_gathers": False}),
    (FAR, 4, SMALL, NO_PREFETCH),
]


def name_of(ranks, model, keys):
    size = {id(SMALL): "small", id(WIDE): "wide", id(DEEP): "deep"}[id(model)]
    differs = ", ".join(f"{key.partition('.')[2]} {str(value).lower()}" for key, value in keys.items())
    return f"{ranks} ranks, {size}{', ' if differs else ''}{differs}"


class SlowHosts(Hosts):
    """Network namespaces whose links send so many bits a second, and with a delay pass them on later."""

    def __init__(self, count, links, programs):
        super().__init__(count)
        self.links, self.programs, self.hub = links, programs, None

    def __enter__(self):
        super().__enter__()
        try:
            for name in self.names:
                subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                                f"{self.links.mbit}mbit", "burst", f"{max(66, self.links.mbit // 8)}kb", "latency", "200ms"], check=True)
            if self.links.delay_ms:
                hub = f"{self.prefix}hub"
                for i in range(len(self.names)):
                    subprocess.run(["ip", "-n", hub, "link", "set", f"port{i}", "nomaster"], check=True)
                self.hub = subprocess.Popen(["ip", "netns", "exec", hub, str(self.programs / "packet_hub"), str(len(self.names)),
                                             str(self.links.delay_ms)], stdout=subprocess.PIPE)
                if not self.hub.stdout.readline():
                    raise RuntimeError(f"expected {self.programs}/packet_hub to run, found that it ended; build the target packet_hub")
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.hub:
            self.hub.kill()
            self.hub.wait()
        super().__exit__()


class Bench:
    def __init__(self, programs, folder):
        self.programs, self.folder = pathlib.Path(programs).resolve(), folder
        tokens = folder / "tokens.bin"
        tokens.write_bytes(b"".join(struct.pack("<H", (i * i + 7 * i) % 997) for i in range(200000)))
        self.keys = {"model.vocab_size": 1000, "model.max_position_embeddings": 256, "data.train": [str(tokens)],
                     "data.sequence_length": 256, "data.micro_batch_size": 2, "training.steps": STEPS, "training.device": "cpu",
                     "run.output_dir": str(folder / "run"), "checkpoint.interval_steps": 0, "checkpoint.save_at_end": False,
                     "logging.peak_tflops": 1, "fsdp.min_num_params": 100000}
        self.cores = len(os.sched_getaffinity(0))

    def config(self, keys):
        sections = {}
        for name, value in {**self.keys, **keys}.items():
            section, key = name.split(".")
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}\n")
        path = self.folder / "config.toml"
        path.write_text("".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items()))
        return str(path)

    def launch(self, links, ranks, arguments):
        """Runs fsdp-train on so many ranks, one a host where there are links, each with one thread."""
        program = [str(self.programs / "fsdp-train"), *arguments]
        if not links.mbit:
            port = free_port()
            commands = [(program, rank_environment(rank, ranks, port, threads=1)) for rank in range(ranks)]
            return self.finish([subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                                for command, environment in commands])
        with SlowHosts(ranks, links, self.programs) as hosts:
            processes = []
            for rank in range(ranks):
                environment = rank_environment(rank, ranks, 29500, threads=1)
                environment.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=hosts.addresses[0], GLOO_SOCKET_IFNAME="eth0")
                processes.append(subprocess.Popen(hosts.on(rank, program), env=environment, stdout=subprocess.PIPE,
                                                  stderr=subprocess.STDOUT, text=True))
            return self.finish(processes)

    @staticmethod
    def finish(processes):
        texts = [process.communicate()[0] for process in processes]
        for process, text in zip(processes, texts):
            if process.returncode:
                raise SystemExit(f"a rank ended with {process.returncode}:\n{text[-3000:]}")
        return texts[0]

    def calibrate(self, links, ranks, dtype, backend=None):
        """The file of what a rank a core computes, and of the links of so many ranks."""
        compute = self.folder / f"compute-{dtype}.json"
        path = self.folder / f"{links.mbit}-{links.delay_ms}-{ranks}-{dtype}.json"
        backend = backend or ("gloo" if links.mbit else "shm")
        config = self.config({"mixed_precision.param_dtype": dtype, "comm.backend": backend})
        if not compute.exists():
            print(self.launch(SHM, self.cores, ["doctor", config, "comm.backend=shm", "--calibrate", str(compute)]), end="", flush=True)
        if not path.exists():
            shutil.copy(compute, path)
            print(self.launch(links, ranks, ["doctor", config, "--calibrate", str(path), "--links-only"]), end="", flush=True)
        return str(path)

    def forget_calibration(self):
        for path in self.folder.glob("*.json"):
            path.unlink()

    def measured(self, links, ranks, keys):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.launch(links, ranks, [self.config(keys)])
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        return statistics.median(line["step_seconds"] for line in steps if line.get("step", 0) > WARM_UP and "step_seconds" in line)

    def predicted(self, links, ranks, keys):
        calibration = self.calibrate(links, ranks, keys.get("mixed_precision.param_dtype", "float32"))
        arguments = [self.config(keys), "--world-size", str(ranks), "--calibration", calibration, "--cores-per-rank", str(self.cores / ranks)]
        if links.mbit:
            arguments += ["--gpus-per-node", "1"]
        return self.simulate(arguments)["step_seconds"]

    def simulate(self, arguments):
        result = subprocess.run([str(self.programs / "fsdp-plan"), *arguments, "--simulate", "--json"], cwd=PROJECT,
                                capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"fsdp-plan {' '.join(arguments)}\n{result.stderr}")
        return json.loads(result.stdout)


def verdict(misses, count, tolerance):
    text = f"{count - len(misses)} of {count} are within {tolerance:.0%}."
    return text + (" Misses: " + "; ".join(misses) + "." if misses else "")


def compare_runs(bench, rounds, only):
    compared = {}  # by row: how much the simulation is off, and the seconds, of each round
    for _ in range(rounds):
        bench.forget_calibration()
        for links, ranks, model, shown in RUNS:
            row = (links, name_of(ranks, model, shown))
            if only not in f"{row[0]}, {row[1]}":
                continue
            keys = {**model, **shown, "comm.backend": "gloo" if links.mbit else "shm"}
            simulated, measured = bench.predicted(links, ranks, keys), bench.measured(links, ranks, keys)
            compared.setdefault(row, []).append((simulated / measured - 1, measured, simulated))
            print(f"| {row[0]} | {row[1]} | {measured:.4f} | {simulated:.4f} | {simulated / measured - 1:+.1%} |", flush=True)
    lines, misses = ["| links | run | measured, s | simulated, s | off by |", "| --- | --- | ---: | ---: | ---: |"], []
    for (links, name), each in compared.items():
        off, measured, simulated = sorted(each)[len(each) // 2]
        of_rounds = f" ({min(each)[0]:+.1%}..{max(each)[0]:+.1%})" if len(each) > 1 else ""
        lines.append(f"| {links} | {name} | {measured:.4f} | {simulated:.4f} | {off:+.1%}{of_rounds} |")
        if abs(off) > TOLERANCE:
            misses.append(f"{links}, {name} ({off:+.1%})")
    return "\n".join([*lines, "", verdict(misses, len(compared), TOLERANCE)])


def compare_published(bench):
    data = json.loads((HERE / "published_steps.json").read_text())
    lines = ["| table | GPUs | row | published | simulated | off by |", "| --- | ---: | --- | ---: | ---: | ---: |"]
    notes, misses, count = [], [], 0
    for group in data["groups"]:
        def simulate(row, more):
            return bench.simulate([*group["config"], *row.get("config", []), "--gpus", str(row["gpus"]), *group["machines"], *more])

        def unit_of(row):
            return "hardware_tflops_per_gpu" if "hardware_tflops_per_gpu" in row else "tokens_per_second_per_gpu"

        def speed(row, result):
            if unit_of(row) == "hardware_tflops_per_gpu":
                return result["hardware_tflops_per_rank"]
            return result["tokens_per_second"] / row["gpus"]

        first = group["rows"][group["calibration"]]
        uncalibrated = simulate(first, [])
        wanted = uncalibrated["tokens_per_second"] * first[unit_of(first)] / speed(first, uncalibrated)
        scale = simulate(first, ["--measured-tokens-per-second", repr(wanted)])["compute_scale"]
        notes.append(f"- {group['name']}: {group['source']}. Assumed: {group['assumed']}. Compute takes {scale:.2f} times as long as by the data sheet.")
        for row in group["rows"]:
            if row is first:
                note = "calibration"
            else:
                note, count = "", count + 1
            simulated = speed(row, simulate(row, ["--compute-scale", repr(scale)]))
            off = simulated / row[unit_of(row)] - 1
            keys = ", ".join(word.partition(".")[2] for word in row.get("config", []) if "=" in word)
            unit = "TFLOPS" if unit_of(row) == "hardware_tflops_per_gpu" else "tokens/s"
            lines.append(f"| {group['name']} | {row['gpus']} | {keys} | {row[unit_of(row)]} {unit} | {simulated:.0f} | {note or f'{off:+.1%}'} |")
            print(lines[-1], flush=True)
            if not note and abs(off) > PUBLISHED_TOLERANCE:
                misses.append(f"{group['name']}, {row['gpus']} GPUs, {keys} ({off:+.1%})")
    left_out = ["Left out:", *(f"- {text}" for text in data["left_out"])]
    return "\n".join([*lines, "", verdict(misses, count, PUBLISHED_TOLERANCE), "", *notes, "", *left_out])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of fsdp-train and fsdp-plan")
    parser.add_argument("--published", action="store_true", help="compare published speeds alone")
    parser.add_argument("--rounds", type=int, default=3, help="each with its own calibration; the median counts")
    parser.add_argument("--only", default="", metavar="TEXT", help="compare only the runs that have it in their row")
    parser.add_argument("--write", action="store_true", help="put the figures into RESULTS.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.bin, pathlib.Path(folder))
        parts = [compare_published(bench)] if not arguments.only else []
        if not arguments.published:
            parts.insert(0, compare_runs(bench, arguments.rounds, arguments.only))
    for part in parts:
        print(f"\n{part}")
    if arguments.write and not arguments.only:
        of_rounds = f"; {arguments.rounds} rounds: the median, and in parentheses the least and the most, of how much each was off"
        heading = "## Simulated steps\n\n" + describe_machine("one thread a rank" + (of_rounds if arguments.rounds > 1 else ""))
        if not arguments.published:
            replace_section("simulate", f"{heading}\n\n{parts[0]}")
        replace_section("simulate-published", f"## Simulated steps of published tables\n\n{parts[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
