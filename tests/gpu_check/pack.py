"""What is taken to another machine: the scripts of the check and of visits and, in one archive, stripped programs with the libraries that
they need, except libtorch's and the C and C++ runtimes; those of a second build too, for visits that compare two."""
import contextlib
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from programs import Failed

PROGRAMS = ("fsdp-train", "fsdp-launch", "fsdp-generate", "engine_cost", "engine_overhead")
OF_VISITS = ("kernel_bench", "gemm_bench")  # of a pack for a GPU
OF_BUILD_B = ("fsdp-train", *OF_VISITS)  # the latter where they were built
SCRIPTS = ("scripts/gpu_check", "scripts/gpu_visit", "scripts/common.sh", "tests/bench/gpu_device.py", "tests/bench/gpu_models.py",
           "tests/bench/gpu_tables.py", "tests/bench/ledger.py", "tests/bench/ledger_step.py", "tests/bench/ranks.py",
           "tests/bench/sides.py", "tests/bench/step_tables.py", "tests/cuda_standin/matrix.txt", "tests/cuda_standin/run.py")
# Programs share most of their machine code, so a dictionary that holds several of them makes a pack half as large.
COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 192 << 20}]
LIMIT = 64 * 2**20
# Of the system: newer ones serve, and a second one of another age does not.
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|resolv|util|stdc\+\+|gcc_s|cuda|nvidia.*))\.so[.\d]*$")


def run(*command):
    try:
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise Failed(f"expected the program {command[0]}, found none; install Debian's package binutils") from None
    except subprocess.CalledProcessError as error:
        raise Failed(f"'{command[0]}' ended with {error.returncode}: {error.stderr.strip()}") from None


def libraries_of(program):
    """Paths of the shared libraries that a program loads and another machine may lack."""
    paths = set()
    for line in run("ldd", program).splitlines():
        found = re.match(r"\s*(\S+) => (.*?)( \(0x.*)?$", line)
        if not found or OF_THE_SYSTEM.match(found.group(1)):
            continue
        if found.group(2) == "not found":
            raise Failed(f"expected all libraries of {program}, found no {found.group(1)}; build it again on this machine")
        if not re.search(r"/(torch/lib|nvidia)/", found.group(2)):
            paths.add(Path(found.group(2)))
    return paths


@contextlib.contextmanager
def compressed_archive(path):
    with lzma.open(path, "wb", filters=COMPRESSION) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        yield archive


def require(folder, names, for_gpus):
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise Failed(f"expected {missing[0]} in {folder}, found none; build it (scripts/build {'--cuda' if for_gpus else '--cpu'})")


def libtorch_of(folder):
    """The version that its programs were built with, and need."""
    return re.search(r"^libtorch (\d+\.\d+\.\d+)", run(folder / "fsdp-train", "--version"), re.MULTILINE).group(1)


def add_build(archive, folder, names, to):
    """Stripped, program by program, and then the libraries of all."""
    libraries = set()
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            run("strip", "-o", Path(work) / name, folder / name)
            archive.add(Path(work) / name, f"{to}/bin/{name}")
            libraries |= libraries_of(folder / name)
    for path in sorted(libraries):
        archive.add(path.resolve(), f"{to}/lib/{path.name}")


def pack(project, folder, target, for_gpus, folder_b=None):
    if target.exists() and any(target.iterdir()):
        raise Failed(f"--pack: expected a new folder, found files in {target}; name another one")
    tests = sorted(path.name for path in folder.glob("*_gpu_test")) if for_gpus else []
    require(folder, [*PROGRAMS, *(OF_VISITS if for_gpus else ())], for_gpus)
    if for_gpus and not tests:
        raise Failed(f"expected tests *_gpu_test in {folder}, found none; build them (scripts/build --cuda)")
    if folder_b:
        require(folder_b, OF_BUILD_B[:1], for_gpus)
    for path in [*(Path(name) for name in SCRIPTS), *here_in(project)]:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / path, target / path)
    version = libtorch_of(folder)
    (target / "scripts/libtorch-version").write_text(version + "\n", encoding="utf-8")
    with compressed_archive(target / "programs.tar.xz") as archive:
        if folder_b:  # the larger ones beside each other
            add_build(archive, folder_b, [name for name in OF_BUILD_B if (folder_b / name).exists()], "programs-b")
        add_build(archive, folder, [*PROGRAMS, *(OF_VISITS if for_gpus else ()), *tests], "programs")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    if size > LIMIT:
        raise Failed(f"the folder must have at most {LIMIT >> 20} MiB, but has {size / 2**20:.1f}; build for fewer GPUs "
                     "(TORCH_CUDA_ARCH_LIST=9.0 scripts/build --cuda)")
    print(f"{target}: {size / 2**20:.1f} MiB; on the other machine, which needs python3 and libtorch {version.rpartition('.')[0]} (as the Python "
          f"package torch=={version}), run {target.name}/scripts/gpu_check, or {target.name}/scripts/gpu_visit with a queue of "
          f"{target.name}/tests/gpu_check/visits")
    return 0


def here_in(project):
    """The scripts and configs of this folder, relative to the project."""
    here = Path(__file__).resolve().parent
    return [path.relative_to(project) for path in sorted([*here.iterdir(), *(here / "visits").iterdir()])
            if path.suffix in (".py", ".toml") and not path.name.endswith("_test.py")]
