#!/usr/bin/env python3
"""The check of a GPU: what it makes of programs that only say what those on a GPU would, and a trial on the CPU with the
programs of FSDP_BIN_DIR, from a folder that --pack made."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import libtorch  # noqa: E402
from step_profile import busy  # noqa: E402

# One program, which is what it is called. SHIFT names an argument, and what the losses of a run that has it are multiplied by.
PROGRAM = r'''#!/usr/bin/env python3
import json, os, sys, time
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
keys = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
slow, shifted, broken = os.environ.get("SLOW", ":"), os.environ.get("SHIFT", ": 1").split(), os.environ.get("BROKEN", ":")
if slow in arguments + [name]:
    time.sleep(60)
if name == broken:
    sys.exit("it broke")
if name == "fsdp-launch":
    print("processes exchange GPU tensors through host memory")
    command = arguments[arguments.index("--") + 1:]
    sys.exit(os.spawnv(os.P_WAIT, command[0], command + ["ranks=2"]))
elif name == "compute-sanitizer":
    print("========= ERROR SUMMARY: 0 errors")
    tested = arguments.index("kernel_substring=fsdp") + 1
    sys.exit(os.spawnv(os.P_WAIT, arguments[tested], arguments[tested:]))
elif name.endswith("_gpu_test"):
    for argument in (one for one in arguments if one.startswith("--gtest_output=")):
        failures = [dict(failure="x")] if os.environ.get("TEST_FAILS") else []
        tests = [dict(classname="Cuda", name="Adds", result="COMPLETED", failures=failures),
                 dict(classname="TwoGpus", name="Send", result="SKIPPED")]
        open(argument.split(":", 1)[1], "w").write(json.dumps(dict(testsuites=[dict(testsuite=tests)])))
elif name == "engine_cost":
    print(json.dumps(dict(without_s=0.1, with_s=0.11, units=13, least_ratio=1.05, largest_ratio=1.2)))
elif name == "engine_overhead":
    print("    8 ranks   10 us, the engine   1.50 us a unit\n 1024 ranks   11 us, the engine   1.75 us a unit")
elif arguments == ["--version"]:
    print("fsdp-train 0.0.0")
elif arguments == ["doctor"]:
    print("ok    gpu               1 x NVIDIA H100 (79.2 GiB, compute capability " + os.environ.get("CAPABILITY", "9.0") + ")")
    print("ok    gpu driver        580.1")
elif "--dry-run" in arguments:
    measured = float(os.environ.get("MEASURED", "1.01"))
    print(json.dumps(dict(memory=dict(device_peak_bytes=2**30), measured=dict(peak_bytes=measured * 2**30)), indent=1))
else:
    factor = float(os.environ.get("FLOAT8", "1.001")) if "training.float8" in keys else 1.0
    for argument in arguments:
        factor *= float(shifted[1]) if argument == shifted[0] else 1.0
    folder = keys.get("run.output_dir", "out")
    os.makedirs(folder)
    with open(folder + "/metrics.jsonl", "w") as lines:
        for step in range(1, 13):
            line = dict(step=step, loss=factor * (6 - step / 10), grad_norm=1.0, step_seconds=0.1, tokens_per_second=1000,
                        mfu=0.5, gpu_peak_allocated_bytes=2**30)
            print(json.dumps(line), file=lines)
    if "logging.profile_steps" in keys:
        events = [dict(ph="X", cat="cpu_op", name="aten::add", ts=0, dur=100), dict(ph="X", cat="kernel", name="add|", ts=20, dur=60)]
        open(folder + "/profile.rank0.step8.json", "w").write(json.dumps(dict(traceEvents=events)))
    print("CUDA graphs: 8 recorded, 64 launched, 0 passes")
'''
NAMES = ("fsdp-train", "fsdp-launch", "engine_cost", "engine_overhead", "comm_gpu_test", "kernels_gpu_test")


class Checks(unittest.TestCase):
    """`check()` runs the check on a GPU with the programs in self.bin."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def write_program(self, path):
        path.write_text(PROGRAM, encoding="utf-8")
        path.chmod(0o755)

    def check(self, *arguments, script=PROJECT / "scripts/gpu_check", **environment):
        """The exit code, the rows of the report by step, and the whole report."""
        output = self.folder / "report"
        shutil.rmtree(output, ignore_errors=True)
        command = [str(script), "--output", str(output), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=self.folder,
                               env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", **environment})
        self.said = ended.stdout + ended.stderr
        report = output / "report.md"
        text = report.read_text(encoding="utf-8") if report.exists() else ""
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()
                if re.match(r"\| .* \| (passed|failed|skipped) \|", line)]
        return ended.returncode, {row[0]: row[1:] for row in rows}, text


