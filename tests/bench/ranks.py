"""Runs a program as the ranks of one process group on this machine and says what they took."""
import dataclasses
import os
import socket
import subprocess
import threading
import time
from pathlib import Path


class RunFailed(Exception):
    """A rank ended with an error; the text has its last lines."""

    def out_of_memory(self):
        """Of the device: what fsdp-train and torch say then."""
        return "out of memory" in str(self)


@dataclasses.dataclass
class GroupRun:
    lines: list  # (seconds since the start, text) of what rank 0 printed
    peak_mib: float  # largest resident memory, of the rank that had the most
    cpu_s: float  # CPU time of a rank, on average


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_environment(rank, ranks, port, threads):
    """What torchrun sets, for a world of one too."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment.update(OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo")
    environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return environment


def run_group(command, ranks, threads, logs, limit_s=1800.0, environment=None):
    """Starts `command` once a rank, all directly and none through a launcher, so that both sides start alike.
    `logs` takes the output of the ranks but the first."""
    port, processes, lines = free_port(), [], []
    timer = threading.Timer(limit_s, lambda: [process.kill() for process in processes])
    timer.daemon = True
    timer.start()
    begin = time.perf_counter()
    try:
        for rank in range(ranks):
            output = subprocess.PIPE if rank == 0 else open(logs / f"rank{rank}.log", "w", encoding="utf-8")
            processes.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True,
                env={**rank_environment(rank, ranks, port, threads), **(environment or {})}))
            if rank > 0:
                output.close()
        for line in processes[0].stdout:
            lines.append((time.perf_counter() - begin, line.rstrip("\n")))
        usages = [wait(process) for process in processes]
    finally:
        timer.cancel()
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            text = [line for _, line in lines] if rank == 0 else read_lines(logs / f"rank{rank}.log")
            last = "\n  ".join(text[-8:])
            raise RunFailed(f"rank {rank} of {ranks} of '{command[0]}' ended with {process.returncode}:\n  {last}")
    return GroupRun(lines, max(usage.ru_maxrss for usage in usages) / 1024,
                    sum(usage.ru_utime + usage.ru_stime for usage in usages) / ranks)


def wait(process):
    """What a process has used, when it has ended."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def read_lines(path: Path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
