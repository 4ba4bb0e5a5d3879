"""A client's Lark grammar as one terminal: all its rules joined, where none refers to itself.

Only this form can stand inside of a JSON string, where the lexer must not decide where a piece ends; and it can be
combined with what the model's own format forbids.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from memra_mlx.prompt.grammar_escape import escaped, escaped_text
from memra_mlx.prompt.grammar_marks import literal

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|//[^\n]*|\#[^\n]*|->[ \t]*\w+)
      | (?P<line>\n)
      | (?P<string>"(?:\\.|[^"\\\n])*"i?)
      | (?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*)
      | (?P<word>%[a-z]+)
      | (?P<name>[!?]*_*[A-Za-z][\w-]*)
      | (?P<number>[0-9]+)
      | (?P<sign>\.\.|[|()\[\]{}?*+~:,.&])""",
    re.VERBOSE,
)
_DEFINED = re.compile(r"^[!?]*(_*[A-Za-z][\w-]*)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_COMMON = {
    "LF": r"\n", "CR": r"\r", "NEWLINE": r"(?:\r?\n)+", "WS": r"[ \t\f\r\n]+", "WS_INLINE": r"[ \t]+",
    "DIGIT": r"[0-9]", "HEXDIGIT": r"[0-9a-fA-F]", "INT": r"[0-9]+", "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+", "NUMBER": r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", "LETTER": r"[a-zA-Z]",
    "LCASE_LETTER": r"[a-z]", "UCASE_LETTER": r"[A-Z]", "WORD": r"[a-zA-Z]+", "CNAME": r"[a-zA-Z_][a-zA-Z0-9_]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}  # fmt: skip


class LarkError(ValueError):
    """A grammar that can't be read. `recursive`: it can, but a rule refers to itself."""

    def __init__(self, message: str, recursive: bool = False):
        super().__init__(message)
        self.recursive = recursive


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a grammar's text."""

    kind: str
    text: str


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a grammar; white space, comments and aliases are left out. Raises `LarkError`."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise LarkError(f"{text[at : at + 20]!r} can't be read")
        at = found.end()
        if found.lastgroup != "skip":
            yield Token(str(found.lastgroup), found[0])


@dataclass(frozen=True, slots=True)
class Lark:
    """A grammar: its definitions by name, the tokens of each."""

    definitions: Mapping[str, tuple[Token, ...]]
    ignores: bool


def read(text: str) -> Lark:
    """Read the text of a grammar. Raises `LarkError`."""
    found: dict[str, tuple[Token, ...]] = {}
    ignores = False
    for statement in _statements(text):
        if statement.startswith("%"):
            ignores = ignores or statement.startswith("%ignore")
            found.update(_imported(statement))
        elif head := _DEFINED.match(statement):
            found[head[1]] = tuple(token for token in tokens(statement[head.end() :]) if token.kind != "line")
        elif any(token.kind != "line" for token in tokens(statement)):
            raise LarkError(f"{statement[:20]!r} is no definition")
    if "start" not in found:
        raise LarkError("there is no rule named start")
    return Lark(found, ignores)


def _statements(text: str) -> Iterator[str]:
    starts = sorted({0, *(m.start() for m in re.finditer(rf"{_DEFINED.pattern}|^%", text, re.MULTILINE)), len(text)})
    yield from (text[a:b] for a, b in pairwise(starts))


def _imported(statement: str) -> dict[str, tuple[Token, ...]]:
    found = re.fullmatch(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*", statement)
    several = re.fullmatch(r"%import\s+common\s*\(([\w\s,]+)\)\s*", statement)
    if found:
        names = {found[2] or found[1]: found[1]}
    elif several:
        names = {name.strip(): name.strip() for name in several[1].split(",")}
    elif statement.startswith("%ignore"):
        return {}
    else:
        raise LarkError(f"{statement.split()[0]} can't be used here")
    if unknown := [source for source in names.values() if source not in _COMMON]:
        raise LarkError(f"common.{unknown[0]} is not known")
    return {name: (Token("regex", f"/{_COMMON[source]}/"),) for name, source in names.items()}


def terminal(grammar: Lark, add: Callable[[str], str], *, escape: bool) -> str:
    """The name of a terminal that matches what `start` does; `add` defines one by its body. `escape`: the text as it
    stands inside a JSON string. Raises `LarkError`, `PatternError`."""
    if grammar.ignores:
        raise LarkError("%ignore can't be used with this model's call format", recursive=True)
    return _Joiner(grammar, add, escape).name("start", ())


class _Joiner:
    def __init__(self, grammar: Lark, add: Callable[[str], str], escape: bool):
        self._grammar = grammar
        self._add = add
        self._escape = escape
        self._known: dict[str, str] = {}

    def name(self, rule: str, above: tuple[str, ...]) -> str:
        rule = rule.lstrip("!?")
        if rule in above:
            raise LarkError(f"the rule {rule} refers to itself", recursive=True)
        if rule not in self._grammar.definitions:
            raise LarkError(f"{rule} is not defined")
        if rule not in self._known:
            body = [self._part(token, (*above, rule)) for token in self._grammar.definitions[rule]]
            self._known[rule] = self._add(" ".join(body))
        return self._known[rule]

    def _part(self, token: Token, above: tuple[str, ...]) -> str:
        match token.kind:
            case "name":
                return self.name(token.text, above)
            case "string":
                return self._literal(token.text)
            case "regex":
                return self._regex(token.text)
            case "sign" if token.text in ("[", "]"):
                return "(" if token.text == "[" else ")?"
            case "word":
                raise LarkError(f"{token.text} can't be used here")
        return token.text

    def _literal(self, text: str) -> str:
        body, flag = (text[:-1], "i") if text.endswith("i") else (text, "")
        try:
            value = str(ast.literal_eval(body))
        except (SyntaxError, ValueError) as fault:
            raise LarkError(f"{text} is no string") from fault
        return (literal(escaped_text(value) if self._escape else value) or '""') + flag

    def _regex(self, text: str) -> str:
        end = text.rindex("/")
        pattern, flags = text[1:end].replace("\\/", "/"), text[end + 1 :]
        if self._escape:
            pattern, flags = escaped(pattern, dotall="s" in flags), flags.replace("s", "")
        return f"/{slashes(pattern)}/{flags}"


def slashes(pattern: str) -> str:
    """A pattern as it can stand between slashes."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", r"\n")
