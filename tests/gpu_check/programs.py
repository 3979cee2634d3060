"""The programs under test: what they need, and how they are started, each with a time limit and a log of its own."""
import dataclasses
import os
import shlex
import signal
import subprocess
import time


class Failed(Exception):
    """A step did not find what it expects; the text says what it found."""


class Skipped(Exception):
    """A step cannot be taken on this machine; the text says why."""


@dataclasses.dataclass
class Ended:
    code: int
    output: str
    log: str

    def last_lines(self, count=6):
        return "\n  ".join(["", *[line for line in self.output.splitlines() if line.strip()][-count:]])


class Programs:
    """Of the folder `folder`; they run in `work`, and `logs` has what they print."""

    def __init__(self, folder, work, logs, libraries=()):
        self.folder, self.work, self.logs = folder, work, logs
        self.step, self.number = "start", 0
        self.ends_at = time.monotonic() + 120
        self.environment = dict(os.environ)
        beside = folder.parent / "lib"  # of a pack
        paths = [*map(str, libraries), *([str(beside)] if beside.is_dir() else []), os.environ.get("LD_LIBRARY_PATH")]
        if any(paths):
            self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))

    def begin(self, step, seconds):
        """What is started from now on belongs to a step that has so many seconds."""
        self.step, self.number, self.ends_at = step, 0, time.monotonic() + seconds

    def seconds_left(self):
        return max(0.0, self.ends_at - time.monotonic())

    def has(self, program):
        return (self.folder / program).exists()

    def run(self, program, *words, limit_s=None, through=(), **environment):
        """Until it ends, in at most `limit_s` seconds or what the step has left."""
        return self.command([*through, self.folder / program, *words], program, limit_s, environment)

    def command(self, command, name, limit_s=None, environment=None):
        limit_s = min(self.seconds_left(), limit_s or float("inf"))
        if limit_s <= 0:
            raise Failed(f"no time was left for '{name}'")
        self.number += 1
        log = self.logs / f"{self.step}.{self.number}.{name}.log"
        words = [str(word) for word in command]
        with open(log, "w", encoding="utf-8") as output:
            print("$", shlex.join(words), file=output, flush=True)
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       cwd=self.work, env={**self.environment, **(environment or {})},
                                       start_new_session=True)
            try:
                process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise Failed(f"'{name}' did not end in {limit_s:.0f} s ({log.name})") from None
            finally:
                end_group(process)
        text = log.read_text(encoding="utf-8", errors="replace").partition("\n")[2]
        return Ended(process.returncode, text, log.name)

    def run_well(self, program, *words, **options):
        """The same, where an exit code other than 0 is a failure."""
        ended = self.run(program, *words, **options)
        if ended.code != 0:
            raise Failed(f"'{program}' ended with {ended.code} ({ended.log}):{ended.last_lines()}")
        return ended


def end_group(process):
    """The process and all that it has started: asked first, so that a launcher can stop its ranks."""
    for what, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 60)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, what)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it left
    except ProcessLookupError:
        pass
