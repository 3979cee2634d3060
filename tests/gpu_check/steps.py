"""The steps of a check, in their order. Each returns what it has found, or raises Failed or Skipped.

Tolerances are relative. On a CPU, the runs of small.toml in fp32 on one rank and on two differ by 5e-8 (losses) and 5e-7 (norms),
those in bf16 from fp32 by 6e-4 and 2e-2, those in float8 from bf16 by 6e-3 and 1.4e-1.
"""
import dataclasses
import json
import os
import re
import shutil
import statistics
import sys
from pathlib import Path

from programs import Failed, Skipped
from step_profile import summary_of
from training import HERE, difference

# (losses, gradient norms): a loss averages over more numbers.
FLOAT32, BFLOAT16, FLOAT8 = (1e-4, 1e-3), (5e-3, 1e-1), (2e-2, 4e-1)
MEMORY = 0.05
PARTS = 8  # of the kernel tests, each under the sanitizer by itself, so that a part of them is checked if time ends
IN_BF16 = ('mixed_precision.param_dtype="bfloat16"',)
IN_FLOAT8 = (*IN_BF16, 'training.float8="tensorwise"')
DETERMINISTIC = ("training.deterministic=true",)
OFFLOADED = ("fsdp.cpu_offload=true",)
ALL_OFFLOADED = (*OFFLOADED, "fsdp.move_grads_to_cpu=true")


@dataclasses.dataclass
class Finding:
    found: str
    expected: str
    details: str = ""  # Markdown below the table


@dataclasses.dataclass
class Visit:
    """What steps share."""
    device: str
    programs: object
    training: object
    work: Path
    configurations: list
    gpus: int = 0
    capability: tuple = (0, 0)
    name: str = "a CPU, as a trial"

    def on_gpu(self):
        return self.device == "cuda"

    def needs_gpu(self):
        if not self.on_gpu():
            raise Skipped("needs a GPU")


def within(differs, tolerance, prefix=""):
    """The finding that losses and norms differ by no more than `tolerance`."""
    expected = f"losses within {tolerance[0]:.0e}, norms within {tolerance[1]:.0e}"
    if not (differs.loss <= tolerance[0] and differs.norm <= tolerance[1]):
        raise Failed(f"{prefix}{differs}; expected: {expected}")
    return Finding(f"{prefix}{differs}", expected)


def equal(differs, prefix=""):
    if differs.loss != 0 or differs.norm != 0:
        raise Failed(f"{prefix}{differs}; expected: no difference")
    return Finding(f"{prefix}{differs}", "equal to the last digit")


def machine(v):
    """doctor asks through libtorch, as training does; nvidia-smi, for the log, asks the driver."""
    doctor = v.programs.run("fsdp-train", "doctor")
    if not v.on_gpu():
        return Finding(re.search(r"^\w+ +cpu +([^;\n]*)", doctor.output, re.M).group(1), "a processor")
    gpus = re.search(r"^\w+ +gpu +(.*)$", doctor.output, re.M)
    facts = re.findall(r"(\d+) x (.+?) \([\d.]+ GiB, compute capability (\d+)\.(\d+)\)", gpus.group(1) if gpus else "")
    if not facts:
        raise Failed(f"{gpus.group(1) if gpus else 'no line about GPUs'} ({doctor.log})")
    v.gpus = sum(int(count) for count, *_ in facts)
    v.name, v.capability = facts[0][1], min((int(major), int(minor)) for *_, major, minor in facts)
    if shutil.which("nvidia-smi"):
        v.programs.command(["nvidia-smi", "-q"], "nvidia-smi")
        v.programs.command(["nvidia-smi", "topo", "-m"], "nvidia-smi-topo")
    driver = re.search(r"^\w+ +gpu driver +(.*)$", doctor.output, re.M)
    if doctor.code != 0:
        raise Failed(f"doctor ended with {doctor.code} ({doctor.log}):{doctor.last_lines(30)}")
    if v.capability < (8, 0):
        raise Failed(f"{gpus.group(1)}; expected: compute capability 8.0 or later")
    return Finding(f"{gpus.group(1)}; {driver.group(1).strip() if driver else ''}", "compute capability 8.0 or later")


