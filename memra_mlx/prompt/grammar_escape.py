"""A regular expression over a text → one over the same text as it stands inside a JSON string.

Where a character has several escapes only the usual one is taken, and of the control characters only those that have a
short escape: what matches decodes to what the first expression matches.
"""

from __future__ import annotations

import json
import re
import warnings

_SHORT = "\b\f\n\r\t"
_PLAIN = r'[^"\\\x00-\x1f]'
_DOT = r'(?:[^"\\\x00-\x1f]|\\["\\bfrt])'
_DOT_ALL = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt])'
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]{1,6})\})")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|([a-zA-Z]*)(?:-[a-zA-Z]+)?[:)])")
_SETS = "sSdDwW"


class PatternError(ValueError):
    """A pattern that can't be rewritten."""


def escaped(pattern: str, *, dotall: bool = False) -> str:
    """The rewritten pattern. Raises `PatternError` for what it can't read, look-around among it."""
    return _Rewriter(pattern, dotall).run()


def escaped_text(text: str) -> str:
    """A text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class _Rewriter:
    def __init__(self, pattern: str, dotall: bool):
        self._pattern = pattern
        self._at = 0
        self._dotall = [dotall]

    def run(self) -> str:
        out = []
        while self._at < len(self._pattern):
            out.append(self._unit())
        return "".join(out)

    def _unit(self) -> str:
        char = self._pattern[self._at]
        match char:
            case "\\":
                return self._escape()
            case "[":
                return _set(self._cut(self._set_end()))
            case "(":
                return self._group()
            case ".":
                self._at += 1
                return _DOT_ALL if self._dotall[-1] else _DOT
            case ")":
                if len(self._dotall) > 1:
                    self._dotall.pop()
        self._at += 1
        return char if char not in '"' and char >= " " else _char(char)

    def _cut(self, end: int) -> str:
        text, self._at = self._pattern[self._at : end], end
        return text

    def _escape(self) -> str:
        if code := _CODE.match(self._pattern, self._at):
            self._at = code.end()
            return _char(chr(int(code[1] or code[2] or code[3], 16)))
        letter = self._pattern[self._at + 1 : self._at + 2]
        if letter in ("p", "P"):
            raise PatternError(f"\\{letter} can't be used in this model's call format")
        text = self._cut(self._at + 2)
        if letter and letter in _SETS:
            return _set(f"[{text}]")
        if letter.isalnum():
            return _char(_LETTERS[letter]) if letter in _LETTERS else text
        return _char(letter)

    def _group(self) -> str:
        flags = self._dotall[-1]
        text = "("
        if self._pattern.startswith("(?", self._at):
            found = _GROUP.match(self._pattern, self._at)
            if found is None or "x" in (found[1] or ""):
                raise PatternError("look-around and the flag x can't be used")
            text, flags = found[0], flags or "s" in (found[1] or "")
        self._at += len(text)
        if text.endswith(")"):
            self._dotall[-1] = flags
        else:
            self._dotall.append(flags)
        return text

    def _set_end(self) -> int:
        at = self._at + 1
        at += self._pattern.startswith("^", at)
        at += self._pattern.startswith("]", at)
        while at < len(self._pattern) and self._pattern[at] != "]":
            if self._pattern[at] == "[" or self._pattern.startswith("&&", at):
                raise PatternError("sets within sets can't be used")
            at += 2 if self._pattern[at] == "\\" else 1
        return at + 1


def _char(char: str) -> str:
    text = re.escape(escaped_text(char))
    return f"(?:{text})" if len(text) > 1 else text


def _set(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            holds = re.compile(text)
    except re.error as fault:
        raise PatternError(f"{text}: {fault}") from fault
    ways = [f"[{text}&&{_PLAIN}]"]
    ways += [re.escape(escaped_text(char)) for char in f'"\\{_SHORT}' if holds.fullmatch(char)]
    return f"(?:{'|'.join(ways)})"
