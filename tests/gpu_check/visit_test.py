#!/usr/bin/env python3
"""Visits to a GPU with programs in place of fsdp-train and others that only say what those would: turns, verdicts, time, and what fails."""
import contextlib
import io
import json
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]
import visit  # noqa: E402
from gpu_models import ON_GPUS  # noqa: E402
from visit_queue import BadQueue, read_queue  # noqa: E402

# One program, which is what it is called. A step takes 100 ms; with training.cuda_graphs half of it, and in build b a fifth less.
PROGRAM = r'''#!/usr/bin/env python3
import json, os, sys, time
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
keys = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
with open(os.environ["CALLS"], "a") as calls:
    print(os.path.basename(os.path.dirname(sys.argv[0])), name, *[key for key in keys if key != "run.output_dir"], file=calls)
if arguments == ["--version"]:
    print("fsdp-train 0.0.0")
elif name == "nvidia-smi":
    while "-lms" in arguments:
        print("1755, 612.5, 61", flush=True)
        time.sleep(0.02)
    print("Clocks")
elif name == "kernel_bench":
    time.sleep(0.3)
    print("| swiglu |\n" + json.dumps(dict(swiglu_us=98.0, text="a", rows=int(keys["rows"]))))
elif keys.get("run.seed") == "3":
    sys.exit("it broke")
elif keys.get("run.seed") == "4":
    time.sleep(60)
else:
    is_b = os.path.basename(os.path.dirname(sys.argv[0])) == "b"
    seconds = (0.05 if keys.get("training.cuda_graphs") == "true" else 0.1) * (0.8 if is_b else 1)
    folder = keys["run.output_dir"]
    os.makedirs(folder + "/step-00000003")
    open(folder + "/step-00000003/manifest.json", "w").close()
    with open(folder + "/metrics.jsonl", "w") as lines:
        for step in range(1, 16):
            warm = 1.0 if step > 5 else 7.0
            print(json.dumps(dict(step=step, loss=10.0 / step * float(keys.get("optimizer.lr", 1)), step_seconds=seconds * warm,
                                  tokens_per_second=8192 / seconds, gpu_peak_allocated_bytes=2**30)), file=lines)
    if "logging.profile_steps" in keys:
        names = ["fsdp::kernels::cuda::AdamKernel", "a_new_kernel"]
        events = [dict(ph="X", cat="kernel", name=name, ts=1e5 * at, dur=2e4) for at, name in enumerate(names)]
        open(folder + "/profile.rank0.step12.json", "w").write(json.dumps(dict(traceEvents=events)))
'''
A_GPU = dict(name="NVIDIA H100 80GB HBM3", count=1, total_bytes=80 * 2**30, free_bytes=80 * 2**30, driver="CUDA 13.0")


