"""gpt-oss: a turn is a row of messages, each with a header that names its channel or the function it goes to."""

from __future__ import annotations

from memra_mlx.prompt.grammar_calls import json_object
from memra_mlx.prompt.grammar_marks import any_of, join, literal, text_without
from memra_mlx.prompt.grammar_rules import Offer, Plan, Rules
from memra_mlx.prompt.grammar_schema import COMPACT

_CALL_END = "<|call|>"


def harmony_answer(rules: Rules, plan: Plan) -> str:
    """The expression of a turn behind `<|start|>assistant`."""
    mark = rules.marks.lark
    text = rules.add("TEXT", text_without("to=functions."))
    turn = join(mark("<|end|>"), mark("<|start|>"), literal("assistant"))
    ways = []
    if plan.offers:
        ways.append(rules.add("call", any_of(_call(rules, offer) for offer in plan.offers)))
    if plan.schema is not None:
        body = f"%json {plan.schema.text(plan.schema.root, COMPACT)}"
        ways.append(join(mark("<|channel|>final<|message|>"), rules.add("json", body)))
    channels = ["analysis"]
    if plan.free:
        channels.append("commentary")
        ways.append(join(mark("<|channel|>final<|message|>"), f"{text}?"))
    channel = any_of(literal(name) for name in channels)
    before = rules.add("before", join(mark("<|channel|>"), channel, mark("<|message|>"), f"{text}?", turn))
    return f"{before}{'?' if not plan.free else '*'} {any_of(ways)}"


def _call(rules: Rules, offer: Offer) -> str:
    mark = rules.marks.lark
    to = literal(f" to=functions.{offer.name}")
    head = join(mark("<|channel|>"), any_of((literal("commentary"), literal("analysis"))), to)
    json_type = (
        f"({join(literal(' ') + '?', mark('<|constrain|>json'))})?" if "<|constrain|>" in rules.marks.ids else ""
    )
    end = "" if rules.marks.ids.get(_CALL_END) in rules.marks.eos_ids else mark(_CALL_END)
    return join(head, json_type, mark("<|message|>"), json_object(rules, offer), end)
