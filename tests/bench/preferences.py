#!/usr/bin/env python3
"""Preference optimization (DPO) by fsdp-train against TRL's DPOTrainer with FSDP2; started by scripts/bench preferences.

Both run in turns (A B A B), each time as a new process group on the same weights and pairs, as in steps.py. A pair is two
sequences of half the tokens that begin alike. Losses are compared step by step; where they differ by more than the tolerance,
the exit code is 1.
"""
import argparse
import array
import json
import sys
import tempfile

from ranks import run_group
from results import describe_machine, replace_section
from sides import HERE, MODELS, Setting, Sides
sys.path.insert(0, str(HERE.parent / "support"))
from preference_files import write_preferences
from step_tables import Comparison, differs_by, median_of, pair, ratio, table, with_spread
from steps import end, largest_difference, run, say

PROMPT = 64
LR, TOLERANCE = 1e-6, 1e-4
# A second model gives the reference, or both have its log-probabilities beforehand. TRL's own default is to recompute.
PEERS = {"model": [], "model, recomputed": ["--ac"], "precomputed": ["--precompute"]}


def pairs_of(tokens, sequence):
    """The pairs that trl_peer.py makes of a token file."""
    for begin in range(0, len(tokens) - 2 * sequence + 1, 2 * sequence):
        chosen, rejected = tokens[begin:begin + sequence], tokens[begin + sequence:begin + 2 * sequence]
        yield chosen[:PROMPT], chosen[PROMPT:], True
        yield chosen[:PROMPT], rejected[PROMPT:], False


class PreferenceSides(Sides):
    stored = False

    def pairs(self, model):
        path = self.work / f"{model}.pairs.bin"
        if not path.exists():
            tokens = array.array("H", self.tokens(model).read_bytes()[:2 * 64 * 2 * self.models[model].sequence])
            write_preferences(path, pairs_of(tokens.tolist(), self.models[model].sequence))
        return path

    def more_config(self, setting):
        return f'objective = "dpo"\n[preference]\nreference = "{"stored" if self.stored else "model"}"\n' \
               f"[optimizer]\nlr = {LR}\nbetas = [0.9, 0.999]\nweight_decay = 0.0\n[lr_scheduler]\nname = \"constant\"\n"

    def our_config(self, setting, stored_weights=True):
        m = self.models[setting.model]
        text = super().our_config(setting, stored_weights)
        for old, new in ((f"train = [{json.dumps(str(self.tokens(setting.model)))}]", f"train = [{json.dumps(str(self.pairs(setting.model)))}]"),
                         (f"sequence_length = {m.sequence}", f"sequence_length = {2 * m.sequence}"),
                         (f"max_position_embeddings = {m.sequence}", f"max_position_embeddings = {2 * m.sequence}")):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    def store_references(self, setting):
        self.stored = False
        config = self.work / "references.toml"
        config.write_text(self.our_config(setting), encoding="utf-8")
        run_group([self.train_program, "reference-log-probs", str(config)], setting.ranks, setting.threads, self.work)
        self.stored = True

    def run_peer(self, setting, flags, stored_weights=True):
        m = self.models[setting.model]
        command = [self.peer_python, str(HERE / "trl_peer.py"), "--layers", str(m.layers), "--dim", str(m.hidden), "--heads",
                   str(m.heads), "--kv-heads", str(m.kv_heads or m.heads), "--ffn", str(m.intermediate), "--vocab", str(m.vocabulary),
                   "--seq", str(m.sequence), "--prompt", str(PROMPT), "--lr", str(LR), "--data", str(self.tokens(setting.model)), "--batch",
                   str(setting.sequences), "--steps", str(setting.steps), "--warmup", str(setting.warmup), "--threads",
                   str(setting.threads), "--tuned", "--init", str(self.weights(setting.model)), *flags]
        return self.run_of(run_group(command, setting.ranks, setting.threads, self.work, environment=self.peer_environment), setting)


def parse_arguments():
    p = argparse.ArgumentParser(prog="scripts/bench preferences")
    p.add_argument("--models", default="135m", help=f"of {', '.join(MODELS)} (135m)")
    p.add_argument("--ranks", type=int, default=2, help="processes (2)")
    p.add_argument("--pairs", type=int, default=1, help="pairs a rank and step (1)")
    p.add_argument("--peers", default=";".join(PEERS), help=f"of {'; '.join(PEERS)} (all)")
    p.add_argument("--rounds", type=int, default=2, help="turns of ours and theirs (2)")
    p.add_argument("--steps", type=int, default=5, help="of a run (5)")
    p.add_argument("--warmup", type=int, default=1, help="first steps of a run that do not count (1)")
    p.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of a rank (1)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for fsdp-train; repeatable")
    p.add_argument("--write", action="store_true", help="put the tables into tests/bench/RESULTS.md")
    p.add_argument("--train-program", required=True, help=argparse.SUPPRESS)
    p.add_argument("--peer-python", required=True, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.models, a.peers = a.models.split(","), a.peers.split(";")
    for name, known in (("models", MODELS), ("peers", PEERS)):
        for value in getattr(a, name):
            if value not in known:
                p.error(f"--{name}: expected some of {', '.join(known)}, found '{value}'")
    return a


def compare(a, sides, setting, peer):
    ours, theirs = [], []
    sides.stored = False
    if peer == "precomputed":
        sides.store_references(setting)
    for number in range(a.rounds):
        say(f"{setting.model}, {peer}, round {number + 1} of {a.rounds}")
        ours.append(sides.run_ours(setting))
        theirs.append(sides.run_peer(setting, PEERS[peer]))
    difference = max(largest_difference(x.losses, y.losses) for x, y in zip(ours, theirs))
    return Comparison(setting, peer, ours, theirs, difference, TOLERANCE)


def row(c):
    return [c.peer, with_spread(c.ours), with_spread(c.theirs), ratio(c.theirs, c.ours),
            pair(median_of(c.ours, "peak_mib"), median_of(c.theirs, "peak_mib"), 0), differs_by(c)]


def main():
    a = parse_arguments()
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as work:
        sides = PreferenceSides(a.train_program, a.peer_python, work, a.set)
        for name in a.models:
            setting = Setting(name, a.ranks, "fp32", a.pairs, a.steps, a.warmup, a.threads)
            found = [compare(a, sides, setting, peer) for peer in a.peers]
            title = f"DPO: {name}, {a.ranks} ranks"
            flags = f"OMP_NUM_THREADS={a.threads}; {a.rounds} rounds of {a.steps} steps, {a.warmup} not counted; {a.pairs} pairs a rank of 2 x " \
                    f"{MODELS[name].sequence} tokens" + "".join(f"; {value}" for value in a.set)
            text = table(["reference", "ours, s", "TRL, s", "TRL / ours", "peak MiB a rank, ours / TRL", "losses differ by"], [row(c) for c in found])
            if a.write:
                replace_section(title, f"### {title}\n\n{describe_machine(flags)}\n\n{text}")
            print(f"\n{title}\n{flags}\n\n{text}\n", flush=True)
            comparisons += found
    end(comparisons)


if __name__ == "__main__":
    run(main)
