#!/usr/bin/env python3
"""The benchmark on GPUs with programs in place of fsdp-train, fsdp-plan and PyTorch that only say what those would:
what it asks of them, what it makes of their figures and of memory that does not suffice."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cuda_standin")]
import gpu  # noqa: E402
from gpu_device import NoGpu  # noqa: E402
from gpu_models import most_that_fits  # noqa: E402
from run import LIBRARIES  # noqa: E402

# One program, which is what it is called. A llama of width 4096 has room for 20 blocks in the plan, for 21 in
# fsdp-train and for 18 in the peer.
PROGRAM = r'''#!/usr/bin/env python3
import json, os, re, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
keys = dict(argument.split("=", 1) for argument in arguments if "=" in argument)

def config(key):
    return re.search(key + r" = (\S+)", open(arguments[0]).read()).group(1)

def out_of_memory():
    print("error: CUDA out of memory", file=sys.stderr)
    sys.exit(1)

if name == "fsdp-plan":
    print(json.dumps(dict(memory=dict(device_peak_bytes=int(config("num_hidden_layers")) * 4 * 2**30))))
elif name == "fsdp-train" and "--dry-run" in arguments:
    if arguments[0].endswith("largest.toml") and int(config("num_hidden_layers")) > 21 or "1t" in arguments[0]:
        out_of_memory()
    measured = dict(shard_bytes=2**30, optimizer_bytes=2**31, gradient_bytes=2**30, peak_bytes=5 * 2**30,
                    gpu_reserved_bytes=6 * 2**30, gpu_memory_bytes=80 * 2**30, gpu="a GPU", step_seconds=0.5)
    print("[rank0] something about the run", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(dict(memory=dict(device_peak_bytes=2**32, peak_bytes=2**33), measured=measured), indent=2))
elif name == "fsdp-train":
    os.makedirs(keys["run.output_dir"])
    with open(keys["run.output_dir"] + "/metrics.jsonl", "w") as lines:
        for step in range(1, int(config("steps")) + 1):
            print(f"step {step}/9  loss 1.0", flush=True)
            is_fast = keys.get("training.cuda_graphs") == "true" or "training.float8" in keys
            seconds = 0.05 if is_fast else 0.1
            print(json.dumps(dict(step=step, loss=10.0 / step, step_seconds=seconds, minor_faults=0,
                                  gpu_peak_allocated_bytes=100 << 20, gpu_peak_reserved_bytes=120 << 20)), file=lines)
elif name == "engine_cost":
    print(json.dumps(dict(without_s=0.1, with_s=0.11, units=13, least_ratio=1.05, largest_ratio=1.2)))
elif name == "engine_overhead":
    print("engine's ratio 1.0 on " + arguments[1])
elif arguments[0].endswith("gemm_rate.py"):
    print(json.dumps(dict(fp32=4e5, bf16=7e5)))
else:
    def option(flag):
        return arguments[arguments.index(flag) + 1]
    if option("--dim") == "4096" and int(option("--layers")) > 18 or os.environ.get("FULL") == option("--layers"):
        out_of_memory()
    if "--save" in arguments:
        open(option("--save"), "w").write("weights")
    else:
        assert "--data" in arguments and option("--device") == "cuda"
        shift = float(os.environ.get("SHIFT", "1"))
        for step in range(1, int(option("--steps")) + 1):
            print(json.dumps(dict(step=step, loss=shift * 10.0 / step, seconds=0.2)), flush=True)
        print(json.dumps(dict(engine="fsdp2", peak_cuda_mib=200, peak_cuda_reserved_mib=240)))
'''
A_GPU = dict(name="NVIDIA H100 80GB HBM3", count=1, total_bytes=80 * 2**30, free_bytes=80 * 2**30, driver="CUDA 13.0")


class OfTheGpuBenchmark(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("fsdp-train", "fsdp-plan", "engine_cost", "engine_overhead", "python"):
            (self.folder / name).write_text(PROGRAM, encoding="utf-8")
            (self.folder / name).chmod(0o755)
        self.results = self.folder / "RESULTS.md"
        self.results.write_text("# Results\n\n<!-- gpu: steps -->\nNone.\n<!-- end of gpu: steps -->\n\n## Next\n",
                                encoding="utf-8")

    def bench(self, *arguments, gpu_found=A_GPU, **environment):
        """The exit code and what is printed."""
        command = ["gpu.py", "--bin", str(self.folder), "--peer-python", str(self.folder / "python"), "--rounds", "2",
                   "--steps", "3", "--warmup", "1", "--results", str(self.results), *arguments]
        found = mock.Mock(side_effect=[gpu_found] if isinstance(gpu_found, dict) else gpu_found)
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", command), mock.patch.object(gpu, "find_gpu", found), \
                mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(printed), \
                contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
            gpu.main()
        return ended.exception.code, printed.getvalue()

    def test_compares_steps_and_writes_them_in_place_of_the_last(self):
        code, text = self.bench("--parts", "steps", "--models", "gpt2-124m,llama-1.3b", "--write")
        self.assertEqual(code, 0)
        rows = [line for line in text.splitlines() if line.startswith(("| gpt2", "| llama"))]
        self.assertEqual(len(rows), 4)  # two models, two peers
        self.assertIn("| 0.1 (0.1..0.1) | 0.2 (0.2..0.2) | 2.00 (2.00..2.00) | 163,840 / 81,920 |", rows[0])
        self.assertIn("| 100 / 200 = 0.50 | 0.0e+00 |", rows[0])
        flops = 6 * 123.6e6 + 12 * 12 * 768 * 2048
        self.assertIn(f"| {163840 * flops / 989.4e12:.1%} / ", rows[0])
        written = self.results.read_text(encoding="utf-8")
        self.assertNotIn("None.", written)
        self.assertLess(written.index("NVIDIA H100 80GB HBM3"), written.index("## Next"))
        self.assertIn(rows[3], written)

    def test_ends_with_1_where_losses_differ(self):
        self.assertEqual(self.bench("--parts", "steps", "--models", "llama-1.3b", SHIFT="1.1")[0], 1)
        self.assertEqual(self.bench("--parts", "steps", "--models", "llama-1.3b", SHIFT="1.01")[0], 0)
        self.assertEqual(self.bench("--parts", "steps", "--models", "llama-1.3b", SHIFT="nan")[0], 1)

    def test_says_which_side_has_no_room_and_goes_on(self):
        code, text = self.bench("--parts", "steps", "--models", "gpt2-124m,llama-1.3b", "--peers", "fsdp2", FULL="12")
        self.assertEqual(code, 0)  # the weights cannot be made either
        self.assertIn("| fsdp2 | out of memory | out of memory |", text)
        self.assertIn("| llama-1.3b | 1.35 | 1 | 4 | device | fsdp2 | 0.1", text)

    def test_finds_the_largest_model_of_both_sides(self):
        code, text = self.bench("--parts", "steps", "--models", "largest", "--peers", "fsdp2")
        self.assertEqual(code, 0)
        self.assertIn("in 80.0 GiB: by the plan 20 blocks (4.31 billion parameters)", text)
        self.assertIn("fsdp-train 21 blocks", text)
        self.assertIn("fsdp2 18 blocks", text)
        self.assertIn("| llama-18-blocks |", text)

    def test_measures_engine_offload_and_memory(self):
        code, text = self.bench("--parts", "engine,offload,memory")
        self.assertEqual(code, 0)
        self.assertIn("| llama-1.3b | bfloat16 | 13 | 0.1 | 0.11 | 1.100 (1.050..1.200) |", text)
        self.assertIn("engine's ratio 1.0 on cuda", text)
        self.assertIn("| host | fsdp2 |", text)
        self.assertNotIn("compile |", text)
        self.assertIn("| 13 billion parameters over 8 GPUs | 4.00 | 4.00 | 5.00 | 6.00 | 0.5 |", text)
        self.assertIn("| a trillion over 256, offloaded | out of memory |", text)

    def test_compares_graphs_with_none_on_the_smallest_model(self):
        code, text = self.bench("--parts", "graphs")
        self.assertEqual(code, 0)
        rows = [line for line in text.splitlines() if "| without graphs |" in line]
        self.assertEqual([row.split("|")[4].strip() for row in rows], ["1", "8"])
        for row in rows:
            self.assertIn("| gpt2-124m |", row)
            self.assertIn("| 0.05 (0.05..0.05) | 0.1 (0.1..0.1) | 2.00 (2.00..2.00) |", row)

    def test_compares_float8_with_bf16_on_the_largest_of_the_two_models(self):
        code, text = self.bench("--parts", "float8")
        self.assertEqual(code, 0)
        rows = [line for line in text.splitlines() if "| bf16 |" in line]
        self.assertEqual(len(rows), 1)
        self.assertIn("| llama-1.3b |", rows[0])
        self.assertIn("| 0.05 (0.05..0.05) | 0.1 (0.1..0.1) | 2.00 (2.00..2.00) |", rows[0])

    def test_refuses_what_it_cannot_measure(self):
        self.assertEqual(self.bench("--parts", "graphs", "--device", "cpu")[0], 2)
        before = self.results.read_text(encoding="utf-8")
        with self.assertRaises(NoGpu):
            with mock.patch.object(sys, "argv", ["gpu.py", "--bin", ".", "--peer-python", "python", "--ranks", "2"]), \
                    mock.patch.object(gpu, "find_gpu", return_value=A_GPU):
                gpu.main()
        self.assertEqual(self.bench("--models", "gpt5")[0], 2)
        self.assertEqual(self.bench("--device", "cpu", "--write", "--results", str(gpu.RESULTS))[0], 2)
        self.assertEqual(self.results.read_text(encoding="utf-8"), before)


# Of a rank: what the stand-in would report, with 7 kernels a step for fsdp-train and 14 for the peer.
ON_THE_STANDIN = r'''#!/usr/bin/env python3
import json, os, re, sys
arguments, environment = sys.argv[1:], os.environ
keys = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
if "run.output_dir" in keys:
    steps, kernels = int(re.search(r"steps = (\d+)", open(arguments[0]).read()).group(1)), 7
    lines = [json.dumps(dict(step=step, loss=0.0, step_seconds=0.1, minor_faults=0)) for step in range(1, steps + 1)]
    os.makedirs(keys["run.output_dir"], exist_ok=True)
    if environment["RANK"] == "0":
        open(keys["run.output_dir"] + "/metrics.jsonl", "w").write("\n".join(lines))
        print("step 1/9", flush=True)
else:
    steps, kernels = int(arguments[arguments.index("--steps") + 1]), 14
    for step in range(1, steps + 1):
        print(json.dumps(dict(step=step, loss=0.0, seconds=0.2)), flush=True)
    print(json.dumps(dict(engine="fsdp2")))
with open(f"{environment['STANDIN_REPORT']}.rank{environment['RANK']}.{os.getpid()}", "w") as report:
    print(f"{100 + kernels * steps}\tkernels\n0\tCPU ns of the stand-in in collectives", file=report)
'''


class OfTheHostOverhead(unittest.TestCase):
    def test_counts_what_a_step_calls_from_the_difference_of_two_runs(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for library in LIBRARIES:  # which the loader reports and ignores
                (folder / library).touch()
            for program in ("fsdp-train", "python"):
                (folder / program).write_text(ON_THE_STANDIN, encoding="utf-8")
                (folder / program).chmod(0o755)
            ended = subprocess.run([sys.executable, HERE / "host_overhead.py", "--train-program", folder / "fsdp-train", "--peer-python",
                                    folder / "python", "--standin", folder, "--rounds", "1", "--few", "2", "--many", "6"],
                                   capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("2 ranks; 1 rounds of 6 less 2 steps\n", ended.stdout)
        self.assertIn("| kernels | 7 | 14 | 0.50 |\n", ended.stdout)
        self.assertRegex(ended.stdout, r"\| CPU time of a rank, ms \| \S+ \(\S+\.\.\S+\) \|")


class WithoutADriver(unittest.TestCase):
    def test_says_so_in_one_line_and_changes_nothing(self):
        asked = subprocess.run([sys.executable, str(HERE / "gpu_device.py")], capture_output=True, text=True)
        if asked.returncode == 0:
            self.skipTest("this machine has a GPU")
        ended = subprocess.run([str(HERE.parents[1] / "scripts/bench"), "--gpu", "--write"], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertRegex(ended.stderr, r"\Abench: expected an NVIDIA GPU with its driver for --gpu; found .*; .*\n\Z")


class MostThatFits(unittest.TestCase):
    def test_is_found_from_both_sides_with_few_trials(self):
        for most in range(0, 40):
            tried = []
            found = most_that_fits(lambda n: tried.append(n) or n <= most, 36)
            self.assertEqual(found, (most, True))
            self.assertEqual(len(tried), len(set(tried)))
            self.assertLess(len(tried), 9)
        self.assertEqual(most_that_fits(lambda n: True, 5, more=4), (9, False))


if __name__ == "__main__":
    unittest.main()
