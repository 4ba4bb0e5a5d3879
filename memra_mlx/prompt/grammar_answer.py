"""A whole answer as a grammar: reasoning, then JSON or calls; or free text in which calls are constrained."""

from __future__ import annotations

from memra_mlx.prompt.grammar_calls import CallFormat, calls_to
from memra_mlx.prompt.grammar_marks import any_of, join, literal, text_without
from memra_mlx.prompt.grammar_rules import Plan, Rules
from memra_mlx.prompt.grammar_schema import COMPACT
from memra_mlx.prompt.markers import Markers

# What templates put between a closed segment of reasoning and the answer.
_GAP = r"/[ \n]{1,3}/"


def answer(rules: Rules, plan: Plan, markers: Markers, style: CallFormat | None) -> str:
    """The expression of the answer. `style` is there if the plan offers tools."""
    if plan.free:
        assert style is not None
        return _free(rules, plan, style)
    choices = []
    if plan.schema is not None:
        choices.append(rules.add("json", f"%json {plan.schema.text(plan.schema.root, COMPACT)}"))
    if plan.offers:
        assert style is not None
        choices.append(style.blocks(rules, calls_to(rules, style, plan.offers), plan.several))
    return join(_reasoning(rules, plan, markers, style), any_of(choices))


def _free(rules: Rules, plan: Plan, style: CallFormat) -> str:
    """Any text and any control tokens, until a block of calls begins."""
    rest = style.rest(rules, calls_to(rules, style, plan.offers), several=True)
    text = rules.add("TEXT", text_without(style.start))
    other = rules.marks.other(style.start)
    free = rules.add("free", f"{text}? ({other} {text}?)*" if other else f"{text}?")
    if style.start in rules.marks.ids:
        return f"{free} ({join(rules.marks.lark(style.start), rest, free)})*"
    trigger = rules.add("trigger", f"ANY {literal(style.start)}", "[lazy]")
    stretch = rules.add("stretch", f"({text}? {other})*") if other else ""
    return f"({join(stretch, trigger, rest)})* {free}"


def _reasoning(rules: Rules, plan: Plan, markers: Markers, style: CallFormat | None) -> str:
    """Text up to the end mark. No call can begin in it."""
    start, end = markers.think_start, markers.think_end
    if plan.reasoning == "none" or not (start and end):
        return ""
    thought = rules.add("THOUGHT", text_without(end, style.start if style else ""))
    closing = rules.marks.lark(end)
    if closing.startswith("<["):
        segment = f"{thought}? {closing}"
    else:
        segment = rules.add("segment", f"{thought} {closing}", "[lazy]")
    segment = f"{segment} {_GAP}?"
    return segment if plan.reasoning == "begun" else f"({rules.marks.lark(start)} {segment})?"
