"""Messages that users read keep one form: what is wrong, in the words of git and kubectl, without a full stop.

`invalid range '4..2'`, `job 'x' not found`, `unknown policy 'x'`: never `'x' is no range` or `there is no job 'x'`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.policies.registry import entries

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainmaster"
NOT_FOR_USERS = {"dst", "testing"}
BUILDS_A_MESSAGE = {"_fail", "fail", "fault", "_error", "_refuse", "refuse", "Finding"}
"""Functions that make the exception for those who call them, and findings of `doctor`."""
BAD_FORMS = {
    r"\b(?:is|are) no\b(?! longer)": "write `invalid NOUN 'x'` or `not a NOUN`",
    r"\bthere (?:is|are) no\b": "write `NOUN 'x' not found` or `no NOUN`",
    r"\b(?:names|describes|says) (?:no|nothing)\b": "write `invalid NOUN 'x'`",
    r"\bcannot be had\b": "say what failed",
    r"\b(?:reigns?|telling|desk|burial|keeper|incarnation)\b": "use the words of docs/glossary.md",
    r"^\{\}$|^'\{\}'$": "say what is wrong with the value: `invalid NOUN 'x'`",
}


def _text(node: ast.expr) -> str:
    """A literal text, with `{}` where a value stands."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or _shown(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return ""


def _shown(part: ast.expr) -> str:
    """`{}` for a value; the text of another error may stand alone."""
    value = part.value if isinstance(part, ast.FormattedValue) else None
    return "{error}" if isinstance(value, ast.Name) and value.id == "error" else "{}"


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every literal of an exception or a finding; a bare value counts only where it is the message."""
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(node, ast.Raise) or name in BUILDS_A_MESSAGE:
            for k, argument in enumerate([*call.args, *(keyword.value for keyword in call.keywords)]):
                text = _text(argument)
                if text and (k == 0 or text.strip("'") != "{}"):
                    yield argument.lineno, text


def _faults(source: str) -> list[str]:
    found = []
    for line, text in _messages(ast.parse(source)):
        found += [f"{line}: {text!r}: {advice}" for form, advice in BAD_FORMS.items() if re.search(form, text)]
    return found


def test_messages_have_the_form_of_git_and_kubectl() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{fault}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in NOT_FOR_USERS
        for fault in _faults(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "raise InputError(f\"'{text}' is no range\", 'A..B')",
        "raise NotFound(f\"there is no job '{name}'\")",
        "raise InputError(f'{value}', '1 to 5')",
        "_fail(f'{speed} is no speed', 'a number')",
        "raise InputError('x', expected='what the keeper wrote')",
    ],
)
def test_each_bad_form_is_noticed(statement: str) -> None:
    assert _faults(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "raise InputError(f\"invalid range '{text}'\", 'A..B')",
        "raise Conflict('it is no longer wanted')",
        "log(f'there is no leader')",
    ],
)
def test_other_texts_are_left_alone(statement: str) -> None:
    assert not _faults(statement)


def test_every_policy_describes_itself() -> None:
    summaries = [item.summary for item in entries()]
    assert all(summaries)
    assert len(set(summaries)) == len(summaries)