def unit_tests(v):
    v.needs_gpu()
    passed, skipped, failures = 0, 0, []
    binaries = sorted(path.name for path in v.programs.folder.glob("*_gpu_test"))
    for index, binary in enumerate(binaries):
        result = v.work / f"{binary}.json"
        try:
            ended = v.programs.run(binary, f"--gtest_output=json:{result}",
                                   limit_s=v.programs.seconds_left() / (len(binaries) - index))
        except Failed as failure:  # the others are still to be seen
            failures.append(str(failure))
            continue
        tests = [test for suite in read_json(result).get("testsuites", []) for test in suite["testsuite"]]
        failed = [f"{test['classname']}.{test['name']}" for test in tests if test.get("failures")]
        passed += sum(test["result"] == "COMPLETED" and not test.get("failures") for test in tests)
        skipped += sum(test["result"] != "COMPLETED" for test in tests)
        if failed:
            failures.append(f"{binary}: {len(failed)} of {len(tests)} failed ({ended.log}): {', '.join(failed[:10])}")
        elif ended.code != 0 or not tests:
            failures.append(f"{binary} ended with {ended.code} ({ended.log}):{ended.last_lines()}")
    if failures:
        raise Failed("\n".join(failures))
    if passed == 0:
        raise Failed(f"no test binary *_gpu_test in {v.programs.folder}")
    return Finding(f"{passed} passed, {skipped} skipped", "none fails")


