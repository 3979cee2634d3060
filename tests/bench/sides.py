"""The two sides of the comparison: fsdp-train and the PyTorch peer, on the same model, weights and tokens."""
import array
import concurrent.futures
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import RunFailed, run_group

HERE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    sequence: int
    architecture: str = "llama"
    kv_heads: int = 0  # 0: as many as heads
    tied: bool = False  # the head uses the embedding's weight

    def key_width(self):
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    def multiplied(self):
        """Weights that every token meets: the embedding table is looked up."""
        matrices, others = (3, 2) if self.architecture == "llama" else (2, 13)  # norms and biases
        block = 2 * self.hidden * (self.hidden + self.key_width()) + matrices * self.hidden * self.intermediate + others * self.hidden
        return self.layers * block + self.hidden + self.vocabulary * self.hidden

    def parameters(self):
        """As near as figures need it."""
        looked_up = self.sequence if self.architecture == "gpt2" else 0 if self.tied else self.vocabulary
        return self.multiplied() + looked_up * self.hidden

    def training_flops_per_token(self):
        """As lib/model/nn/decoder.h has it."""
        return 6.0 * self.multiplied() + 12.0 * self.layers * self.hidden * self.sequence


MODELS = {
    "small": Model(8, 512, 8, 1376, 4096, 256),
    "quickstart": Model(4, 256, 8, 688, 256, 256),
    "135m": Model(30, 576, 9, 1536, 13824, 256),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What both sides are given."""
    model: str
    ranks: int
    dtype: str  # fp32, bf16
    sequences: int  # a rank and step
    steps: int
    warmup: int  # steps that are not counted
    threads: int  # a rank
    offload: bool = False  # shards, gradients and optimizer in host memory


@dataclasses.dataclass
class Run:
    seconds: list  # of the steps after the warm-up
    losses: list  # of all steps
    first_step_s: float  # from the start of the processes to the end of the first step
    peak_mib: float
    cpu_s: float  # of a rank, from start to end
    faults: float = None  # minor page faults of rank 0, a step after the warm-up; ours only
    waiting: float = None  # share of the steps in which the ranks waited for communication; traced runs only
    gpu_mib: float = None  # most memory of tensors on rank 0's GPU
    gpu_reserved_mib: float = None  # most that its allocator took from the GPU


def write_tokens(path, vocabulary, count):
    """Half of the tokens follow from the one before, half are drawn: there is something to learn, and the loss
    stays far enough from 0 to be compared relatively."""
    source, tokens = random.Random(1234), array.array("H")
    token = 0
    for _ in range(count):
        draw = source.random()
        token = (7 * token + 3) % vocabulary if draw < 0.5 else int(vocabulary * (2.0 * draw - 1.0) ** 2)
        tokens.append(token)
    if sys.byteorder == "big":
        tokens.byteswap()
    path.write_bytes(tokens.tobytes())


class Sides:
    """Makes tokens and first weights of a model once, in `work`, and runs either side on them."""

    def __init__(self, train_program, peer_python, work, overrides, models=None, device="cpu", environment=None):
        self.train_program, self.peer_python, self.work = str(train_program), str(peer_python), Path(work)
        self.overrides, self.device = overrides, device
        self.models = MODELS if models is None else models
        self.environment = environment or {}  # of the runs of both
        self.peer_environment = {"TMPDIR": str(work), "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor")}

    def tokens(self, model):
        path = self.work / f"{model}.tokens.bin"
        if not path.exists():
            write_tokens(path, self.models[model].vocabulary, 1024 * self.models[model].sequence + 1)
        return path

    def forget(self, model):
        """Gives back the disk space of a model's weights."""
        (self.work / f"{model}.safetensors").unlink(missing_ok=True)

    def weights(self, model):
        """Random weights that the peer writes before its first step; what both sides read is the same to the bit."""
        path = self.work / f"{model}.safetensors"
        if not path.exists():
            needed, free = 4 * self.models[model].parameters(), shutil.disk_usage(self.work).free
            if free < needed:
                raise RunFailed(f"the weights of {model} need {needed >> 20} MiB in {self.work}, where {free >> 20} "
                                "MiB are free; name a larger folder with TMPDIR")
            command = [*self.peer_command(model), "--engine", "none", "--steps", "0", "--save", str(path)]
            run_group(command, 1, 1, self.work, environment=self.peer_environment)
        return path

    def peer_command(self, model):
        m = self.models[model]
        return [self.peer_python, str(HERE / "torch_peer.py"), "--layers", str(m.layers), "--dim", str(m.hidden),
                "--heads", str(m.heads), "--kv-heads", str(m.kv_heads or m.heads), "--ffn", str(m.intermediate),
                "--vocab", str(m.vocabulary), "--seq", str(m.sequence), "--architecture", m.architecture,
                "--device", self.device, *(["--tie"] if m.tied else [])]

    def run_peer(self, setting, flags, stored_weights=True):
        """Without stored weights it draws its own."""
        command = [*self.peer_command(setting.model), "--data", str(self.tokens(setting.model)),
                   "--batch", str(setting.sequences),
                   "--steps", str(setting.steps), "--warmup", str(setting.warmup), "--threads", str(setting.threads),
                   "--dtype", setting.dtype, *(["--offload"] if setting.offload else []), *flags]
        if stored_weights:
            command += ["--init", str(self.weights(setting.model))]
        return self.run_of(run_group(command, setting.ranks, setting.threads, self.work,
                                     environment={**self.peer_environment, **self.environment}), setting)

    @staticmethod
    def run_of(group, setting):
        """What a peer has printed: an object a step and one of the whole run."""
        steps = [(at, json.loads(line)) for at, line in group.lines if line.startswith('{"step"')]
        if len(steps) != setting.steps:
            raise RunFailed(f"the peer printed {len(steps)} of {setting.steps} steps")
        summary = next(json.loads(line) for _, line in group.lines if line.startswith('{"engine"'))
        return Run(seconds=[step["seconds"] for _, step in steps[setting.warmup:]],
                   losses=[step["loss"] for _, step in steps], first_step_s=steps[0][0], peak_mib=group.peak_mib,
                   cpu_s=group.cpu_s, gpu_mib=summary.get("peak_cuda_mib"), gpu_reserved_mib=summary.get("peak_cuda_reserved_mib"))

    def more_config(self, setting):
        """Sections that our_config() lacks."""
        return ""

    def our_config(self, setting, stored_weights=True):
        m = self.models[setting.model]
        on_host = "true" if setting.offload else "false"
        weights = json.dumps(str(self.weights(setting.model)) if stored_weights else "")
        param_dtype = "bfloat16" if setting.dtype == "bf16" else "float32"
        return f"""
[model]
architecture = "{m.architecture}"
vocab_size = {m.vocabulary}
hidden_size = {m.hidden}
intermediate_size = {m.intermediate}
num_hidden_layers = {m.layers}
num_attention_heads = {m.heads}
{f"num_key_value_heads = {m.kv_heads}" if m.kv_heads else ""}
max_position_embeddings = {m.sequence}
tie_word_embeddings = {"true" if m.tied else "false"}
init_from = {weights}
[data]
train = [{json.dumps(str(self.tokens(setting.model)))}]
sequence_length = {m.sequence}
micro_batch_size = {setting.sequences}
shuffle = false
[training]
steps = {setting.steps}
device = "{self.device}"
{self.more_config(setting)}
[fsdp]
wrap_stages = ["block"]  # and the rest is one unit more, as the peer has it
min_num_params = {10**15}
cpu_offload = {on_host}
move_grads_to_cpu = {on_host}
[mixed_precision]
param_dtype = "{param_dtype}"
[checkpoint]
interval_steps = 0
save_at_end = false
resume = "never"
"""

    def run_ours(self, setting, trace=False, overrides=(), stored_weights=True):
        """One group of setting.ranks. A traced run also says how long its ranks waited for communication.
        Without stored weights fsdp-train draws its own, which are the same at each run."""
        folder = Path(tempfile.mkdtemp(prefix="ours-", dir=self.work))
        (folder / "config.toml").write_text(self.our_config(setting, stored_weights), encoding="utf-8")
        extra = ["logging.trace_communication=true"] if trace else []
        command = [self.train_program, str(folder / "config.toml"), *self.overrides, f"run.output_dir={folder}/run",
                   *overrides, *extra]
        group = run_group(command, setting.ranks, setting.threads, folder, environment=self.environment)
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = [line for line in lines if "step_seconds" in line]
        first = next((at for at, line in group.lines if line.startswith("step 1/")), None)
        if len(steps) != setting.steps or first is None:
            raise RunFailed(f"fsdp-train wrote {len(steps)} of {setting.steps} steps")
        run = Run(seconds=[step["step_seconds"] for step in steps[setting.warmup:]],
                  losses=[step["loss"] for step in steps], first_step_s=first, peak_mib=group.peak_mib,
                  cpu_s=group.cpu_s)
        if "gpu_peak_allocated_bytes" in steps[-1]:
            run.gpu_mib = steps[-1]["gpu_peak_allocated_bytes"] / 2**20
            run.gpu_reserved_mib = steps[-1]["gpu_peak_reserved_bytes"] / 2**20
        if setting.warmup > 0:
            counted = steps[-1]["minor_faults"] - steps[setting.warmup - 1]["minor_faults"]
            run.faults = counted / (setting.steps - setting.warmup)
        if trace:
            run.waiting = sum(waited_s(folder / f"run/trace.rank{rank}.jsonl", setting.warmup)
                              for rank in range(setting.ranks)) / setting.ranks / sum(run.seconds)
        shutil.rmtree(folder)
        return run

    def run_ours_alone(self, setting):
        """As many worlds of one at once as the setting has ranks: the same load on caches, memory and cores, and
        nothing to communicate (but each updates all of the parameters, not a part)."""
        alone = dataclasses.replace(setting, ranks=1)
        with concurrent.futures.ThreadPoolExecutor(setting.ranks) as pool:
            runs = list(pool.map(lambda _: self.run_ours(alone), range(setting.ranks)))
        return Run(seconds=[s for run in runs for s in run.seconds], losses=[],
                   first_step_s=max(run.first_step_s for run in runs), peak_mib=max(run.peak_mib for run in runs),
                   cpu_s=sum(run.cpu_s for run in runs) / len(runs))

    def our_dry_run(self, config, world_size, *overrides):
        """What `fsdp-train --dry-run` measures of one rank of such a world, and the plan beside it."""
        command = [self.train_program, str(config), *overrides, f"training.device={self.device}", "--dry-run", "--json",
                   "--world-size", str(world_size)]
        group = run_group(command, 1, len(os.sched_getaffinity(0)), self.work)
        lines = [line for _, line in group.lines]
        return json.loads("\n".join(lines[lines.index("{"):]))

    def gemm_rates(self, threads, processes=1):
        """Of one of so many processes that measure at once."""
        command = [self.peer_python, str(HERE / "gemm_rate.py"), str(threads), self.device]
        environment = {**os.environ, **self.peer_environment}
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
        outputs = [process.communicate()[0] for process in started]
        for process in started:
            if process.returncode != 0:
                raise RunFailed(f"gemm_rate.py ended with {process.returncode}")
        rates = [json.loads(output) for output in outputs]
        return {dtype: sum(rate[dtype] for rate in rates) / processes for dtype in rates[0]}


def waited_s(trace, warmup):
    """Seconds that a rank waited for collectives after the warm-up (lib/comm/events/trace_event.h)."""
    total = 0.0
    for line in trace.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["step"] > warmup and "wait_us" in event and "done_us" in event:
            total += max(0.0, event["done_us"] - event["wait_us"])
    return total / 1e6
