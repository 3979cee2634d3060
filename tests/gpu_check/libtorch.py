"""Where the libtorch lies that the programs were built with, for GPUs with its CUDA half: a folder with torch/lib and
nvidia/*/lib, as the wheels make it in .deps/ and in a Python's site-packages."""
import os
import re
import sys
from pathlib import Path

PINNED = (Path(__file__).resolve().parents[2] / "scripts/libtorch-version").read_text(encoding="utf-8").strip()
VERSION = PINNED.rpartition(".")[0]
FILES = {"cuda": ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch_cpu.so", "nvidia/cu13/lib/libcudart.so.13"),
         "cpu": ("torch/lib/libtorch_cpu.so", "nvidia/cu13/lib/libcudart.so.13")}


class NoLibtorch(Exception):
    """There is none that the programs can load; the text says what was found and what to do."""


def version_of(folder):
    """As in "2.11.0+cu130"; None where the folder does not say (.deps/ says it in its name)."""
    try:
        text = (folder / "torch/version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"__version__ = '([^']*)'", text)
    return found.group(1) if found else None


def obstacle(folder, device):
    """Why programs for `device` cannot use what lies in `folder`; None where they can."""
    missing = [name for name in FILES[device] if not (folder / name).exists()]
    if missing:
        return f"{missing[0]} is missing"
    version = version_of(folder)
    if version is not None and not version.startswith(VERSION + "."):
        return f"its version is {version}"
    return None


def libraries(folder):
    """What LD_LIBRARY_PATH has to name."""
    return [folder / "torch/lib", *sorted(folder.glob("nvidia/*/lib"))]


def candidates(project, device):
    deps = Path(os.environ.get("FSDP_DEPS_DIR") or project / ".deps")
    yield deps / f"libtorch-{PINNED}-{device}"
    for path in sys.path:
        if path and (Path(path) / "torch").is_dir():
            yield Path(path)


def find(project, given=None, device="cuda"):
    """The folder, in the order: given, .deps/, the packages of this Python."""
    looked = [Path(given).resolve()] if given else list(candidates(project, device))
    found = []
    for folder in looked:
        why = obstacle(folder, device)
        if why is None:
            return folder
        if given or folder.exists():
            found.append(f"{folder}, where {why}")
    raise NoLibtorch(
        f"expected libtorch {VERSION}{' for CUDA 13' if device == 'cuda' else ''} in {project / '.deps'}, or as the package torch of {sys.executable}; found "
        f"{'; '.join(found) or 'none'}; install it (python3 -m pip install torch=={PINNED}), or name the folder that contains "
        "torch/ and nvidia/ with --libtorch")