class OfAGpu(Checks):
    def setUp(self):
        super().setUp()
        for name in NAMES:
            self.write_program(self.bin / name)

    def check(self, *arguments, **environment):
        return super().check(*arguments, FSDP_BIN_DIR=str(self.bin), **environment)

    def failures(self, *arguments, **environment):
        code, rows, _ = self.check(*arguments, **environment)
        failed = sorted(title for title, row in rows.items() if row[0] == "failed")
        self.assertEqual(code, 1 if failed else 0, self.said)
        return failed

    def test_passes_and_reports_each_step(self):
        self.write_program(self.folder / "compute-sanitizer")
        code, rows, text = self.check("--configurations", "fp32,bf16_2")
        self.assertEqual(code, 0, self.said)
        self.assertEqual({row[0] for row in rows.values()}, {"passed"}, text)
        self.assertIn("# Check of NVIDIA H100, ", text)
        self.assertIn("**16 steps passed.**", text)
        self.assertEqual(rows["unit tests on the GPU"][1], "2 passed, 2 skipped")
        self.assertEqual(rows["CUDA graphs"][1], "no difference; 8 recorded, 64 launched")
        self.assertIn("from bf16: losses differ by 1.0e-03", rows["float8"][1])
        self.assertIn("on one GPU, through host memory: no difference", rows["two ranks and one"][1])
        self.assertEqual(rows["configurations of the stand-in's matrix"][1], "2 passed")
        self.assertIn("1,034.2 MiB, planned 1,024.0 (+1.0%)", rows["memory of a step and its plan"][1])
        self.assertIn("1,000 tokens/s, 100.0 ms a step, MFU 50.0%", rows["speed and profile of a step"][1])
        self.assertIn("1 kernels and copies, 60% of the profiled step", rows["speed and profile of a step"][1])
        self.assertIn("| 0.060 | 1 | `add/` |", text)
        self.assertIn("no error in 8 of 8 parts", rows["compute-sanitizer, racecheck"][1])
        self.assertTrue((self.folder / "report/logs/03-float32.1.fsdp-train.log").exists())

    def test_names_the_comparison_that_fails_and_goes_on(self):
        for argument, factor, step, title in (
                ("fsdp.move_grads_to_cpu=true", "1.001", "offload", "shards in host memory"),
                ('training.float8="tensorwise"', "1.1", "float8", "float8"),
                ("training.cuda_graphs=true", "1.0000001", "graphs", "CUDA graphs"),
                ("ranks=2", "1.001", "two-ranks", "two ranks and one")):
            with self.subTest(argument):
                self.assertEqual(self.failures("--steps", f"{step},repeat", SHIFT=f"{argument} {factor}"), [title])
        self.assertEqual(self.failures("--steps", "float32,bfloat16,offload", SHIFT="training.device=cpu 1.001"),
                         ["losses of the GPU and of the CPU, fp32"])
        self.assertEqual(self.failures("--steps", "float8", FLOAT8="1"), ["float8"])  # of bf16: no 8-bit products

    def test_names_the_configuration_whose_losses_are_not_those_of_the_cpu(self):
        some = ("--steps", "configurations", "--configurations", "fp32,gpt2,bf16_2")
        self.assertEqual(self.failures(*some, SHIFT="training.device=cpu 1.0005"), ["configurations of the stand-in's matrix"])
        self.assertIn("2 failed (10-configurations.1.configurations.log): fp32, gpt2", self.said)  # and bf16 within its tolerance

    def test_takes_numbers_that_mean_nothing_for_failures(self):
        steps = ("--steps", "repeat,offload")
        for factor in ("nan", "0", "-1", "inf"):
            with self.subTest(factor):
                self.assertEqual(self.failures(*steps, SHIFT=f"training.device=cuda {factor}"),
                                 ["shards in host memory", "the same run again"])

    def test_skips_what_the_gpu_lacks(self):
        code, rows, text = self.check("--steps", "float8,memcheck", CAPABILITY="8.0", PATH="/usr/bin:/bin")
        self.assertEqual(code, 0, self.said)
        self.assertEqual(rows["float8"][:2], ["skipped", "needs compute capability 8.9 or later, and the GPU has 8.0"])
        self.assertEqual(rows["compute-sanitizer, memcheck"][0], "skipped")
        self.assertIn("**0 steps passed, 2 were skipped.**", text)

    def test_reports_programs_that_fail(self):
        self.assertEqual(self.failures("--steps", "unit-tests,engine-cost", TEST_FAILS="1"), ["unit tests on the GPU"])
        self.assertIn("Cuda.Adds", self.said)
        self.assertEqual(self.failures("--steps", "unit-tests,engine-cost", BROKEN="comm_gpu_test"), ["unit tests on the GPU"])
        self.assertIn("comm_gpu_test ended with 1", self.said)
        self.assertEqual(self.failures("--steps", "unit-tests,engine-cost", BROKEN="engine_cost"), ["cost of the engine"])
        self.assertEqual(self.failures("--steps", "memory", MEASURED="0.94"), ["memory of a step and its plan"])
        self.write_program(self.folder / "compute-sanitizer")
        self.assertEqual(self.failures("--steps", "memcheck", BROKEN="kernels_gpu_test"), ["compute-sanitizer, memcheck"])

    def test_ends_programs_that_take_too_long(self):
        begin = time.monotonic()
        self.assertEqual(self.failures("--steps", "repeat,graphs,memory", "--minutes", "0.08", SLOW="training.cuda_graphs=true"),
                         ["CUDA graphs", "memory of a step and its plan"])
        self.assertRegex(self.said, "CUDA graphs .*: 'fsdp-train' did not end in")
        self.assertIn("no time was left", self.said)
        self.assertLess(time.monotonic() - begin, 30)

    def test_refuses_what_it_does_not_know(self):
        self.assertEqual(self.check("--steps", "speed,light")[0], 2)
        self.assertIn("found 'light'", self.said)
        (self.folder / "kept").mkdir()
        (self.folder / "kept/file").touch()
        self.assertEqual(self.check("--output", "kept")[0], 2)
        self.assertEqual(self.check("--libtorch", str(self.folder))[0], 1)
        self.assertRegex(self.said, rf"\Agpu_check: expected libtorch {re.escape(libtorch.VERSION)} .*torch/lib/libtorch_cuda.so is missing; .*\n\Z")
        self.assertFalse((self.folder / "report").exists())