class Visits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("a/fsdp-train", "a/kernel_bench", "b/fsdp-train", "nvidia-smi"):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(PROGRAM, encoding="utf-8")
            path.chmod(0o755)

    def visit(self, queue, *arguments):
        """The exit code, the rows of the table that is printed last by entry and figure, and all that is printed."""
        (self.folder / "queue.toml").write_text(queue, encoding="utf-8")
        self.output = self.folder / "report"
        command = ["visit.py", str(self.folder / "queue.toml"), "--bin", str(self.folder / "a"), "--output", str(self.output), *arguments]
        printed = io.StringIO()
        path = f"{self.folder}:/usr/bin:/bin"
        with mock.patch.object(sys, "argv", command), mock.patch.object(visit, "find_gpu", return_value=A_GPU), \
                mock.patch.dict("os.environ", CALLS=str(self.folder / "calls"), PATH=path), contextlib.redirect_stdout(printed):
            code = visit.main()
        text = printed.getvalue()
        lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
        self.last = text.strip().splitlines()[-1]
        return code, {(row[0], row[1]): row[2:] for row in rows}, text

    def calls(self):
        return [line for line in (self.folder / "calls").read_text().splitlines() if "version" not in line and "nvidia-smi" not in line][1:]

    def test_run_in_turns_and_say_which_predictions_hold(self):
        code, rows, text = self.visit('''
[[entry]]
name = "graphs"
seconds = 20
overrides = ["training.cuda_graphs=true"]
against = {}
prediction = { ratio = 2.02, step_ms = 60, mfu = ">= 0.5", losses_differ = 0, checkpoints = 1, peak_gib = "<= 1" }
[[entry]]
name = "kernels"
seconds = 20
command = "kernel_bench {sizes} {overrides}"
overrides = ["milliseconds=1"]
prediction = { swiglu_us = 98, rows = 8192, nothing = 1 }
''')
        self.assertEqual(code, 0, text)
        self.assertEqual({key: row[3] for key, row in rows.items()}, {
            ("graphs", "ratio"): "hit", ("graphs", "step_ms"): "refuted", ("graphs", "mfu"): "hit", ("graphs", "losses_differ"): "hit",
            ("graphs", "checkpoints"): "hit", ("graphs", "peak_gib"): "hit", ("kernels", "swiglu_us"): "hit", ("kernels", "rows"): "hit",
            ("kernels", "nothing"): "no figure"})
        self.assertEqual(rows["graphs", "ratio"][:3], ["2", "2.02", "0.990"])
        self.assertEqual(rows["graphs", "step_ms"][:3], ["50", "60", "0.833"])
        of_training = [line for line in self.calls() if "fsdp-train" in line]
        self.assertEqual(of_training, ["a fsdp-train", "a fsdp-train training.cuda_graphs"] * 2)
        self.assertRegex(rows["kernels", "swiglu_us"][4], "^A 1755 MHz, 612 W, 61 C$")
        self.assertRegex(self.last, r"^Predictions: 7 hit, 1 refuted; .*report.md$")

    def test_compare_builds_and_read_traces(self):
        code, rows, text = self.visit('''
[[entry]]
name = "b"
seconds = 20
build = "b"
against = { build = "a" }
prediction = { "ratio:step_ms" = 1.25, losses_differ = "<= 0" }
[[entry]]
name = "trace"
seconds = 20
trace = true
overrides = ["logging.profile_steps=[12]", "optimizer.lr=2"]
prediction = { lost_ms = 26.5 }
within = 0.1
''', "--b", str(self.folder / "b"))
        self.assertEqual(code, 0, text)
        self.assertEqual({row[3] for row in rows.values()}, {"hit"}, text)
        ledger = (self.output / "ledger.md").read_text()
        self.assertIn("| not in the ledger: a_new_kernel | 1 | 20.000 |", ledger)
        self.assertIn("| AdamW | 1 | 20.000 | 13.454 | 6.546 |", ledger)

    def test_end_on_time(self):
        began = time.monotonic()
        code, rows, text = self.visit('''
minutes = 0.2
[[entry]]
name = "takes all of the time"
seconds = 50
overrides = ["run.seed=4"]
[[entry]]
name = "is too late"
seconds = 20
''')
        self.assertLess(time.monotonic() - began, 25)
        self.assertEqual((code, {name: row[3] for (name, _), row in rows.items()}),
                         (1, {"takes all of the time": "unfinished", "is too late": "not run"}), text)
        self.assertIn("1 unfinished: takes all of the time; 1 not run: is too late", self.last)

    def test_write_few_files_and_name_what_failed_or_did_not_end(self):
        code, rows, text = self.visit('''
[[entry]]
name = "breaks"
seconds = 20
overrides = ["run.seed=3"]
[[entry]]
name = "fails as it should"
seconds = 20
exits = "fails"
overrides = ["run.seed=3"]
prediction = { ended = 1 }
[[entry]]
name = "does not fail"
seconds = 20
exits = "fails"
[[entry]]
name = "each"
seconds = 20
[entry.each]
one = ["training.cuda_graphs=true"]
two = []
[[entry]]
name = "lacks a build"
seconds = 20
build = "b"
[[entry]]
name = "lacks a program"
seconds = 20
needs = "no-such-program"
[[entry]]
name = "is too slow"
seconds = 3
against = {}
overrides = ["run.seed=4"]
prediction = { ratio = 1 }
''')
        self.assertEqual(code, 1, text)
        self.assertEqual({name: row[3] for (name, _), row in rows.items()}, {
            "breaks": "failed", "fails as it should": "hit", "does not fail": "failed", "each: one": "-", "each: two": "-",
            "lacks a build": "skipped", "lacks a program": "skipped", "is too slow": "unfinished"})
        self.assertIn("2 failed: breaks, does not fail; 1 unfinished: is too slow; 2 skipped: lacks a build, lacks a program", self.last)
        self.assertLessEqual(len(list(self.output.iterdir())), 8)
        report = (self.output / "report.md").read_text()
        self.assertIn("# Visit to NVIDIA H100 80GB HBM3, 80.0 GiB, CUDA 13.0", report)
        self.assertIn("## failed: breaks", report)
        self.assertIn("it broke", (self.output / "log.txt").read_text())
        runs = [json.loads(line) for line in (self.output / "runs.jsonl").read_text().splitlines()]
        self.assertEqual([run["side"] for run in runs if run["entry"] == "is too slow"], ["A"])
        self.assertEqual(len(runs[-1]["losses"]), 15)

    def test_of_chosen_entries(self):
        queue = '[[entry]]\nname = "one"\nseconds = 9\n[[entry]]\nname = "two"\nseconds = 9\n[entry.each]\nx = []\ny = []\n'
        self.assertEqual({name for name, _ in self.visit(queue, "--entries", "two")[1]}, {"two: x", "two: y"})
        with self.assertRaisesRegex(BadQueue, "--entries: expected some of one, two: x, two: y; found 'three'"):
            self.visit(queue, "--output", str(self.folder / "other"), "--entries", "three")


