"""Hide secrets in command lines before they are stored or shown: by names of options, by known forms, and by entropy.

This file imports nothing from the package and is restricted to Python 3.8, because unrecordable processes use it too.
"""

from __future__ import annotations

import math
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Match

REDACT_VARIABLE = "DETERMINISM_REDACT"
"""Environment variable; with `0`, command lines are stored and shown unchanged."""

HIDDEN = "***"

_NAMES = re.compile(
    r"(?:password|passwd|passphrase|passcode|pwd|secret|credentials?|bearer|authorization|cookie|jwt|pat|dsn"
    r"|(?:api|access|private|secret|signing|encryption|account|auth|license|shared|service|master|ssh|deploy|subscription|wandb)_?keys?"
    r"|(?:api|access|auth|secret|session|refresh|id|bearer|hub|hf|github|gitlab|bot|user|login|deploy|personal|security|sas|git|oauth)"
    r"_?tokens?|client_secrets?|connection_string|sig|signature)$"
)
_KEPT_BEFORE_TOKEN = frozenset(
    [
        "pad",
        "eos",
        "bos",
        "unk",
        "sep",
        "cls",
        "mask",
        "stop",
        "start",
        "end",
        "special",
        "image",
        "video",
        "audio",
        "max",
        "min",
        "num",
        "n",
        "per",
        "next",
        "prev",
        "first",
        "last",
        "new",
        "decoder_start",
        "separator",
        "prompt",
        "vocab",
        "extra",
        "sos",
        "eot",
        "placeholder",
        "text",
        "label",
        "prefix",
        "suffix",
        "by",
        "every",
        "context",
    ]
)
"""Words before `token` that refer to text rather than access."""
_FORMS = re.compile(
    r"(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|nvapi-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w.-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|dckr_pat_[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+(?!\*\*\*)[\w.~+/=-]{8,}", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)")
_ASSIGNED = re.compile(
    r"(?P<name>(?<![\w.-])[\w.-]+)(?P<between>[\"']?\s*(?:=|:(?!//))\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|,\"'}\])]+)"
)
_LITERAL = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAMED_LITERAL = re.compile(
    r"(?P<name>[\w.]+)(?P<between>[\"']?\]?\s*(?:=|:)\s*[rbf]?)(?P<quote>[\"'])(?P<value>[^\"']*)(?P=quote)"
)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_SEPARATE = re.compile(
    r"(?P<name>(?<![\w-])--?[A-Za-z][\w.-]*)(?P<between>\s+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s-][^\s]*)"
)
_RUN = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_HEXADECIMAL = re.compile(
    r"(?<![0-9A-Za-z])(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{32,}(?![0-9A-Za-z])"
)
_LONGEST = 4096
_CUT = " [...]"
"""Replaces the rest of an argument longer than `_LONGEST`, such as a program passed with `-c`."""
_LEAST_ENTROPY = 3.5
"""Bits per character. Combined words and numbers have less, or have longer runs of one kind of character."""
_LEAST_ALPHANUMERIC = 0.88
"""Share of letters and digits; names of models and runs contain more hyphens."""
_LEAST_CHANGES = 0.35
"""Changes per character between lowercase, uppercase and digit; random letters and digits have 0.6 on average."""


def is_on() -> bool:
    """Whether secrets are hidden; the user can turn this off."""
    return os.environ.get(REDACT_VARIABLE) != "0"


def redacted(words: Iterable[str]) -> list[str]:
    """Return the words of a command, with `***` in place of anything that looks like a secret."""
    words = [str(word) for word in words]
    if not is_on():
        return words
    found = []
    follows = False
    for word in words:
        if follows and not _OPTION.fullmatch(word):
            found.append(HIDDEN)
            follows = False
            continue
        follows = bool(_OPTION.fullmatch(word)) and is_secret_name(word)
        found.append(_redacted_text(word))
    return found


def redacted_text(text: str) -> str:
    """Return a text with command lines or addresses, with `***` in place of anything that looks like a secret."""
    return _redacted_text(text) if is_on() else text


def redacted_code(line: str) -> str:
    """Return a line of a program with `***` in place of secrets, known by form, or for literals by name or entropy.

    Names and calls are kept, so that the line can be recognized.
    """
    if not is_on():
        return line
    line = _USER_INFO.sub(HIDDEN, _FORMS.sub(HIDDEN, line))
    line = _NAMED_LITERAL.sub(_hide_literal, line)
    return _LITERAL.sub(lambda found: _hidden_runs(found[0]), line)