class OfTheCpu(Checks):
    """Whole runs of the programs in FSDP_BIN_DIR, which are not of the CUDA flavour."""

    def test_passes_from_another_folder_and_notices_a_changed_loss(self):
        if "FSDP_BIN_DIR" not in os.environ:
            self.skipTest("FSDP_BIN_DIR names no programs")
        packed, moved = self.folder / "packed", self.folder / "moved"
        made = subprocess.run([PROJECT / "scripts/gpu_check", "--device", "cpu", "--pack", packed], capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        packed.rename(moved)
        # Programs that were moved away from their libtorch have to be told where it is.
        trial = ("--device", "cpu", "--libtorch", (Path(os.environ["FSDP_BIN_DIR"]).parent / "lib/fsdp/libtorch").resolve())
        environment = dict(script=moved / "scripts/gpu_check", FSDP_BIN_DIR="", FSDP_DEPS_DIR="", OMP_NUM_THREADS="1")
        code, rows, text = self.check(*trial, **environment)
        self.assertEqual(code, 0, self.said)
        self.assertIn("**11 steps passed, 5 were skipped.**", text)
        self.assertEqual(rows["the same run again"][0], "passed")
        self.assertIn("- fsdp-train", text)

        real = moved / "programs/bin/fsdp-train"
        real.rename(real.with_suffix(".real"))
        real.write_text(f"#!/bin/sh\n{real}.real \"$@\" || exit\nfolder=$(printf '%s\\n' \"$@\" | sed -n 's/run.output_dir=//p')\n"
                        "case \"$*\" in *move_grads_to_cpu*) sed -i '12s/\"loss\":\\([0-9]\\)/\"loss\":1\\1/' $folder/metrics.jsonl;; "
                        "esac\n", encoding="utf-8")
        real.chmod(0o755)
        code, rows, _ = self.check(*trial, "--steps", "float32,offload,two-ranks", **environment)
        self.assertEqual(code, 1, self.said)
        self.assertEqual({title: row[0] for title, row in rows.items()}, {
            "losses of the GPU and of the CPU, fp32": "passed", "shards in host memory": "failed", "two ranks and one": "passed"})


class Libtorch(unittest.TestCase):
    def test_is_pinned_in_the_version_of_its_wheels(self):
        for name in ("libtorch-cpu.txt", "libtorch-cuda.txt"):
            self.assertIn(f"\ntorch=={libtorch.PINNED} --hash=", (PROJECT / "scripts" / name).read_text(encoding="utf-8"))

    def test_is_taken_where_all_of_it_is_there_in_the_right_version(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in libtorch.FILES["cuda"]:
                self.assertIsNotNone(libtorch.obstacle(folder, "cuda"))
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).touch()
            self.assertEqual(libtorch.find(folder, folder), folder.resolve())
            (folder / "torch/version.py").write_text(f"__version__ = '{libtorch.PINNED}+cu130'\n", encoding="utf-8")
            self.assertEqual(libtorch.find(folder, folder), folder.resolve())
            self.assertEqual(libtorch.libraries(folder), [folder / "torch/lib", folder / "nvidia/cu13/lib"])
            (folder / "torch/version.py").write_text("__version__ = '2.9.1+cu130'\n", encoding="utf-8")
            with self.assertRaisesRegex(libtorch.NoLibtorch, "where its version is 2.9.1"):
                libtorch.find(folder, folder)


class Busy(unittest.TestCase):
    def test_counts_overlapping_kernels_once(self):
        self.assertEqual(busy([(0, 10), (5, 15), (7, 8), (20, 30)]), 25)


if __name__ == "__main__":
    unittest.main()