class Queues(unittest.TestCase):
    def refused(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "queue.toml"
            path.write_text(text, encoding="utf-8")
            with self.assertRaises(BadQueue) as refused:
                read_queue(path, ON_GPUS.models)
        return str(refused.exception)

    def test_that_cannot_be_read_are_refused(self):
        entry = '[[entry]]\nname = "x"\nseconds = 9\n'
        for text, why in (("", "expected entries with names of their own; found none"),
                          (entry + entry, "found x, x"),
                          ('[[entry]]\nname = "x"\n', "entry 'x': expected a name and the seconds"),
                          (entry + 'speed = 3\n', "found 'speed'"),
                          (entry + 'build = "c"\n', "expected build = a or b; found 'c'"),
                          (entry + 'steps = true\n', "'steps' has another type than expected: True"),
                          (entry + 'model = "gpt5"\n', "found 'gpt5'"),
                          (entry + 'prediction = { ratio = 1 }\n', "has no 'against'"),
                          (entry + 'prediction = { step_ms = "about 3" }\n', "found 'about 3'"),
                          (entry + 'warmup = 15\n', "more steps than warm-up steps"),
                          ('[models.x]\nlayers = 1\n' + entry, "a model is not as Model"),
                          ("minutes = ", "Invalid value")):
            with self.subTest(text):
                self.assertIn(why, self.refused(text))
        with self.assertRaisesRegex(BadQueue, "expected a queue of entries in /nowhere, found none"):
            read_queue("/nowhere", ON_GPUS.models)

    def test_that_are_committed_ask_with_keys_that_there_are_and_predict_all_of_it(self):
        keys, section = {"milliseconds", "trials"}, ""
        for line in (PROJECT / "docs/reference.md").read_text(encoding="utf-8").splitlines():
            section = line[3:] if line.startswith("## ") else section
            if found := re.match(r"\| `([a-z_\d]+)` \|", line):
                keys.add(f"{section}.{found.group(1)}")
        queues = sorted((HERE / "visits").glob("*.toml"))
        self.assertGreaterEqual(len(queues), 5)
        for path in queues:
            queue = read_queue(path, ON_GPUS.models)
            self.assertLessEqual(queue.minutes, 15, path.name)
            for entry in queue.entries:
                self.assertTrue(entry.predictions, entry.name)
                words = [word for side in entry.sides() for word in (*side.overrides, *side.command.split())]
                for word in words:
                    if key := re.fullmatch(r"([a-z_]+\.[a-z_\d]+)=.*", word):
                        self.assertIn(key.group(1), keys, f"{path.name}, {entry.name}")


if __name__ == "__main__":
    unittest.main()
