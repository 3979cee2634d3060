"""What the profile of a step (logging.profile_steps, a Chrome trace) comes to."""
import collections
import dataclasses
import json

from programs import Failed

SHOWN = 12


@dataclasses.dataclass
class Summary:
    text: str
    table: str


def busy(spans):
    """Microseconds in which at least one of the spans (begin, end) goes on."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def summary_of(path, on_gpu):
    """Of the kernels on a GPU; of the operations on a CPU."""
    if not path.exists():
        raise Failed(f"{path.name} was not written")
    events = [event for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if event.get("ph") == "X"]
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if on_gpu else ("cpu_op",)
    chosen = [event for event in events if event.get("cat") in wanted]
    if not any(event["cat"] == wanted[0] for event in chosen):
        raise Failed(f"{path.name} has {len(events)} events, and none is a {wanted[0]}")
    times, counts = collections.Counter(), collections.Counter()
    for event in chosen:
        times[event["name"]] += event["dur"]
        counts[event["name"]] += 1
    begin, end = min(event["ts"] for event in events), max(event["ts"] + event["dur"] for event in events)
    share = busy([(event["ts"], event["ts"] + event["dur"]) for event in chosen]) / (end - begin)
    rows = [f"| {time / 1e3:.3f} | {counts[name]} | `{name[:110].replace('|', '/')}` |" for name, time in times.most_common(SHOWN)]
    what = "kernels and copies" if on_gpu else "operations"
    return Summary(f"{len(chosen)} {what}, {share:.0%} of the profiled step",
                   "\n".join([f"| ms | number | {what} that took longest |", "| --- | --- | --- |", *rows]))
