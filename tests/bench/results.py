#!/usr/bin/env python3
"""tests/bench/RESULTS.md: sections of figures between markers, each with the machine that gave them.

    results.py SECTION [FLAGS] < TEXT    puts TEXT in place of what the section held; a new section goes to the end
"""
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
PINNED_LIBTORCH = HERE / "../../scripts/libtorch-version"


def first_match(path, pattern, default="unknown"):
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.M)
    except OSError:
        found = None
    return found.group(1).strip() if found else default


def output_of(*command):
    try:
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe_machine(flags=""):
    """What a figure depends on: processor, memory, kernel, versions, flags; nothing that names the host."""
    cpu_flags = set(first_match("/proc/cpuinfo", r"^flags\s*:(.*)$", "").split())
    vectors = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in cpu_flags]
    memory_gib = int(first_match("/proc/meminfo", r"^MemTotal:\s*(\d+)", "0")) / 2**20
    model = first_match("/proc/cpuinfo", r"^model name\s*:(.*)$")
    family = first_match("/proc/cpuinfo", r"^cpu family\s*:(.*)$")
    source = "commit " + (output_of("git", "rev-parse", "--short=10", "HEAD") or "unknown")
    if output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude)RESULTS.md"):
        source += " with changes"
    if os.environ.get("FSDP_BIN_DIR"):
        source = "programs of FSDP_BIN_DIR"  # of which commit, nothing says
    compiler = output_of("g++", "-dumpfullversion") or "unknown"
    text = (f"{datetime.date.today().isoformat()}, {source}; {model} (family {family}; {', '.join(vectors)}), "
            f"{len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, Linux {os.uname().release.split('-')[0]}, "
            f"g++ {compiler}, libtorch {PINNED_LIBTORCH.read_text(encoding='utf-8').strip()}")
    return text + (f"; {flags}" if flags else "") + "."


def replace_section(name, text, path=RESULTS):
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    section = f"{begin}\n{text.strip()}\n{end}"
    before, found, rest = old.partition(begin)
    if found and end in rest:
        new = before + section + rest.partition(end)[2]
    else:
        new = old.rstrip("\n") + f"\n\n{section}\n"
    part = path.with_suffix(".part")
    part.write_text(new, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: results.py SECTION [FLAGS] < TEXT")
    machine, figures = describe_machine("".join(sys.argv[2:])), sys.stdin.read().strip()
    replace_section(sys.argv[1], f"{machine}\n\n```\n{figures}\n```")
