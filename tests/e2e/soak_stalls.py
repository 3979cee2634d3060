"""What faults cost a run with replicas (kill_soak --replicas)."""

import collections
import os
import re
import statistics
import threading
import time


class Follower:
    """The new lines of a file that grows, or is replaced by another one."""

    def __init__(self, path):
        self.path, self.file, self.rest = path, None, ""

    def lines(self):
        try:
            status = os.stat(self.path)
            own = self.file and os.fstat(self.file.fileno())
            if not own or own.st_ino != status.st_ino or status.st_size < self.file.tell():
                self.file, self.rest = open(self.path, errors="replace"), ""
        except FileNotFoundError:
            return []
        *whole, self.rest = (self.rest + self.file.read()).split("\n")
        return whole


class Stalls:
    """When a run finished its steps and changed its replicas, as its files tell."""

    GO_ON = re.compile(r"replicas? ([0-9, ]+) of \d+ continue (?:after step|from the newest) (\w+).*\(epoch (\d+)\)")
    LOST = re.compile(r"replica (\d+) \(ranks? [^)]*\) is lost")
    STEP = re.compile(r'{"step":(\d+),.*"loss":')

    def __init__(self, folder, name, replicas):
        self.metrics, self.log = Follower(folder / name / "metrics.jsonl"), Follower(folder / f"{name}.log")
        self.steps = []  # (when, members, why the group changed since the last step or None)
        self.members, self.cause, self.last_step = replicas, None, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.over.wait(0.005):
            for line in self.metrics.lines():
                found = self.STEP.match(line)
                if not found or int(found[1]) <= self.last_step:
                    continue
                self.last_step = int(found[1])
                self.steps.append((time.monotonic(), self.members, self.cause))
                self.cause = None
            for line in self.log.lines():
                if found := self.GO_ON.search(line):
                    self.members = len(found[1].split(","))
                    self.cause = self.cause or "joined"
                elif self.LOST.search(line):
                    cause = "cut" if "lost node" in line else "hung" if "no report within" in line else "killed"
                    self.cause = max(cause, self.cause or "", key=("", "joined", "killed", "hung", "cut").index)

    def report(self):
        self.over.set()
        self.thread.join()
        gaps = [(now - before, members, cause)
                for (before, *_), (now, members, cause) in zip(self.steps, self.steps[1:])]
        undisturbed = collections.defaultdict(list)
        for gap, members, cause in gaps:
            if not cause:
                undisturbed[members].append(gap)
        everywhere = statistics.median(sum(undisturbed.values(), []))
        step = {members: statistics.median(undisturbed.get(members, [everywhere])) for _, members, _ in gaps}
        stalls = collections.defaultdict(list)
        for gap, members, cause in gaps:
            if cause:
                stalls[cause].append((gap - step[members], step[members]))
        print("  undisturbed, a step of " + ", ".join(f"{members} replicas takes {1e3 * seconds:.0f} ms"
                                                      for members, seconds in sorted(step.items())))
        for cause, found in sorted(stalls.items()):
            print(f"  {len(found)} stalls, {cause}: median {statistics.median(s / one for s, one in found):.2f} steps, "
                  f"{1e3 * statistics.median(s for s, _ in found):.0f} ms; longest {max(s for s, _ in found):.2f} s")
        of_all = statistics.median([s / one for found in stalls.values() for s, one in found] or [0])
        total = sum(gap for gap, *_ in gaps)
        lost = sum(s for found in stalls.values() for s, _ in found)
        of_hangs = sum(s for s, _ in stalls["hung"])
        with_all = min(step.values()) * len(gaps) / total
        print(f"  all stalls: median {of_all:.2f} steps; effective time {100 * (1 - lost / total):.1f} %, without hangs "
              f"{100 * (1 - (lost - of_hangs) / (total - of_hangs)):.1f} %, with lost capacity as a loss {100 * with_all:.1f} %")

    def step_seconds(self):
        """Of the undisturbed steps so far."""
        steps = list(self.steps)
        return statistics.median([now - before for (before, *_), (now, _, cause) in zip(steps, steps[1:]) if not cause] or [0])
