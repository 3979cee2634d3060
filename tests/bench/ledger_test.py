#!/usr/bin/env python3
"""The ledger of a step on a GPU: its sums, what it makes of a trace, and that it names launches which it lacks."""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import ledger  # noqa: E402
from gpu_models import ON_GPUS  # noqa: E402
from ledger_step import BY_A_KEY, CHANGES, Ceilings, Step, expected_of  # noqa: E402

# Names as a GPU's trace has them, of kinds that a step of llama launches.
NAMES = {
    "fill": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(...)",
    "cast to bf16": "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(...)::{lambda(float)#1}>",
    "embedding": "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
    "rms norm": "void fsdp::kernels::cuda::entry<fsdp::kernels::cuda::RmsNormKernel<c10::BFloat16, ...> >(...)",
    "rotary": "void fsdp::kernels::cuda::entry<fsdp::kernels::cuda::RotaryKernel<c10::BFloat16, 8> >(...)",
    "product": "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "attention": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "swiglu": "fsdp::kernels::cuda::SwiGluKernel<c10::BFloat16>", "swiglu gradient": "fsdp::kernels::cuda::SwiGluGradKernel<c10::BFloat16>",
    "add": "at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, ...>",
    "count": "fsdp::kernels::cuda::CountKernel", "loss": "fsdp::kernels::cuda::LossKernel<c10::BFloat16>",
    "sum": "fsdp::kernels::cuda::SumKernel", "scale": "fsdp::kernels::cuda::ScaleKernel<c10::BFloat16>",
    "cast": "at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>",
    "norm gradient": "fsdp::kernels::cuda::NormGradKernel<c10::BFloat16, RmsNormGrad>", "total": "fsdp::kernels::cuda::TotalKernel<float>",
    "cat": "at::native::CatArrayBatchedCopy_vectorized<...>", "reduce": "at::native::reduce_kernel<512, 1, ...>",
    "sort": "at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortExclusiveSumKernel<...>",
    "embedding gradient": "fsdp::kernels::cuda::LongRunsKernel<c10::BFloat16, float, 8>",
    "squares": "fsdp::kernels::cuda::SquaresKernel<float, 4>", "outcome": "fsdp::kernels::cuda::OutcomeKernel",
    "adamw": "fsdp::kernels::cuda::AdamKernel<float, ElementShape<4> >",
}
LLAMA = ON_GPUS.models["llama-1.3b"]


def step_of(name, *changes):
    return Step(ON_GPUS.models[name], ON_GPUS.sequences[name], changes)


def as_launched(step):
    return [ledger.label(launch.kind, launch.sizes, launch.to) if launch.kind == "product" else NAMES[launch.kind]
            for launch in step.launched()]


class Derived(unittest.TestCase):
    def ms(self, name, *changes):
        return ledger.derived_ms(step_of(name, *changes), Ceilings())

    def test_sums_are_those_of_the_steps_that_were_measured(self):
        for name, busy_ms in (("llama-1.3b", 133.7), ("gpt2-124m", 36.2)):
            self.assertAlmostEqual(self.ms(name) / busy_ms, 1, delta=0.02)

    def test_bytes_and_flops_follow_from_the_model(self):
        step = step_of("llama-1.3b")
        rows = {row.name: row for row in ledger.rows_of(step, expected_of(step))}
        parameters = 24 * (4 * 2048**2 + 3 * 2048 * 5504 + 2 * 2048) + 2 * 32000 * 2048 + 2048
        self.assertEqual(rows["AdamW"].bytes, 28 * parameters)
        self.assertEqual(rows["F SwiGLU"].bytes, 24 * 3 * 2 * 8192 * 5504)
        products = sum(launch.flops for launch in step.launches if launch.kind == "product")
        self.assertEqual(products, 3 * 2 * 8192 * (24 * (4 * 2048**2 + 3 * 2048 * 5504) + 32000 * 2048))
        chunks = [launch.sizes[0] for launch in step_of("gpt2-124m").launches if launch.row == "head: logits" and launch.sizes[1] == 50240]
        self.assertEqual(chunks, [5120, 5120, 5120, 1024])

    def test_each_change_makes_a_step_shorter_or_leaves_it(self):
        for name in ON_GPUS.models:
            changes = ledger.changes_of(ON_GPUS.models[name], ON_GPUS.sequences[name], Ceilings(), ())
            self.assertEqual([change.name for change in changes], sorted(CHANGES, key=lambda name: name not in BY_A_KEY))
            for change in changes:
                self.assertGreaterEqual(change.before_ms - change.after_ms, -1e-9, change.name)
            self.assertAlmostEqual(changes[-1].after_ms, self.ms(name, *CHANGES))
        self.assertAlmostEqual(self.ms("llama-1.3b") - self.ms("llama-1.3b", "adamw-copy"), 4.1, delta=0.1)

    def test_prints_kernels_and_changes(self):
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", ["ledger.py", "--derive", "llama-1.3b", "--with", "adamw-copy"]), \
                contextlib.redirect_stdout(printed):
            self.assertEqual(ledger.main(), 0)
        self.assertNotIn("| F casts of shards |", printed.getvalue())
        self.assertRegex(printed.getvalue(), r"\| adamw-copy \| AdamW writes .* \| in the code \| 4\.\d+ \| 48 \|")


