#!/usr/bin/env python3
"""Each --json of the programs has a schema in docs/schemas, and prints what the schema describes. Runs the programs in
FSDP_BIN_DIR. The package jsonschema checks the same where FSDP_TEST_PYTHON (default: this Python) has it."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(os.environ["FSDP_BIN_DIR"])
SCHEMAS = Path(__file__).resolve().parents[2] / "docs/schemas"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
MODEL = ["model.hidden_size=64", "model.intermediate_size=172", "model.num_hidden_layers=2", "model.num_attention_heads=4",
         "model.vocab_size=256", "model.max_position_embeddings=64"]
# The schema, and the command that prints what it describes: {} is a line of JSON for each of several results.
COMMANDS = [
    ("fsdp-train-compare", "fsdp-train compare run-1 run-2 --json"),
    ("fsdp-train-compare", "fsdp-train compare run-1 nothing --json"),
    ("fsdp-train-doctor", "fsdp-train doctor config.toml --json"),
    ("fsdp-train-print-config", "fsdp-train print-config config.toml --json"),
    ("fsdp-train-print-config", "fsdp-train config.toml --print-config --json"),
    ("fsdp-train-keys", "fsdp-train keys --json"),
    ("fsdp-train-evaluate", "fsdp-train evaluate config.toml run-1 --json"),
    ("fsdp-train-explain-step", "fsdp-train explain-step config.toml --json"),
    ("fsdp-train-watch", "fsdp-train watch run-1 --json"),
    ("fsdp-train-profile-start", "fsdp-train profile-start config.toml --json"),
    ("fsdp-train-dry-run", "fsdp-train dry-run config.toml --world-size 2 --json"),
    ("fsdp-plan", "fsdp-train plan config.toml --world-size 2 --json"),
    ("fsdp-plan", "fsdp-plan --preset llama3-8b --gpus 8 --gpu h100 --tokens 1T --json"),
    ("fsdp-plan-simulate", "fsdp-plan --preset llama3-8b --gpus 16 --gpu h100 --simulate --mtbf-hours 5000 --json"),
    ("fsdp-plan-propose", "fsdp-plan --preset llama3-8b --gpus 16 --gpu h100 --simulate --network tcp-10 --propose --json"),
    ("fsdp-ckpt-inspect", "fsdp-ckpt inspect run-1 --json"),
    ("fsdp-ckpt-inspect", "fsdp-ckpt inspect weights.safetensors --json"),
    ("fsdp-ckpt-verify", "fsdp-ckpt verify run-1 --json"),
    ("fsdp-ckpt-diff", "fsdp-ckpt diff run-1 run-2 --json"),
    ("fsdp-ckpt-config", "fsdp-ckpt config run-1 --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt consolidate run-1 whole.safetensors --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt export run-1 exported --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt export run-1 model.gguf --format gguf --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt export run-1 dcp --format dcp --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt import exported imported --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt import dcp imported-dcp --config exported/config.json --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt average run-1 run-2 --output average.safetensors --json"),
    ("fsdp-ckpt-output", "fsdp-ckpt reshard run-1 resharded --world-size 2 --json"),
    ("fsdp-data-inspect", "fsdp-data inspect train.bin --json"),
    ("fsdp-generate", "fsdp-generate run-1 --prompt We --max-new-tokens 3 --num-samples 2 --json {}"),
    ("fsdp-generate-score", "fsdp-generate run-1 --score text.txt --json"),
    ("fsdp-generate-score-requests", "fsdp-generate run-1 --score-requests requests.jsonl {}"),
    ("fsdp-generate-until", "fsdp-generate run-1 --generate-until contexts.jsonl --max-new-tokens 3 {}")]
# Exit codes other than 0: those of `fsdp-ckpt diff` say that two sides differ, of doctor that something is wrong.
CODES = {"fsdp-ckpt-diff": (0, 1), "fsdp-train-doctor": (0, 1)}


def problems(value, schema, root, at="$"):
    """The differences of a value from a schema, as texts. A schema may use these keywords only, and an object has no property
    that the schema does not list: a new one needs a description."""
    known = {"$schema", "$id", "$defs", "$ref", "title", "description", "type", "enum", "required", "properties", "patternProperties",
             "additionalProperties", "items", "minItems", "maxItems"}
    found = [f"{at}: the schema has {name}, which this test does not know" for name in schema.keys() - known]
    if "$ref" in schema:
        found += problems(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    types = schema.get("type", [])
    if types and not any(is_of(value, name) for name in ([types] if isinstance(types, str) else types)):
        return found + [f"{at}: expected {types}; found {json.dumps(value)[:80]}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: expected one of {schema['enum']}; found {value}")
    if isinstance(value, dict):
        found += [f"{at}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, each in value.items():
            inner = [schema["properties"][name]] if name in schema.get("properties", {}) else [
                other for pattern, other in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
            others = schema.get("additionalProperties", "properties" not in schema)
            if not inner and others is not True:
                inner = [others] if isinstance(others, dict) else []
                found += [] if inner else [f"{at}: {name} is not described"]
            for one in inner:
                found += problems(each, one, root, f"{at}.{name}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{at}: {len(value)} items")
        for number, each in enumerate(value[:200]):
            found += problems(each, schema.get("items", {}), root, f"{at}[{number}]")
    return found


def is_of(value, name):
    if name in ("integer", "number"):
        return isinstance(value, (int,) if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def schema_of(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text())


class Schemas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.place.name)
        text = "Before we proceed any further, hear me speak.\n" * 200
        (cls.folder / "text.txt").write_text(text)
        for name in ("train", "validation"):
            (cls.folder / f"{name}.bin").write_bytes(b"".join(b"%c\0" % byte for byte in text.encode()))
        (cls.folder / "requests.jsonl").write_text('{"id": 7, "context": "We", "continuation": " go"}\n{"context": "a", "continuation": "b"}\n')
        (cls.folder / "contexts.jsonl").write_text('{"id": 7, "context": "We", "until": ["."]}\n{"context": "a", "until": []}\n')
        keys = [*MODEL, 'data.train=["train.bin"]', 'data.validation=["validation.bin"]', 'data.tokenizer="bytes"', "data.sequence_length=64",
                "data.micro_batch_size=2", "training.steps=12", "evaluation.interval_steps=1", "evaluation.max_samples=2", "logging.interval_steps=1",
                "fsdp.min_num_params=40000"]
        config = {}
        for key in keys:
            name, value = key.split("=", 1)
            section, name = name.split(".")
            config.setdefault(section, []).append(f"{name} = {value}")
        (cls.folder / "config.toml").write_text("".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in config.items()))
        for number in (1, 2):
            cls.run_program(f"fsdp-train config.toml run.output_dir=run-{number} run.seed={number}")
        cls.run_program("fsdp-ckpt consolidate run-1 weights.safetensors")
        (cls.folder / "nothing").mkdir()
        (cls.folder / "nothing/metrics.jsonl").write_text("")
        cls.outputs = [(name, command, cls.output_of(name, command)) for name, command in COMMANDS]
        for run in ("run-1", "run-2"):
            cls.outputs.append(("metrics", run, [json.loads(line) for line in (cls.folder / run / "metrics.jsonl").read_text().splitlines()]))
            cls.outputs.append(("environment", run, [json.loads((cls.folder / run / "environment.json").read_text())]))

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    @classmethod
    def run_program(cls, command, codes=(0,)):
        program, *words = command.split()
        result = subprocess.run([BIN / program, *words], cwd=cls.folder, env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True)
        assert result.returncode in codes, f"{command}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        return result.stdout

    @classmethod
    def output_of(cls, name, command):
        text = cls.run_program(command.removesuffix(" {}"), CODES.get(name, (0,)))
        return [json.loads(part) for part in (text.splitlines() if command.endswith("{}") else [text])]

    def test_describe_what_the_programs_print(self):
        for name, command, values in self.outputs:
            self.assertGreater(len(values), 0, command)
            schema = schema_of(name)
            for value in values:
                self.assertEqual(problems(value, schema, schema), [], f"{name}.json does not describe what {command} prints")

    def test_refuse_other_values(self):
        schema = schema_of("fsdp-train-compare")
        value = next(values[0] for name, _, values in self.outputs if name == "fsdp-train-compare")
        for change in ({"runs": []}, {"speed": None}, {"notes": [{"code": "weather", "text": ""}]}, {"mood": "good"}):
            self.assertNotEqual(problems({**value, **change}, schema, schema), [], change)
        for name in value:
            self.assertNotEqual(problems({key: each for key, each in value.items() if key != name}, schema, schema), [], name)

    def test_exist_for_each_option_json(self):
        covered = set()
        for _, command in COMMANDS:
            program, word, *_ = command.split()
            covered.add((program, word))
            covered.add((program, ""))
        for program in ("fsdp-train", "fsdp-plan", "fsdp-ckpt", "fsdp-data", "fsdp-generate", "fsdp-launch"):
            rows = subprocess.run([BIN / program, "completions", "bash"], capture_output=True, text=True, check=True).stdout
            for command in re.findall(r"^(\S*)\t-\t--json\t", rows, re.MULTILINE):
                self.assertIn((program, command), covered, "add a command to this test, and its schema to docs/schemas")

    def test_are_all_used(self):
        used = {name for name, _, _ in self.outputs}
        self.assertEqual({path.stem for path in SCHEMAS.glob("*.json")}, used)

    def test_agree_with_the_package_jsonschema(self):
        python = os.environ.get("FSDP_TEST_PYTHON", sys.executable)
        if subprocess.run([python, "-c", "import jsonschema"], capture_output=True).returncode:
            self.skipTest("set FSDP_TEST_PYTHON to a Python that has jsonschema")
        pairs = [[schema_of(name), values] for name, _, values in self.outputs]
        script = """import json, sys
from jsonschema import Draft202012Validator
for schema, values in json.load(sys.stdin):
    Draft202012Validator.check_schema(schema)
    for value in values:
        Draft202012Validator(schema).validate(value)
"""
        result = subprocess.run([python, "-c", script], input=json.dumps(pairs), capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
