"""The one table of reasoning effort, and how a level reaches a template.

none and minimal turn reasoning off, the others on; levels beyond `high` are read as `high`.
"""

from __future__ import annotations

from typing import Any

from memra_mlx.errors import invalid
from memra_mlx.prompt.traits import TemplateTraits
from memra_mlx.request import Thinking

LEVELS = ("none", "minimal", "low", "medium", "high")
OFF = ("none", "minimal")
_BEYOND = ("xhigh", "max", "ultra")


def level(value: object, param: str) -> str:
    """The canonical level for what a client sent. Raises a 400 naming `param`."""
    if value in _BEYOND:
        return "high"
    if isinstance(value, str) and value in LEVELS:
        return value
    raise invalid(param, f"unknown level {value!r:.40}; accepted are {', '.join(LEVELS + _BEYOND)}")


def wanted(thinking: Thinking) -> bool | None:
    """Whether the client wants reasoning; None leaves it to the template."""
    if thinking.enabled is not None or thinking.effort is None:
        return thinking.enabled
    return thinking.effort not in OFF


def switches(thinking: Thinking, traits: TemplateTraits) -> dict[str, Any]:
    """The template variables that ask for it. Empty where the client asked for nothing."""
    on = wanted(thinking)
    values: dict[str, Any] = {}
    if on is not None and traits.switch:
        values[traits.switch] = on
    if traits.efforts and (on is False or thinking.effort):
        values["reasoning_effort"] = _nearest("none" if on is False else thinking.effort or "none", traits.efforts)
    return values


def _nearest(effort: str, accepted: tuple[str, ...]) -> str:
    rank = LEVELS.index(effort)
    return min(accepted, key=lambda name: (abs(LEVELS.index(name) - rank), LEVELS.index(name)))
