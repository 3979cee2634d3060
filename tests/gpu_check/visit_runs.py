"""The runs of a visit: what an entry of the queue starts, and the figures that come of it."""
import dataclasses
import itertools
import json
import shlex
import statistics
import sys
from pathlib import Path

from programs import Failed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
import ledger  # noqa: E402
from gpu_models import ON_GPUS, ON_THE_CPU  # noqa: E402
from ledger_step import IN_THE_CODE, Ceilings  # noqa: E402
from sides import Setting, Sides  # noqa: E402

TRAIN = "fsdp-train {config} run.output_dir={out} {overrides}"
TINY_SEQUENCES = 2


@dataclasses.dataclass
class RunOf:
    """One run of one side."""
    side: str  # A or B
    figures: dict
    losses: list
    log: str
    begin: float = 0.0
    end: float = 0.0
    clocks: object = None


class Runs:
    """Starts what a queue asks for. `programs` are those of the builds, by name; `tiny` is for the stand-in, where a model of
    real size would only take the host's time."""

    def __init__(self, programs, models, work, peak_tflops, tiny):
        self.programs, self.work, self.peak_tflops, self.tiny = programs, Path(work), peak_tflops, tiny
        self.sides = Sides("", "", work, [], self.tiny_models(models) if tiny else models, "cuda")
        self.numbers, self.tables, self.ceilings = itertools.count(1), [], Ceilings()

    @staticmethod
    def tiny_models(models):
        tiny = {model.architecture: model for model in ON_THE_CPU.models.values()}
        return {name: tiny[model.architecture] for name, model in models.items()}

    def setting(self, entry):
        sequences = TINY_SEQUENCES if self.tiny else entry.sequences or ON_GPUS.sequences.get(entry.model, 1)
        return Setting(entry.model, 1, "bf16", sequences, entry.steps, entry.warmup, 1)

    def sizes(self, entry):
        m, setting = self.sides.models[entry.model], self.setting(entry)
        return [f"architecture={m.architecture}", f"rows={setting.sequences * m.sequence}", f"tokens={m.sequence}", f"width={m.hidden}",
                f"key_width={m.key_width()}", f"heads={m.heads}", f"inner={m.intermediate}", f"vocabulary={m.vocabulary}"]

    def config(self, entry):
        path = self.work / f"{entry.model}.{entry.sequences}.{entry.steps}.toml"
        text = self.sides.our_config(self.setting(entry), stored_weights=False)
        path.write_text(f"{text}[logging]\npeak_tflops = {self.peak_tflops:g}\n", encoding="utf-8")  # or each run would measure it
        return path

    def command(self, entry, side, out):
        programs = self.programs[side.build]
        template = TRAIN if side.command == "train" else side.command
        places = {"{bin}": programs.folder, "{out}": out, "{tests}": HERE.parent, "{python}": sys.executable}
        if "{config}" in template:
            places["{config}"] = self.config(entry)
        words = []
        for word in shlex.split(template):
            if word in ("{overrides}", "{sizes}"):
                words += side.overrides if word == "{overrides}" else self.sizes(entry)
                continue
            for place, value in places.items():
                word = word.replace(place, str(value))
            words.append(word)
        return [programs.folder / words[0] if programs.has(words[0]) else words[0], *words[1:]]

    def run(self, entry, side, name):
        """Raises Failed where it does not end as it should."""
        programs, out = self.programs[side.build], self.work / f"out-{next(self.numbers)}"
        command = self.command(entry, side, out)
        ended = programs.command(command, Path(str(command[0])).name, environment=dict(side.environment))
        if (ended.code == 0) != (entry.exits == "well"):
            wanted = "ends well" if entry.exits == "well" else "fails"
            raise Failed(f"expected a command that {wanted}; found exit code {ended.code} of '{Path(str(command[0])).name}':"
                         f"{ended.last_lines()}")
        run = RunOf(name, {"ended": 1.0, **json_figures(ended.output)}, [], ended.log)
        if out.is_dir():
            self.read_training(entry, out, run)
        self.note_ceilings(run.figures)
        return run

    def read_training(self, entry, out, run):
        run.figures["checkpoints"] = float(len(list(out.glob("step-*/manifest.json"))))
        metrics = out / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
        steps = [line for line in lines if "step_seconds" in line]
        run.losses = [step["loss"] for step in steps]
        counted = steps[entry.warmup:]
        if counted:
            rate = statistics.median(step["tokens_per_second"] for step in counted)
            run.figures.update(step_ms=1e3 * statistics.median(step["step_seconds"] for step in counted), tokens_per_second=rate,
                               loss=run.losses[-1])
            run.figures["mfu"] = rate * self.sides.models[entry.model].training_flops_per_token() / (self.peak_tflops * 1e12)
            if "gpu_peak_allocated_bytes" in counted[-1]:
                run.figures["peak_gib"] = counted[-1]["gpu_peak_allocated_bytes"] / 2**30
        if entry.trace:
            self.read_traces(entry, out, run)

    def read_traces(self, entry, out, run):
        for path in sorted(out.glob("profile.rank0.step*.json")):
            try:
                text, summary, lost_ms = ledger.read_trace(path, self.sides.models[entry.model], self.setting(entry).sequences, self.ceilings,
                                                           IN_THE_CODE)
            except ledger.NoKernels as none:
                self.tables.append(f"## {entry.name}, {run.side}\n\n{none}")
                continue
            run.figures["lost_ms"] = lost_ms
            self.tables.append(f"## {entry.name}, {run.side}\n\n{summary}\n\n{text}")

    def note_ceilings(self, figures):
        """Those of this card, once they are known."""
        known = {"tb_s": figures.get("large_copy_tb_s"), "tflops": figures.get("best_tflops")}
        self.ceilings = dataclasses.replace(self.ceilings, **{name: value for name, value in known.items() if value})


def json_figures(output):
    """Of the last line that is an object; {} where none is."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return {name: float(value) for name, value in json.loads(line).items() if isinstance(value, (int, float))}
            except ValueError:
                return {}
    return {}
