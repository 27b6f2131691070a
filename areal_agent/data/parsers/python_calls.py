"""Calls as Python writes them: a list of calls with literal arguments. Nothing is evaluated."""

import ast
import re
import warnings
from typing import Any

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolCall, make_call

BRACKET_MARKERS = ("[",)
PYTHONIC_STARTS = ("[", "<|python_start|>")
PYTHONIC_TAGS = ("<|python_start|>", "<|python_end|>")

_LOOKS_CALLED = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_BRACKET_CALL = re.compile(r"\[([^\[\]]*)\]")
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse_pythonic(text: str, tools: Tools) -> ParsedReply:
    """Read ``[f(a=1), g(b="x")]`` where it is all of a reply.

    It may stand between ``<|python_start|>`` and ``<|python_end|>``. Arguments are named, and
    literals; JSON's ``true``, ``false`` and ``null`` are taken as well.
    """
    body = text.strip().removeprefix(PYTHONIC_TAGS[0]).removesuffix(PYTHONIC_TAGS[1]).strip()
    if not _LOOKS_CALLED.match(body):
        return ParsedReply(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(body, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else []
        calls = tuple(_python_call(node) for node in nodes)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ParsedReply(text, is_malformed=True)
    whole = tuple(call for call in calls if call is not None)
    if not whole or len(whole) < len(calls):
        return ParsedReply(text, is_malformed=True)
    return ParsedReply("", whole)


def parse_bracket(text: str, tools: Tools) -> ParsedReply:
    """Read ``[20*23]`` as a call of ``calculator``: the small demo model's way."""
    expressions = _BRACKET_CALL.findall(text)
    rest = _BRACKET_CALL.sub("", text)
    if "[" in rest or "]" in rest:
        return ParsedReply(text, is_malformed=True)
    if not expressions:
        return ParsedReply(text)
    calls = (ToolCall("calculator", {"expression": expression}) for expression in expressions)
    return ParsedReply(rest.rstrip(), tuple(calls))


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    names = [keyword.arg for keyword in node.keywords]
    arguments = {
        keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None
    }
    if None in names or len(arguments) < len(names):
        return None
    return make_call(ast.unparse(node.func) if _is_name(node.func) else None, arguments)


def _is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _value(node: ast.expr) -> Any:
    """The value of a literal that JSON can hold.

    Raises:
        ValueError: it is no such literal.
    """
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("expected names as keys")
            return dict(zip(names, map(_value, values), strict=True))
        case _:
            raise ValueError("expected a literal")