class Launches(unittest.TestCase):
    def test_of_the_code_are_those_of_the_ledger(self):
        step = step_of("llama-1.3b")
        self.assertEqual(ledger.differences(step, as_launched(step)), [])

    def test_that_the_ledger_lacks_are_named(self):
        step = step_of("llama-1.3b")
        names = as_launched(step)
        self.assertEqual(ledger.differences(step, [*names, "a_new_kernel"]),
                         ["the ledger does not know a kernel that is launched 1 times a step: a_new_kernel"])
        self.assertEqual(ledger.differences(step, [*names, NAMES["rotary"]]), ["rotary: 49 launches a step, 48 in the ledger"])
        self.assertEqual(ledger.differences(step, [*names, "copy of 33554432 bytes"]),
                         ["copy of 33554432 bytes: 1 launches a step, 0 in the ledger"])
        self.assertEqual(ledger.differences(step, [*names, "memset of 33554432 bytes", NAMES["fill"]]), [])
        self.assertEqual([ledger.is_small_copy(name) for name in ("copy of 33554432 bytes", "memset of 8 bytes", names[0])],
                         [False, True, False])
        wrong = [name.replace("8192 x 11008 x 2048", "8192 x 11009 x 2048") for name in names]
        self.assertIn("product 8192 x 11009 x 2048 to 16 bits: 24 launches a step, 0 in the ledger", ledger.differences(step, wrong))
        at = names.index(NAMES["swiglu"])
        names[at], names[at + 1] = names[at + 1], names[at]
        self.assertRegex(ledger.differences(step, names)[0], "^launch .* of the step is 'product .*', 'swiglu' in the ledger$")

    def test_show_which_changes_the_code_has(self):
        changes = ("norm1-two-outputs", "adamw-copy")
        launched = {"llama": as_launched(Step(*ledger.CHECKED["llama"], changes))}
        self.assertEqual(ledger.fitting_changes(launched), changes)
        self.assertIsNone(ledger.fitting_changes({"llama": launched["llama"][:-1]}))


class Traces(unittest.TestCase):
    """Each launch takes twice the time of its ceiling, but the gradient of SwiGLU, which takes ten times as long."""

    def read(self, change=lambda events: events):
        step, ceilings, events, now = step_of("llama-1.3b"), Ceilings(), [], 0.0
        for launch in step.launched():
            took = 1e6 * ceilings.seconds(launch) * (10 if launch.kind == "swiglu gradient" else 2)
            pieces = 3 if launch.row == "B attention" else 1
            for _ in range(pieces):
                events.append(dict(ph="X", cat="kernel", name=NAMES[launch.kind], ts=now, dur=took / pieces))
                now += took / pieces + 1
        events = change(events)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            path.write_text(json.dumps(dict(traceEvents=events + [dict(ph="X", cat="cpu_op", name="aten::mm", ts=0, dur=9)])))
            text, summary, _ = ledger.read_trace(path, LLAMA, 4, ceilings, ())
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]], summary

    def test_are_joined_with_the_ledger_and_sorted_by_what_is_lost(self):
        rows, summary = self.read()
        self.assertEqual(rows[0][:2], ["B SwiGLU", "24"])
        self.assertAlmostEqual(float(rows[0][2]), 10 * float(rows[0][3]), delta=0.02)
        lost = [float(row[4].replace("-", "0")) for row in rows]
        self.assertEqual(lost, sorted(lost, reverse=True))
        by_name = {row[0]: row for row in rows}
        self.assertEqual(by_name["B attention"][1], "24")  # of three kernels each
        self.assertEqual(by_name["B gate, up dW"][6], "375")
        self.assertEqual(by_name["AdamW"][5], "1.50")
        self.assertFalse(any("*" in row[0] for row in rows))
        self.assertRegex(summary, r"^\d+ kernels and copies, [\d.]+ ms busy of [\d.]+; ceilings 3 TB/s and 750 TFLOP/s; ")

    def test_that_have_other_launches_are_joined_by_kind(self):
        def lose_one(events):
            events.remove(next(event for event in events if event["name"] == NAMES["rotary"]))
            return [*events, dict(ph="X", cat="kernel", name="new_one", ts=events[-1]["ts"] + 1e3, dur=5000)]
        rows, _ = self.read(lose_one)
        by_name = {row[0]: row for row in rows}
        self.assertIn("all of kind 'rotary': 47 launches, 48 in the ledger *", by_name)
        self.assertEqual(by_name["not in the ledger: new_one"][1:3], ["1", "5.000"])


if __name__ == "__main__":
    unittest.main()
