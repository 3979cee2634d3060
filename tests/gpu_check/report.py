"""The report of a check: a page of Markdown, written anew after each step."""
import dataclasses


@dataclasses.dataclass
class Outcome:
    step: object
    result: str  # passed, failed, skipped
    found: str
    expected: str = ""
    seconds: float = 0.0
    details: str = ""


def cell(text):
    """As one line of a table."""
    lines = text.strip().splitlines()
    return (lines[0] + (" ..." if len(lines) > 1 else "")).replace("|", "\\|") if lines else ""


def verdict(outcomes, steps):
    failed, skipped = ([o.step.title for o in outcomes if o.result == result] for result in ("failed", "skipped"))
    missing = len(steps) - len(outcomes)
    text = f"{len(failed)} of {len(outcomes)} steps failed" if failed else f"{len(outcomes) - len(skipped)} steps passed"
    if failed:
        text += f" ({', '.join(failed)})"
    if skipped:
        text += f", {len(skipped)} were skipped"
    return text + (f", {missing} not taken" if missing else "")


def render(title, facts, outcomes, steps):
    lines = [f"# {title}", "", f"**{verdict(outcomes, steps)}.**", "", *[f"- {fact}" for fact in facts], "",
             "| step | result | found | expected | s |", "| --- | --- | --- | --- | --- |"]
    for o in outcomes:
        lines.append(f"| {o.step.title} | {o.result} | {cell(o.found)} | {cell(o.expected)} | {o.seconds:.1f} |")
    for o in outcomes:
        if o.result == "failed":
            lines += ["", f"## Failed: {o.step.title}", "", "```", o.found.strip(), "```"]
        if o.details:
            lines += ["", f"## {o.step.title}", "", o.details]
    return "\n".join(lines) + "\n"
