#!/usr/bin/env python3
"""Draws unit_life.svg and step_timeline.svg beside this file; the timeline from the order in tests/shard/schedules.txt."""

import re
from pathlib import Path

here = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, GREY, INK, PALE = "#4a78c8", "#e08a3c", "#4f9d69", "#8a919c", "#1f2430", "#eef0f4"


class Picture:
    """On a white card, so that it can be read on light and dark pages."""

    def __init__(self, width, height, title):
        self.size, self.parts = (width, height), []
        self.parts.append(f"<title>{title}</title>")
        self.rect(0.5, 0.5, width - 1, height - 1, "#ffffff", f' stroke="{GREY}" rx="8"')

    def rect(self, x, y, width, height, fill, more=""):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{more}/>')

    def text(self, x, y, words, more='text-anchor="middle"', fill=INK):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" fill="{fill}" {more}>{words}</text>')

    def path(self, d, more):
        self.parts.append(f'<path d="{d}" {more}/>')

    def save(self, name):
        width, height = self.size
        (here / name).write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="13">\n' + "\n".join(self.parts) + "\n</svg>\n")


def unit_life():
    ranks, cell, panel, left, top = 4, 20, 156, 66, 64
    picture = Picture(982, 244, "The life of a unit in one step, on four ranks")
    # Title, caption, parameters (shard or all), their color, gradients (none, shard or all), what leads to the next one.
    states = [("sharded", "1/4 of the parameters", "shard", BLUE, "", "all-gather"),
              ("forward", "all parameters", "all", BLUE, "", "free"),
              ("sharded", "1/4 of the parameters", "shard", BLUE, "", "all-gather"),
              ("backward", "all, and all gradients", "all", BLUE, "all", "free, reduce- scatter"),
              ("reduced", "1/4 of both", "shard", BLUE, "shard", "optimizer"),
              ("updated", "1/4, for the next step", "shard", GREEN, "", "")]
    for rank in range(ranks):
        picture.text(12, top + 19 + rank * 32, f"rank {rank}", "", GREY)
    for number, (title, caption, parameters, color, gradients, action) in enumerate(states):
        x = left + number * panel
        picture.text(x + 2 * cell, 32, title, 'text-anchor="middle" font-weight="bold"')
        for rank in range(ranks):
            y = top + rank * 32
            for part in range(ranks):
                has = parameters == "all" or part == rank
                picture.rect(x + part * cell, y, cell, 14, color if has else PALE, ' stroke="#ffffff"')
                if gradients:
                    has = gradients == "all" or part == rank
                    picture.rect(x + part * cell, y + 15, cell, 9, ORANGE if has else PALE, ' stroke="#ffffff"')
        picture.text(x + 2 * cell, 208, caption, 'text-anchor="middle" font-size="12"')
        if action:
            a = x + 4 * cell + 8
            words = action.split()
            for line, word in enumerate(words):
                picture.text(a + 30, 108 - 14 * (len(words) - 1 - line), word, 'text-anchor="middle" font-size="12"')
            picture.path(f"M{a} 120h54m-7 -5l7 5l-7 5", f'fill="none" stroke="{INK}" stroke-width="1.5"')
    for x, color, words in ((340, BLUE, "parameters"), (440, ORANGE, "gradients"), (530, GREEN, "updated parameters")):
        picture.rect(x, 225, 10, 8, color)
        picture.text(x + 16, 233, words, 'font-size="12"')
    picture.save("unit_life.svg")


