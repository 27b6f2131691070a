"""Arguments against the schemas of strict tools."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

from areal_agent.data.json_schema import check_schema, fits
from areal_agent.errors import DataError

OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
    "required": ["a"],
    "additionalProperties": False,
}


class Node(BaseModel):
    """Nests itself."""

    name: str = Field(pattern="^[a-z]+$", max_length=4)
    children: "list[Node]" = []
    kind: str | None = None


NODE = Node.model_json_schema()


@pytest.mark.parametrize(
    ("schema", "value", "fitting"),
    [
        (OBJECT, {"a": 1}, True),
        (OBJECT, {"a": 1, "b": None}, True),
        (OBJECT, {"a": 1.0}, True),
        (OBJECT, {"a": True}, False),
        (OBJECT, {"a": 1.5}, False),
        (OBJECT, {"b": "x"}, False),
        (OBJECT, {"a": 1, "c": 1}, False),
        (OBJECT, [], False),
        (NODE, {"name": "a", "children": [{"name": "b", "kind": "x"}]}, True),
        (NODE, {"name": "a", "children": [{"name": "B"}]}, False),
        (NODE, {"name": "abcde"}, False),
        (NODE, {"name": "a", "kind": 3}, False),
        ({"enum": [1, "x", None]}, None, True),
        ({"enum": [1, "x"]}, True, False),
        ({"const": 0}, False, False),
        ({"minimum": 2, "exclusiveMaximum": 4}, 2, True),
        ({"minimum": 2, "exclusiveMaximum": 4}, 4, False),
        ({"minimum": 2}, "a text", True),
        ({"minItems": 1, "maxItems": 2, "items": {"type": "number"}}, [1, 2.5], True),
        ({"minItems": 1}, [], False),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], True),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1, False),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1.5, True),
        ({"allOf": [{"type": "integer"}, {"maximum": 3}]}, 4, False),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"x": 1}, False),
        ({"type": "string", "format": "date"}, "no date", True),
        (True, 3, True),
        (False, 3, False),
    ],
)
def test_what_fits(schema: Any, value: Any, fitting: bool) -> None:
    check_schema(schema)
    assert fits(value, schema) is fitting


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"properties": {"a": {"not": {"type": "string"}}}}, "'not'"),
        ({"$defs": {"A": {"uniqueItems": True}}}, "'uniqueItems'"),
        ({"anyOf": [{"patternProperties": {}}]}, "'patternProperties'"),
        ({"$ref": "#/$defs/Missing"}, "'#/\\$defs/Missing'"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
        ({"$ref": "#anchor"}, "#anchor"),
        ({"type": "text"}, "'text'"),
        ({"pattern": "("}, "'pattern'"),
        ({"minimum": "3"}, "'minimum'"),
        ({"properties": []}, "'properties'"),
        ({"items": 3}, "expected a JSON schema"),
        ("object", "expected a JSON schema"),
    ],
)
def test_what_cannot_be_checked_is_refused(schema: Any, wrong: str) -> None:
    with pytest.raises(DataError, match=wrong):
        check_schema(schema)
