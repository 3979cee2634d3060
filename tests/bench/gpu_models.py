"""The models of the benchmark on GPUs, and the largest llama that a GPU has room for."""
import dataclasses
import json
import subprocess

from ranks import RunFailed
from sides import Model, Setting

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is measured on a kind of device."""
    models: dict
    sequences: dict  # a rank and step; of "largest" too
    families: list  # (from this many GiB on, a model whose number of blocks is looked for)
    plans: list  # (what it is, config, ranks, overrides): one rank of each is measured


ON_GPUS = Choice(
    models={"gpt2-124m": Model(12, 768, 12, 3072, 50257, 2048, "gpt2", tied=True),
            "llama-1.3b": Model(24, 2048, 16, 5504, 32000, 2048)},
    sequences={"gpt2-124m": 8, "llama-1.3b": 4, "largest": 1},
    families=[(32, Model(0, 4096, 32, 11008, 32000, 2048)),
              (8, Model(0, 2048, 16, 5504, 32000, 2048)),
              (0, Model(0, 1024, 16, 2816, 32000, 2048))],
    plans=[("13 billion parameters over 8 GPUs", "configs/plan/13b.toml", 8, []),
           ("175 billion over 128", "configs/plan/175b.toml", 128, []),
           ("a trillion over 256, offloaded", "configs/plan/1t.toml", 256, [])])

# The same at a size for a trial without a GPU.
ON_THE_CPU = Choice(
    models={"tiny-gpt2": Model(2, 64, 4, 256, 512, 64, "gpt2", tied=True), "tiny-llama": Model(2, 64, 4, 172, 512, 64)},
    sequences={"tiny-gpt2": 2, "tiny-llama": 2, "largest": 1},
    families=[(0, Model(0, 512, 8, 1376, 512, 64))],
    plans=[("the quickstart's model over 8 ranks", "configs/quickstart.toml", 8, []),
           ("the same over 64, offloaded", "configs/quickstart.toml", 64, ["fsdp.cpu_offload=true"])])


def halving(fits, low, high):
    """The largest number for which fits(), which it does at `low` and not at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def most_that_fits(fits, start, more=4):
    """The largest number for which fits(), looked for from `start` on; and whether one more was seen not to fit
    (after `more` steps up, nothing larger is tried). 0: not even 1 does."""
    if not fits(start):
        return halving(fits, 0, start), True
    for number in range(start, start + more):
        if not fits(number + 1):
            return number, True
    return start + more, False


class LargestLlama:
    """How many blocks of a family's width each side has room for in `limit_bytes` of a rank's memory: first by
    fsdp-plan's formula, and from there on by trying."""

    def __init__(self, sides, plan_program, choice, limit_bytes, setting):
        self.sides, self.plan_program, self.limit_bytes = sides, str(plan_program), limit_bytes
        self.family = next(model for least, model in choice.families if limit_bytes >= least * GIB)
        self.setting = setting  # of a trial; for any model

    def of(self, blocks):
        """The setting for so many blocks, whose model the sides know from now on."""
        name = f"llama-{blocks}-blocks"
        self.sides.models[name] = dataclasses.replace(self.family, layers=blocks)
        return dataclasses.replace(self.setting, model=name)

    def config(self, blocks):
        path = self.sides.work / "largest.toml"
        path.write_text(self.sides.our_config(self.of(blocks), stored_weights=False), encoding="utf-8")
        return path

    def planned(self):
        def fits(blocks):
            command = [self.plan_program, str(self.config(blocks)), "--world-size", str(self.setting.ranks), "--json"]
            output = subprocess.run(command, capture_output=True, text=True)
            if output.returncode != 0:
                raise RunFailed(f"'{self.plan_program}' ended with {output.returncode}:\n  {output.stderr.strip()}")
            return json.loads(output.stdout)["memory"]["device_peak_bytes"] <= self.limit_bytes

        low, high = 0, 1
        while fits(high):
            low, high = high, 2 * high
        return halving(fits, low, high)

    def ours(self, start):
        return most_that_fits(self.tried(self.our_bytes), start)

    def peers(self, start, flags):
        return most_that_fits(self.tried(lambda blocks: self.peer_bytes(blocks, flags)), start)

    def tried(self, bytes_of):
        def fits(blocks):
            try:
                return bytes_of(blocks) <= self.limit_bytes
            except RunFailed as failure:
                if failure.out_of_memory():
                    return False
                raise
        return fits

    def our_bytes(self, blocks):
        measured = self.sides.our_dry_run(self.config(blocks), self.setting.ranks)["measured"]
        return measured.get("gpu_reserved_bytes", measured["peak_bytes"])

    def peer_bytes(self, blocks, flags):
        run = self.sides.run_peer(self.of(blocks), flags, stored_weights=False)
        return (run.gpu_reserved_mib or run.peak_mib) * 2**20


def trial_setting(ranks, sequences, threads):
    return Setting("largest", ranks, "bf16", sequences, steps=2, warmup=1, threads=threads)
