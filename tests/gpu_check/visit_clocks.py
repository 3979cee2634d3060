"""Clocks, power and temperature of a GPU during runs, from nvidia-smi, where it is installed."""
import dataclasses
import shutil
import statistics
import subprocess
import threading
import time

QUERY = ["--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits", "-lms", "250"]


@dataclasses.dataclass(frozen=True)
class Clocks:
    mhz: float
    watts: float
    celsius: float

    def __str__(self):
        return f"{self.mhz:.0f} MHz, {self.watts:.0f} W, {self.celsius:.0f} C"


class ClockLog:
    """Of the first GPU, from `with` on."""

    def __init__(self):
        self.samples, self.process, self.reader = [], None, None

    def __enter__(self):
        program = shutil.which("nvidia-smi")
        if program:
            self.process = subprocess.Popen([program, *QUERY, "--id=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, text=True)
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.reader.join()
            self.process.stdout.close()

    def read(self):
        for line in self.process.stdout:
            try:
                self.samples.append((time.monotonic(), Clocks(*map(float, line.split(",")))))
            except (TypeError, ValueError):
                continue  # "[N/A]" of a GPU that does not tell

    def between(self, begin, end):
        """The medians of a span; None where nothing was told."""
        found = [clocks for at, clocks in list(self.samples) if begin <= at <= end]
        if not found:
            return None
        return Clocks(*(statistics.median(getattr(clocks, field.name) for clocks in found) for field in dataclasses.fields(Clocks)))
