#!/usr/bin/env python3
"""lm-evaluation-harness with the models of fsdp-generate: checkpoints of runs, Hugging Face's folders and GGUF files, on CPUs.

    scripts/lm_eval_fsdp.py --model fsdp --model_args checkpoint=checkpoints/run --tasks lambada_openai

The options are those of lm_eval, which must be installed. Of --model_args, checkpoint is the model; program is the path of
fsdp-generate (default: beside this checkout's or package's, or on PATH), and tokenizer, dtype and ema are its options.
Each call runs the program once, with all requests.
"""
import json
import shutil
import subprocess
from pathlib import Path

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

HERE = Path(__file__).resolve().parent
PLACES = (HERE.parent / "build/bin", HERE.parents[2] / "bin")  # of a checkout, of packages


def find_program(given):
    found = given or next((str(each / "fsdp-generate") for each in PLACES if (each / "fsdp-generate").is_file()), None) or shutil.which("fsdp-generate")
    if not found:
        raise FileNotFoundError("expected the program fsdp-generate; found none beside this script and on PATH; name it with --model_args program=PATH")
    return found


@register_model("fsdp")
class FsdpModel(LM):
    def __init__(self, checkpoint, program=None, tokenizer=None, dtype="auto", ema=False, max_gen_toks=256, **_):
        super().__init__()
        self.command = [find_program(program), str(checkpoint), "--dtype", str(dtype)]
        self.command += ["--tokenizer", str(tokenizer)] if tokenizer else []
        self.command += ["--ema"] if str(ema).lower() == "true" else []
        self.max_gen_toks = int(max_gen_toks)

    def ask(self, option, requests, *options):
        if not requests:
            return []
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run([*self.command, option, "-", *options], input=lines, text=True, stdout=subprocess.PIPE, check=True)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        if len(results) != len(requests):
            raise RuntimeError(f"expected {len(requests)} results of fsdp-generate; found {len(results)}")
        return results

    def loglikelihood(self, requests, disable_tqdm=False):
        pairs = [request.args for request in requests]
        results = self.ask("--score-requests", [{"context": context, "continuation": continuation} for context, continuation in pairs])
        return [(each["log_likelihood"], each["is_greedy"]) for each in results]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [each["log_likelihood"] for each in self.ask("--score-requests", [{"text": request.args[0]} for request in requests])]

    def generate_until(self, requests, disable_tqdm=False):
        texts = [None] * len(requests)
        by_sampling = {}  # each way of sampling is a run of the program
        for i, request in enumerate(requests):
            context, wish = request.args
            until = wish.get("until") or []
            until = [until] if isinstance(until, str) else until
            temperature = str(wish.get("temperature", 0.0) if wish.get("do_sample") else 0.0)
            line = {"context": context, "until": [each for each in until if each], "max_new_tokens": int(wish.get("max_gen_toks", self.max_gen_toks))}
            by_sampling.setdefault(temperature, []).append((i, line))
        for temperature, lines in by_sampling.items():
            results = self.ask("--generate-until", [line for _, line in lines], "--temperature", temperature)
            for (i, _), result in zip(lines, results):
                texts[i] = result["text"]
        return texts


if __name__ == "__main__":
    cli_evaluate()
