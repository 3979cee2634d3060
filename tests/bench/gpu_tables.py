"""Markdown tables of the benchmark on GPUs."""
from gpu_models import GIB
from step_tables import differs_by, median_of, median_step, pair, ratio, table, tokens_per_second, with_spread

# Dense bf16, TFLOP/s, of NVIDIA's data sheets; the first name that is part of the GPU's counts.
DATA_SHEETS = [("H100 PCIe", 756.0), ("H100 NVL", 835.0), ("H100", 989.4), ("H200", 989.4), ("A100", 312.0)]


def peak_rate(gpu, given, measured):
    """What MFU is a share of, in TFLOP/s, and who says so."""
    if given:
        return given, "given"
    for name, rate in DATA_SHEETS:
        if name in gpu:
            return rate, "data sheet"
    return measured, "the best product measured"


def utilisation(setting, model, runs, peak_tflops):
    rate = tokens_per_second(setting, model, median_step(runs)) * model.training_flops_per_token()
    return rate / (peak_tflops * 1e12 * setting.ranks)


def both(ours, theirs, figure):
    return " / ".join(figure(runs) if runs else "-" for runs in (ours, theirs))


def memory(c):
    """Of tensors on the GPU; on the CPU, resident."""
    name = "peak_mib" if (c.ours or c.theirs)[0].gpu_mib is None else "gpu_mib"
    if c.ours and c.theirs:
        return pair(median_of(c.ours, name), median_of(c.theirs, name), 0)
    return both(c.ours, c.theirs, lambda runs: f"{median_of(runs, name):.0f}")


def row(c, model, peak_tflops):
    s = c.setting
    head = [s.model, f"{model.parameters() / 1e9:.3g}", str(s.ranks), str(s.sequences),
            "host" if s.offload else "device", c.peer]
    if not c.ours and not c.theirs:
        return head + ["out of memory", "out of memory", *["-"] * 5]
    return head + [
        with_spread(c.ours) if c.ours else "out of memory", with_spread(c.theirs) if c.theirs else "out of memory",
        ratio(c.theirs, c.ours) if c.ours and c.theirs else "-",
        both(c.ours, c.theirs, lambda runs: f"{tokens_per_second(s, model, median_step(runs)):,.0f}"),
        both(c.ours, c.theirs, lambda runs: f"{utilisation(s, model, runs, peak_tflops):.1%}"), memory(c),
        differs_by(c) if c.difference is not None else "-"]


def gpu_table(comparisons, models, peak_tflops):
    """Ratios of time over 1 mean that ours is faster, those of memory under 1 that ours is smaller."""
    return table(["model", "billion parameters", "ranks", "sequences a rank", "shards in", "peer", "ours, s", "peer, s",
                  "peer / ours", "tokens/s, ours / peer", "MFU, ours / peer", "peak MiB of tensors, ours / peer",
                  "losses differ by"], [row(c, models[c.setting.model], peak_tflops) for c in comparisons])


def memory_table(measured):
    """`measured`: (what, fsdp-train --dry-run --json, or None where the memory did not suffice)."""
    rows = []
    for what, found in measured:
        if found is None:
            rows.append([what, *["out of memory"] * 5])
            continue
        plan, run = found["memory"], found["measured"]
        on_gpu = "gpu" in run
        reserved = f"{run['gpu_reserved_bytes'] / GIB:.2f}" if on_gpu else "-"
        kept = run["shard_bytes"] + run["optimizer_bytes"] + run["gradient_bytes"]
        rows.append([what, f"{kept / GIB:.2f}", f"{plan['device_peak_bytes' if on_gpu else 'peak_bytes'] / GIB:.2f}",
                     f"{run['peak_bytes'] / GIB:.2f}", reserved, f"{run['step_seconds']:.4g}"])
    return table(["one rank of", "shards, gradients and optimizer, GiB", "planned peak, GiB", "measured peak, GiB",
                  "taken from the GPU, GiB", "a step without communication, s"], rows)
