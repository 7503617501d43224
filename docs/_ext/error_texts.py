"""The texts of all errors, read from the statements that make them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import unisono
from unisono.base import errors

__all__ = ["ErrorText", "error_texts", "table"]

_SOURCES = Path(unisono.__file__).parent

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class ErrorText(NamedTuple):
    """A text of an error of class `name`, and where it is made."""

    name: str
    text: str
    file: str
    line: int


def error_texts() -> list[ErrorText]:
    """All texts in the order of files and lines. Names in braces are filled in when the error is raised."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(_SOURCES.rglob("*.py"))}
    makers = dict(_makers(trees.values()))
    found = []
    for path, tree in trees.items():
        file = str(path.relative_to(_SOURCES))
        if file == "base/errors.py":
            continue  # texts made of fields
        for call, function in _calls(tree, tree):
            name = makers.get(_called(call))
            if name:
                found += [ErrorText(name, text, file, call.lineno) for text in _texts(call, function)]
    return found


def table() -> str:
    """The texts as tables in Markdown, one for each class."""
    texts = error_texts()
    parts = []
    for name in errors.__all__:
        rows = dict.fromkeys(f"| {_cell(one.text)} | `{one.file}` |" for one in texts if one.name == name)
        if rows:
            head = "| text | file |\n| --- | --- |"
            parts.append(f"### Texts of {name}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _makers(trees: Iterable[ast.Module]) -> Iterator[tuple[str, str]]:
    """Classes of errors, and functions that return one, each with the name of the class."""
    yield from ((name, name) for name in errors.__all__)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS) and node.returns:
                returned = ast.unparse(node.returns).strip("'\"")
                if returned in errors.__all__:
                    yield node.name, returned


def _calls(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Every call below `node`, with the function around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function
        yield from _calls(child, child if isinstance(child, _FUNCTIONS) else function)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _texts(call: ast.Call, function: ast.AST) -> Iterator[str]:
    """The texts among the arguments of a call, which may be names that the function has assigned."""
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        sources = [value]
        if isinstance(value, ast.Name):
            name = value.id
            sources = [a.value for a in assigned if name in (getattr(target, "id", "") for target in a.targets)]
        for source in sources:
            yield from filter(_is_text, _template(source))


def _is_text(text: str) -> bool:
    """Whether this is a text, not a name or a part of a text that another function completes."""
    return text.count(" ") >= 3 or ": " in text


def _template(value: ast.expr) -> list[str]:
    """The texts that an expression may have, with names in braces for what is filled in."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(str(p.value) if isinstance(p, ast.Constant) else _field(p) for p in parts)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in _template(left) for b in _template(right)]
        case ast.IfExp(body=one, orelse=other):
            return [*_template(one), *_template(other)]
    return []


def _field(value: ast.AST) -> str:
    """A name for what is filled in: the last name of the expression that is not a function's."""
    functions = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    names = [
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in functions
    ]
    plain = [name for name in names if not name.startswith("__")]
    return "{" + (plain or ["value"])[0].strip("_").lower() + "}"


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    for mark in "|<>*_[]`{}":
        escaped = escaped.replace(mark, f"\\{mark}")
    return " ".join(escaped.split())