def step_timeline():
    compute = {("forward", "root"): 1.2, ("forward", "layers"): 2.4, ("backward", "root"): 2, ("backward", "layers"): 4.4}
    sizes, collective = {"root": 1.2, "layers": 2}, {"root": 1.3, "layers": 1.9}
    of = lambda table, unit: table[unit.split(".")[0]]
    now, queue_free, ready, reduced = 0.0, 0.0, {}, {}
    bars, memory = [], []  # (lane, begin, end, words, color), (time, kind, change)

    def work(words, seconds, color):
        nonlocal now
        bars.append(("compute", now, now + seconds, words, color))
        now += seconds

    def communicate(words, unit, color):
        nonlocal queue_free
        begin = max(now, queue_free)
        queue_free = begin + of(collective, unit)
        bars.append(("communication", begin, queue_free, words, color))
        return begin, queue_free

    def run(command):
        nonlocal now
        unit = re.search(r"root|layers\.\d", command)[0]
        short, size = unit.replace("layers.", "block "), of(sizes, unit)
        if command.startswith("gather"):
            begin, ready[unit] = communicate(short, unit, BLUE)
            memory.append((begin, "parameters", size))
        elif command.startswith("wait for"):
            now = max(now, ready[unit])
        elif command.startswith("wait until"):
            now = max(now, reduced[unit])
        elif command.startswith("reshard"):
            memory.append((now, "parameters", -size))
        elif command.startswith("attach"):
            memory.append((now, "gradients", size))
        else:
            reduced[unit] = communicate(short, unit, ORANGE)[1]
            memory.append((reduced[unit], "gradients", -size))

    text = (here / "../../tests/shard/schedules.txt").read_text()
    for line in re.search(r"# full_shard\n(.*?)\n\n", text, re.S)[1].splitlines():
        event, commands = re.split(r"  +", line, maxsplit=1)
        # What the root computes around the blocks: the head after the last one, the embedding's gradient at the end.
        if event == "backward of root begins":
            work("head", 1.2, GREEN)
        elif event == "backward ends":
            work("", 0.8, GREEN)
            forward_ends = now
        for command in commands.split(", "):
            run(command)
        if event.endswith("begins"):
            direction, unit = re.match(r"(\w+) of (\S+)", event).groups()
            words = {"forward root": "emb.", "backward root": "head"}.get(f"{direction} {unit}", unit.replace("layers.", "block "))
            work(words, of({key[1]: value for key, value in compute.items() if key[0] == direction}, unit), GREEN)
    work("optimizer", 2.6, GREY)

    left, scale, lanes = 128, 830 / now, {"communication": 46, "compute": 96}
    picture = Picture(982, 316, "Communication, compute and memory of one step")
    for lane, y in lanes.items():
        picture.text(12, y + 19, lane, 'font-weight="bold"')
        picture.rect(left, y, now * scale, 30, PALE)
    for lane, begin, end, words, color in bars:
        x, width = left + begin * scale, (end - begin) * scale
        picture.rect(x, lanes[lane], width, 30, color, ' stroke="#ffffff"')
        picture.text(x + width / 2, lanes[lane] + 19, words, 'text-anchor="middle" font-size="11"', "#ffffff")
    for x, color, words in ((128, BLUE, "all-gather"), (228, ORANGE, "reduce-scatter"), (352, GREEN, "forward, backward"),
                            (500, PALE, "waiting")):
        picture.rect(x, 16, 12, 12, color, f' stroke="{GREY}"')
        picture.text(x + 18, 26, words, 'font-size="12"')

    # Memory: gathered parameters, and gradients on top of them.
    base, unit_height = 280, 16
    held, outline = {"parameters": 0.0, "gradients": 0.0}, {"parameters": [], "gradients": []}
    for time, kind, change in sorted(memory, key=lambda each: each[0]):
        held[kind] += change
        for name, height in (("parameters", held["parameters"]), ("gradients", sum(held.values()))):
            outline[name].append(f"H{left + time * scale:.0f}V{base - height * unit_height:.0f}")
    for name, color in (("gradients", ORANGE), ("parameters", BLUE)):
        picture.path(f"M{left} {base}" + "".join(outline[name]) + f"V{base}z", f'fill="{color}"')
    picture.path(f"M{left} {base}h830", f'stroke="{INK}"')
    picture.text(12, 216, "memory", 'font-weight="bold"')
    for y, color, words in ((236, BLUE, "gathered"), (254, ORANGE, "gradients")):
        picture.rect(12, y - 9, 10, 10, color)
        picture.text(28, y, words, 'font-size="12"')
    turn = next(begin for lane, begin, _, words, _ in reversed(bars) if words == "head") * scale + left
    for x, words in (((left + turn) / 2, "forward"), ((turn + left + forward_ends * scale) / 2, "backward")):
        picture.text(x, 302, words)
    picture.path(f"M{turn:.0f} 40V290", f'stroke="{GREY}" stroke-dasharray="4 3"')
    picture.save("step_timeline.svg")


unit_life()
step_timeline()
