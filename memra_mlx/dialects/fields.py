"""What the wire models of all dialects share: strictness, number ranges, and the way a bad field is refused.

Wire                a wire model: unknown fields ignored, no coercion (an int does for a float), null means not set
validate            JSON object -> wire model; the first fault as a 400 with the path of the field in the request
Temperature …       annotated number types
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from memra_mlx.errors import ApiError, invalid

Temperature = Annotated[float, Field(ge=0, le=2)]
Fraction = Annotated[float, Field(ge=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=2**31)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Count = Annotated[int, Field(ge=1, le=2**31)]

_WANTED = {
    "string_type": "a string",
    "string_unicode": "text in valid Unicode",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "at least {min_length} long",
    "too_long": "a list of at most {max_length}",
    "string_too_long": "at most {max_length} long",
}


class Wire(BaseModel):
    """A wire model: unknown fields are ignored, nothing is coerced."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())


M = TypeVar("M", bound=Wire)


def validate(model: type[M], body: Any, at: str = "") -> M:
    """`body` as a `model`. `at` is its path in the request.

    Raises a 400 that names the field, with code `missing_argument` or `invalid_argument`.
    """
    try:
        return model.model_validate(body)
    except ValidationError as fault:
        raise _refusal(fault, body, at) from None


def item(at: str, index: int) -> str:
    """The path of a list's item."""
    return f"{at}[{index}]"


def child(at: str, name: str) -> str:
    """The path of an object's field."""
    return f"{at}.{name}" if at else name


def brief(value: Any) -> str:
    """A value as a refusal quotes it."""
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case _:
            text = json.dumps(value[:60] if isinstance(value, str) else value, ensure_ascii=False)
            return text if len(text) <= 60 else text[:57] + "..."


def unknown(param: str, value: Any, accepted: str) -> ApiError:
    """A 400: `value` at `param` is none of `accepted`."""
    return invalid(param, f"{brief(value)} is not accepted here; use {accepted}", "invalid_argument")


def stops(value: str | list[str] | None, param: str) -> tuple[str, ...]:
    """Stop strings as sent: one, several or none. Raises a 400 for an empty string, which would match everywhere."""
    found = (value,) if isinstance(value, str) else tuple(value or ())
    for index, text in enumerate(found):
        if not text:
            raise invalid(param if isinstance(value, str) else item(param, index), "a stop string can't be empty")
    return found


def top_k(value: int | None) -> int | None:
    """`top_k` with both ways to say "off" (-1 and 0) as 0."""
    return None if value is None else max(value, 0)


def _refusal(fault: ValidationError, body: Any, at: str) -> ApiError:
    """The deepest fault (in a union, the branch that fitted best), with what its place would accept."""
    faults = [(_path(error, body, at), error) for error in fault.errors(include_url=False)]
    param = max((path for path, _ in faults), key=lambda path: (path.count(".") + path.count("["), len(path)))
    here = [error for path, error in faults if path == param]
    if here[0]["type"] == "missing":
        return invalid(param, "this field is required", "missing_argument")
    wanted = " or ".join(dict.fromkeys(_wanted(error) for error in here))
    return invalid(param or "body", f"must be {wanted}, not {brief(here[0]['input'])}", "invalid_argument")


def _path(error: ErrorDetails, body: Any, at: str) -> str:
    """The field's path as the client wrote it: pydantic's own steps (the branches of a union) are left out."""
    *steps, last = error["loc"] or ("",)
    for step in (*steps, last):
        if isinstance(step, int) and isinstance(body, list):
            at, body = item(at, step), body[step]
        elif isinstance(body, dict) and step in body:
            at, body = child(at, str(step)), body[step]
        elif error["type"] == "missing" and step is last:
            at = child(at, str(step))
    return at


def _wanted(error: ErrorDetails) -> str:
    template = _WANTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]