def _hide_literal(found: Match[str]) -> str:
    if not found["value"] or not is_secret_name(found["name"]):
        return found[0]
    return f"{found['name']}{found['between']}{found['quote']}{HIDDEN}{found['quote']}"


def _hidden_runs(text: str) -> str:
    text = _HEXADECIMAL.sub(HIDDEN, text)
    return _RUN.sub(lambda found: HIDDEN if _is_random(found[0]) else found[0], text)


def is_secret_name(name: str) -> bool:
    """Whether the name of an option, variable or field indicates that its value is a secret."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.strip("-")).replace("-", "_").lower().split(".")
    last = parts[-1].strip("_")
    before, _, end = last.rpartition("_")
    if end == "token" or last == "token":
        return before not in _KEPT_BEFORE_TOKEN and before.rpartition("_")[2] not in _KEPT_BEFORE_TOKEN
    if last == "key":
        # `wandb.key=...`, but not `sort.key=...`.
        return len(parts) > 1 and parts[-2] in ("wandb", "api", "aws", "openai", "comet", "neptune", "auth")
    return any(_NAMES.fullmatch(tail) for tail in _tails(last))


def _tails(name: str) -> list[str]:
    """Return a name and its remainders without the first words."""
    words = name.split("_")
    return ["_".join(words[number:]) for number in range(len(words))]


def _redacted_text(text: str) -> str:
    if len(text) > _LONGEST + len(_CUT):
        text = text[:_LONGEST].rpartition(" ")[0] + _CUT
    text = _FORMS.sub(HIDDEN, text)
    text = _USER_INFO.sub(HIDDEN, text)
    text = _SCHEME.sub(lambda found: f"{found[1]} {HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_value, text)
    text = _SEPARATE.sub(_hide_value, text)
    return _hidden_runs(text)


def _hide_value(found: Match[str]) -> str:
    if not is_secret_name(found["name"]):
        # The value may itself be an assignment, as in `--env=TOKEN=...`.
        value = found["value"]
        inner = _ASSIGNED.sub(_hide_value, value) if len(value) < len(found[0]) else value
        return f"{found['name']}{found['between']}{inner}"
    value = found["value"]
    if value.lower() in ("bearer", "basic"):
        return found[0]
    quote = value[0] if value[:1] in "\"'" and value[-1:] == value[:1] else ""
    return f"{found['name']}{found['between']}{quote}{HIDDEN}{quote}"


def _is_random(text: str) -> bool:
    """Whether letters and digits look random, unlike words, numbers, dates and paths."""
    # Parts of a path are judged one by one, except for the slashes of base64.
    parts = text.split("/")
    if len(parts) > 1 and max(map(len, parts)) < 20 and not (len(text) >= 36 and min(map(len, parts)) > 3):
        return False
    candidates = [text] if len(parts) == 1 or max(map(len, parts)) < 20 else [part for part in parts if len(part) >= 20]
    return any(_looks_drawn(candidate) for candidate in candidates)


def _looks_drawn(text: str) -> bool:
    characters = [character for character in text if character.isalnum()]
    kinds = [0 if character.isdigit() else 1 if character.islower() else 2 for character in characters]
    if len(characters) < 20 or len(characters) < len(text) * _LEAST_ALPHANUMERIC:
        return False
    if len(set(kinds)) < 3:
        return _is_small(characters, kinds)
    changes = _changes(kinds)
    return changes >= _LEAST_CHANGES and _entropy(characters) >= _LEAST_ENTROPY


def _is_small(characters: list[str], kinds: list[int]) -> bool:
    """Whether the characters look like random digits and letters of a single case."""
    if len(characters) < 24 or 0 not in kinds:
        return False
    digits = kinds.count(0) / len(kinds)
    changes = _changes(kinds)
    return 0.1 <= digits <= 0.6 and changes >= 0.25 and _entropy(characters) >= 3.5


def _changes(kinds: list[int]) -> float:
    return sum(kinds[at] != kinds[at - 1] for at in range(1, len(kinds))) / (len(kinds) - 1)


def _entropy(characters: list[str]) -> float:
    counts = [characters.count(one) for one in set(characters)]
    return -sum(count / len(characters) * math.log2(count / len(characters)) for count in counts)
