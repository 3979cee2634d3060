"""The queue of a visit (visits/*.toml): what is asked of a GPU, in order, and what is predicted.

  minutes = 15                  of the whole visit; --minutes overrides it
  [defaults]                    of the keys below
  [models.NAME]                 of a model beside those of tests/bench/gpu_models.py, as Model of tests/bench/sides.py has it
  [[entry]]
  name = "no resharding"
  seconds = 60                  that all runs of the entry may take
  command = "train"             fsdp-train on the model, or a command line with {bin}, {config}, {out}, {sizes} and {overrides}
  build = "a"                   or "b"
  overrides = ["fsdp.reshard_after_forward=false"]
  against = { }                 the other side, with a build, overrides and a command of its own: runs in turns, A B A B
  prediction = { ratio = 1.02 }     of figures, by name: a number, or a text such as ">= 0.54"
  within = 0.01                 how far a figure may be from a number, relative (0.05)

  each = { NAME = [OVERRIDE, ...] } makes an entry of each, with these overrides on both sides
  needs = "ncu"                 a program without which the entry is skipped
  exits = "fails"               the expected end of the command ("well")
  model, sequences, steps, warmup, rounds, environment, trace (whether the ledger reads the profile)

Figures of a run are those of the last line of its output that is a JSON object, and, where it trains, step_ms, tokens_per_second, mfu
(of the data sheet's peak), peak_gib, loss, and checkpoints, the number of those that were saved; with `trace`, lost_ms; and `ended`, 1.
Of two sides, `ratio` is the other side's step_ms over the entry's, over 1 where the entry is faster, "ratio:FIGURE" the same of another
figure, and losses_differ the largest relative difference of the losses of a step.
"""
import dataclasses
import re
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # before Python 3.11, whose pip has the same
    from pip._vendor import tomli as tomllib

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
from sides import Model  # noqa: E402

FIGURES_OF_BOTH = ("ratio", "losses_differ")


class BadQueue(Exception):
    """The queue cannot be read; the text says where and why."""


@dataclasses.dataclass(frozen=True)
class Side:
    build: str = "a"
    overrides: tuple = ()
    command: str = "train"
    environment: tuple = ()

    def with_overrides(self, more):
        return dataclasses.replace(self, overrides=(*self.overrides, *more))


@dataclasses.dataclass(frozen=True)
class Prediction:
    figure: str
    value: float
    sign: str = "="  # or >=, <=
    within: float = 0.05

    def holds(self, found):
        if self.sign != "=":
            return found >= self.value if self.sign == ">=" else found <= self.value
        return abs(found - self.value) <= self.within * abs(self.value)

    def __str__(self):
        return f"{'' if self.sign == '=' else self.sign + ' '}{self.value:g}"


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    seconds: float
    side: Side
    against: Side | None
    predictions: tuple
    rounds: int
    model: str = "llama-1.3b"
    sequences: int = 0  # 0: those of the benchmark
    steps: int = 15
    warmup: int = 5
    exits: str = "well"
    needs: str = ""
    trace: bool = False

    def sides(self):
        """In turns: the other side first, as what is known comes before what is new."""
        return [self.side] if self.against is None else [self.against, self.side]


@dataclasses.dataclass(frozen=True)
class Queue:
    minutes: float
    entries: tuple
    models: dict


KEYS = {"name": str, "seconds": (int, float), "command": str, "build": str, "overrides": list, "against": dict, "prediction": dict,
        "within": (int, float), "each": dict, "needs": str, "exits": str, "model": str, "sequences": int, "steps": int, "warmup": int,
        "rounds": int, "environment": dict, "trace": bool}
PLAIN = ("model", "sequences", "steps", "warmup", "exits", "needs", "trace")
CHOICES = {"build": ("a", "b"), "exits": ("well", "fails")}


def check_keys(where, table, keys):
    for key, value in table.items():
        if key not in keys:
            raise BadQueue(f"{where}: expected keys of {', '.join(keys)}; found '{key}'")
        if not isinstance(value, keys[key]) or isinstance(value, bool) != (keys[key] is bool):
            raise BadQueue(f"{where}: '{key}' has another type than expected: {value!r}")
        if key in CHOICES and value not in CHOICES[key]:
            raise BadQueue(f"{where}: expected {key} = {' or '.join(CHOICES[key])}; found '{value}'")


def prediction_of(where, figure, value, within):
    found = re.fullmatch(r"(>=|<=) *([-+.e\d]+)", value) if isinstance(value, str) else None
    try:
        if found:
            return Prediction(figure, float(found.group(2)), found.group(1), within)
        if not isinstance(value, str):
            return Prediction(figure, float(value), within=within)
    except (TypeError, ValueError):
        pass
    raise BadQueue(f"{where}: expected the prediction of '{figure}' to be a number or a text such as \">= 0.5\"; found {value!r}")


def side_of(table, command):
    return Side(table.get("build", "a"), tuple(table.get("overrides", ())), table.get("command", command),
                tuple(sorted(table.get("environment", {}).items())))


def entries_of(table, models):
    where = f"entry '{table.get('name', '?')}'"
    check_keys(where, table, KEYS)
    if not table.get("name") or not table.get("seconds", 0) > 0:
        raise BadQueue(f"{where}: expected a name and the seconds that its runs may take")
    side, against = side_of(table, "train"), None
    if "against" in table:
        check_keys(f"{where}, against", table["against"], {key: KEYS[key] for key in ("build", "overrides", "command", "environment")})
        against = side_of(table["against"], side.command)
    predictions = tuple(prediction_of(where, figure, value, table.get("within", 0.05))
                        for figure, value in table.get("prediction", {}).items())
    if against is None and any(one.figure.partition(":")[0] in FIGURES_OF_BOTH for one in predictions):
        raise BadQueue(f"{where}: predicts a figure of two sides, and has no 'against'")
    entry = Entry(table["name"], table["seconds"], side, against, predictions, table.get("rounds", 1 if against is None else 2),
                  **{key: table[key] for key in PLAIN if key in table})
    if entry.model not in models:
        raise BadQueue(f"{where}: expected a model of {', '.join(models)}; found '{entry.model}'")
    if entry.rounds < 1 or not 0 <= entry.warmup < entry.steps:
        raise BadQueue(f"{where}: expected at least one round, and more steps than warm-up steps")
    if "each" not in table:
        return [entry]
    return [dataclasses.replace(entry, name=f"{entry.name}: {name}", side=side.with_overrides(more),
                                against=against.with_overrides(more) if against else None) for name, more in table["each"].items()]


def read_queue(path, models):
    try:
        text = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadQueue(f"expected a queue of entries in {path}, found none ({error.strerror}); see tests/gpu_check/visits") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadQueue(f"{path}: {error}") from None
    check_keys(str(path), text, {"minutes": (int, float), "defaults": dict, "models": dict, "entry": list})
    try:
        models = {**models, **{name: Model(**sizes) for name, sizes in text.get("models", {}).items()}}
    except TypeError as error:
        raise BadQueue(f"{path}: a model is not as Model of tests/bench/sides.py: {error}") from None
    entries = [entry for table in text.get("entry", []) for entry in entries_of({**text.get("defaults", {}), **table}, models)]
    names = [entry.name for entry in entries]
    if any("," in name for name in names):
        raise BadQueue(f"{path}: expected names without commas, which --entries separates; found {'; '.join(names)}")
    if not entries or len(set(names)) != len(names):
        raise BadQueue(f"{path}: expected entries with names of their own; found {', '.join(names) or 'none'}")
    return Queue(text.get("minutes", 15), tuple(entries), models)