def read_json(path):
    """{}: a program that crashed writes none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def sanitized(v, tool):
    """Parts of the kernel tests under compute-sanitizer, as many as the step has time for. Only kernels of this project are
    instrumented: those of libtorch would take hours."""
    v.needs_gpu()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        raise Skipped("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin; it is part of the CUDA toolkit")
    # The instrumented racecheck of CUDA 13.0 cannot run beside cuBLAS's kernels for compute capability 9.0 in 16 and 8 bits
    # ("failed to handle a hardware exception"), though it leaves these alone: tests with such products are left out.
    tests = ("-*Float8Products.AreThoseOfTheCpu:*Float8Products.PutGradients*:*LinearCrossEntropy/*16:*LinearCrossEntropy/Half:"
             "*ProductsAdd*/*16:*ProductsAdd*/Half") if tool == "racecheck" else "*"
    # memcheck would also report calls that libtorch makes to see whether they fail.
    options = ["--tool", tool, *(["--report-api-errors", "no"] if tool == "memcheck" else []), "--error-exitcode", "9",
               "--kernel-name", "kernel_substring=fsdp"]
    done = 0
    for part in range(PARTS):
        try:
            ended = v.programs.run("kernels_gpu_test", f"--gtest_filter={tests}", through=[sanitizer, *options], GTEST_TOTAL_SHARDS=str(PARTS),
                                   GTEST_SHARD_INDEX=str(part))
        except Failed:
            if v.programs.seconds_left() > 0:
                raise
            break
        summary = re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)$", ended.output, re.M)
        if ended.code != 0 or not summary:
            raise Failed(f"part {part + 1} of {PARTS}: {summary[-1] if summary else 'no summary'}; exit code {ended.code} "
                         f"({ended.log}):{ended.last_lines()}")
        done += 1
    if done == 0:
        raise Failed(f"no part of {PARTS} ended in time")
    return Finding(f"no error in {done} of {PARTS} parts of kernels_gpu_test", "no error")


def memcheck(v):
    return sanitized(v, "memcheck")


def racecheck(v):
    return sanitized(v, "racecheck")


def against_cpu(v, overrides, tolerance):
    run = v.training.run(*overrides)
    finding = within(difference(run, v.training.run(*overrides, device="cpu", label="reference")), tolerance)
    finding.found += f"; loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}"
    return finding


def float32(v):
    return against_cpu(v, (), FLOAT32)


def bfloat16(v):
    return against_cpu(v, IN_BF16, BFLOAT16)


def repeat(v):
    for what, overrides in (("fp32: ", DETERMINISTIC), ("bf16: ", (*DETERMINISTIC, *IN_BF16))):
        equal(difference(v.training.run(*overrides), v.training.run(*overrides, label="again")), what)
    return Finding("fp32 and bf16: no difference", "equal to the last digit")


def offload(v):
    """The optimizer then runs on the CPU."""
    within(difference(v.training.run(*OFFLOADED), v.training.run()), FLOAT32, "shards in host memory: ")
    return within(difference(v.training.run(*ALL_OFFLOADED), v.training.run()), FLOAT32, "shards and gradients: ")


def graphs(v):
    v.needs_gpu()
    plain = v.training.run(*DETERMINISTIC, *IN_BF16)
    run = v.training.run("training.cuda_graphs=true", *DETERMINISTIC, *IN_BF16)
    counts = re.search(r"CUDA graphs: (\d+) recorded, (\d+) launched", run.output)
    if not counts or int(counts.group(2)) == 0:
        raise Failed(f"{counts.group(0) if counts else 'no line about CUDA graphs'}; expected: graphs that were launched")
    finding = equal(difference(run, plain))
    finding.found += f"; {counts.group(1)} recorded, {counts.group(2)} launched"
    return finding


def float8(v):
    if v.on_gpu() and v.capability < (8, 9):
        raise Skipped(f"needs compute capability 8.9 or later, and the GPU has {v.capability[0]}.{v.capability[1]}")
    run, plain = v.training.run(*IN_FLOAT8), v.training.run(*IN_BF16)
    differs = difference(run, plain)
    if differs.loss == 0:
        raise Failed("losses equal those of bf16; expected: those of other products")
    return within(differs, FLOAT8, "from bf16: ")


def two_ranks(v):
    """The same samples, half of them on each rank."""
    run = v.training.run("data.micro_batch_size=2", ranks=2)
    way = "NCCL on two GPUs" if v.gpus > 1 else "on one GPU, through host memory" if v.on_gpu() else "shared memory"
    if v.gpus == 1 and "through host memory" not in run.output:
        raise Failed("two processes on one GPU do not say that they exchange tensors through host memory")
    return within(difference(run, v.training.run()), FLOAT32, f"{way}: ")


def configurations(v):
    """Of the stand-in's matrix, those whose losses can be compared with the CPU's."""
    v.needs_gpu()
    jobs = max(1, len(os.sched_getaffinity(0)) // 2)
    ended = v.programs.command([sys.executable, HERE.parent / "cuda_standin/run.py", "--mode", "gpu", "--jobs", jobs, "--build",
                                v.programs.folder.parent, *v.configurations], "configurations")
    results = {what: re.findall(rf"^{what} (\S+)", ended.output, re.M) for what in ("passed", "FAILED")}
    if results["FAILED"]:
        raise Failed(f"{len(results['FAILED'])} failed ({ended.log}): {', '.join(results['FAILED'][:10])}")
    if ended.code != 0 or not results["passed"]:
        raise Failed(f"exit code {ended.code} ({ended.log}):{ended.last_lines()}")
    return Finding(f"{len(results['passed'])} passed", "none fails")


def engine_cost(v):
    config, less = ("medium", ()) if v.on_gpu() else ("small", ("data.sequence_length=16",))
    costs = []
    for dtype in ("float32", "bfloat16"):
        ended = v.programs.run_well("engine_cost", HERE / f"{config}.toml", f'mixed_precision.param_dtype="{dtype}"',
                                    f"training.device={v.device}", "data.micro_batch_size=2", *less)
        cost = json.loads(ended.output.splitlines()[-1])
        costs.append(f"{dtype} {cost['with_s'] / cost['without_s']:.3f} ({cost['least_ratio']:.3f}.."
                     f"{cost['largest_ratio']:.3f})")
    return Finding("a step with the engine / without: " + ", ".join(costs), "figures")


def engine_overhead(v):
    ended = v.programs.run_well("engine_overhead", 200 if v.on_gpu() else 5, v.device)
    costs = re.findall(r"the engine +([\d.]+) us a unit", ended.output)
    if len(costs) != 2:
        raise Failed(f"two costs of the engine were expected in {ended.log}")
    return Finding(f"{costs[0]} us a unit in a world of 8, {costs[1]} in one of 1024", "figures")


def speed(v):
    """Speed and profile of a model that keeps a GPU busy."""
    profiled = 8
    words = dict(config="medium") if v.on_gpu() else {}
    run = v.training.run(f"logging.profile_steps=[{profiled}]", **words)
    counted = [step for step in run.steps if step["step"] > 3 and step["step"] != profiled]
    seconds = statistics.median(step["step_seconds"] for step in counted)
    found = "124 million parameters in bf16: " if v.on_gpu() else ""
    found += f"{statistics.median(step['tokens_per_second'] for step in counted):,.0f} tokens/s, {1e3 * seconds:.1f} ms a step"
    if v.on_gpu():
        found += f", MFU {statistics.median(step['mfu'] for step in counted):.1%}, peak " \
                 f"{run.steps[-1]['gpu_peak_allocated_bytes'] / 2**30:.2f} GiB"
    summary = summary_of(run.folder / f"profile.rank0.step{profiled}.json", v.on_gpu())
    return Finding(f"{found}; {summary.text}", "a profile with kernels" if v.on_gpu() else "a profile", summary.table)


def memory(v):
    """One rank of eight, of which seven are not there."""
    words = [HERE / "medium.toml"] if v.on_gpu() else [HERE / "small.toml", "data.micro_batch_size=2"]
    found = []
    for what, overrides in (("on the device", ()), ("offloaded", ALL_OFFLOADED)):
        ended = v.programs.run_well("fsdp-train", *words, *overrides, f"training.device={v.device}", "--dry-run", "--json",
                                    "--world-size", 8)
        lines = ended.output.splitlines()
        json_of_run = json.loads("\n".join(lines[lines.index("{"):]))
        planned = json_of_run["memory"]["device_peak_bytes" if v.on_gpu() else "peak_bytes"]
        measured = json_of_run["measured"]["peak_bytes"]
        found.append(f"{what} {measured / 2**20:,.1f} MiB, planned {planned / 2**20:,.1f} ({measured / planned - 1:+.1%})")
        if not abs(measured / planned - 1) <= MEMORY:
            raise Failed(f"{found[-1]}; expected: within {MEMORY:.0%} of the plan ({ended.log})")
    return Finding("; ".join(found), f"within {MEMORY:.0%} of the plan")


@dataclasses.dataclass
class Step:
    name: str
    title: str
    seconds: int  # at most
    take: object


# The sanitizer comes last: it takes what time is left.
STEPS = [
    Step("machine", "machine", 60, machine),
    Step("unit-tests", "unit tests on the GPU", 240, unit_tests),
    Step("float32", "losses of the GPU and of the CPU, fp32", 120, float32),
    Step("bfloat16", "the same in bf16", 90, bfloat16),
    Step("repeat", "the same run again", 90, repeat),
    Step("offload", "shards in host memory", 90, offload),
    Step("graphs", "CUDA graphs", 60, graphs),
    Step("float8", "float8", 60, float8),
    Step("two-ranks", "two ranks and one", 90, two_ranks),
    Step("configurations", "configurations of the stand-in's matrix", 420, configurations),
    Step("memory", "memory of a step and its plan", 90, memory),
    Step("engine-cost", "cost of the engine", 120, engine_cost),
    Step("engine-overhead", "bookkeeping of the engine", 60, engine_overhead),
    Step("speed", "speed and profile of a step", 120, speed),
    Step("memcheck", "compute-sanitizer, memcheck", 180, memcheck),
    Step("racecheck", "compute-sanitizer, racecheck", 180, racecheck),
]
