"""The method table and its shapes: strict where it must be, fresh where it is generated."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from pydantic import ValidationError

from dsh_daemon import errors
from dsh_daemon.wire import generate, types as t
from dsh_daemon.wire.connection import invalid_params
from dsh_daemon.wire.methods import METHODS, NOTIFICATIONS, PUSHES

SPEC = Path(__file__).resolve().parents[1] / "protocol-spec"
EXAMPLES = SPEC / "examples"
KINDS = {cls.kind for cls in vars(errors).values() if isinstance(cls, type) and hasattr(cls, "kind")}


documents = cache(generate.documents)


def requests(verdict: str) -> list:
    return list(_requests(verdict))


def _requests(verdict: str):
    for path in sorted(EXAMPLES.glob("*/*.json")):
        document = json.loads(path.read_text())
        for example in document.get(verdict, []) if path.parent.name != "types" else []:
            if example["request"].get("method") in METHODS:
                yield pytest.param(example, id=f"{path.parent.name}/{path.stem}: {example['title']}")


def parsed(request: dict) -> t.Params:
    raw = request.get("params")
    return METHODS[request["method"]].params.model_validate({} if raw in (None, []) else raw)


@pytest.mark.parametrize("example", requests("accepted"))
def test_the_published_requests_are_accepted(example):
    parsed(example["request"])


@pytest.mark.parametrize("example", requests("refused"))
def test_the_published_refusals_are_refusals_of_the_same_parameters(example):
    """Only -32602 is decided by the shapes; what else is refused must get past them."""
    request, error = example["request"], example["answer"]["error"]
    if error["code"] != -32602:
        parsed(request)
        return
    with pytest.raises(ValidationError) as caught:
        parsed(request)
    issues = invalid_params(caught.value, request["method"], request.get("params")).data["issues"]
    paths = [issue["path"] for issue in issues]
    if paths != [[]]:  # two parameters together are at fault
        assert paths == [issue["path"] for issue in error["data"]["issues"]]


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_every_row_of_the_table_is_well_formed(row):
    assert set(row.errors) <= KINDS
    assert row.summary.endswith(".")
    area, _, verb = row.name.partition("/")
    expected = area[0].upper() + area[1:] + (verb[:1].upper() + verb[1:]) + "Params"
    assert row.params in (t.Params, getattr(t, expected, None))
    assert row.params.model_fields["work_done_token"].default is None


def test_the_handlers_of_the_service_are_named_after_the_methods():
    assert METHODS["session/moveLeaf"].attribute == "session_move_leaf"
    assert METHODS["catalog/subscribe"].attribute == "catalog_subscribe"


def test_every_write_can_say_read_only():
    for row in METHODS.values():
        if row.writes:
            assert "readOnly" in row.errors, row.name


def test_the_service_has_a_handler_for_every_row():
    from dsh_daemon.service import Service
    from dsh_daemon.wire.plain_lsp import PlainLsp
    from dsh_daemon.wire.server import Server

    owners = (Service, Server, PlainLsp)
    assert [r.name for r in METHODS.values() if sum(hasattr(owner, r.attribute) for owner in owners) != 1] == []


# --- omitted and null (C3)


def test_omitted_and_null_are_told_apart():
    append = {"sessionId": "s", "entries": [{"type": "x"}]}
    omitted = t.SessionAppendParams.model_validate(append)
    null = t.SessionAppendParams.model_validate({**append, "parentId": None, "expectedLeafId": None})
    assert "parent_id" not in omitted.model_fields_set
    assert {"parent_id", "expected_leaf_id"} <= null.model_fields_set
    assert METHODS["session/draft"].changes(t.SessionDraftParams.model_validate({"sessionId": "s", "text": None}))
    assert not METHODS["session/draft"].changes(t.SessionDraftParams.model_validate({"sessionId": "s"}))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/tree", {"sessionId": "s", "filter": None}),
        ("session/tree", {"sessionId": "s", "query": None}),
        ("session/tree", {"sessionId": "s", "count": "5"}),
        ("session/tree", {"sessionId": "s", "count": 5001}),
        ("session/tree", {"sessionId": "s", "start": -1}),
        ("session/tree", {"sessionId": "s", "start": 1.5}),
        ("session/tree", {"sessionId": "s", "family": 1}),
        ("session/tree", {"session_id": "s"}),
        ("session/tree", {"sessionId": ""}),
        ("session/rename", {"sessionId": "s"}),
        ("session/label", {"sessionId": "s", "entryId": "x"}),
        ("session/moveLeaf", {"sessionId": "s"}),
        ("session/navigate", {"sessionId": "s"}),
        ("session/navigate", {"sessionId": "s", "targetId": None, "back": True}),
        ("session/entries", {"sessionId": "s"}),
        ("session/entries", {"sessionId": "s", "ids": ["a"], "around": "a"}),
        ("session/entries", {"sessionId": "s", "ids": ["a"] * 201}),
        ("session/open", {}),
        ("session/open", {"sessionId": "s", "path": "/p"}),
        ("session/list", {"scope": "exact"}),
        ("session/list", {"cwd": "relative"}),
        ("session/create", {"cwd": "/x", "sessionId": "../../etc/passwd"}),
        ("session/create", {"cwd": "/x", "sessionId": "a/b"}),
        ("session/create", {"cwd": "/x", "sessionId": ".."}),
        ("session/create", {"cwd": "/x", "sessionId": "x" * 300}),
        ("session/create", {"cwd": "/x", "sessionId": "a\x00b"}),
        ("session/create", {"cwd": "/x\x00y"}),
        ("session/branch", {"sessionId": "s"}),
        ("session/append", {"sessionId": "s", "entries": []}),
        ("session/append", {"sessionId": "s", "entries": [5]}),
        ("catalog/subscribe", {"cursor": "x"}),
    ],
)
def test_what_the_protocol_does_not_allow_is_refused(method, params):
    """A108 among others: a chosen id is a plain file name."""
    with pytest.raises(ValidationError):
        METHODS[method].params.model_validate(params)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/tree", {"sessionId": "s", "count": 5.0, "start": 0}),
        ("session/navigate", {"sessionId": "s", "targetId": None}),
        ("session/navigate", {"sessionId": "s", "targetId": "x", "summarize": []}),
        ("session/navigate", {"sessionId": "s", "targetId": "x", "summarize": {"replace": True}}),
        ("session/navigate", {"sessionId": "s", "back": True}),
        (
            "session/append",
            {"sessionId": "s", "entries": [{"type": "anything", "x": {"y": [None, 1.5]}}], "parentId": None},
        ),
        ("session/children", {"sessionId": "s", "entryId": None}),
        ("initialize", {"initializationOptions": [], "anything": 1}),
        ("initialize", {"initializationOptions": {"hooks": ["x"], "protocolVersion": 1.0, "other": 1}}),
    ],
)
def test_what_lua_and_javascript_send_is_accepted(method, params):
    METHODS[method].params.model_validate(params)


def test_an_entry_keeps_all_of_its_fields():
    entry = {"type": "custom", "id": "x", "data": {"jsonrpc": "2.0", "class": 1, "type_name": "Evil"}, "parentId": None}
    params = t.SessionAppendParams.model_validate({"sessionId": "s", "entries": [entry]})
    assert params.entries == [entry]


# --- the generated files


def test_the_published_table_and_schema_are_fresh():
    """`python -m dsh_daemon.wire.generate` writes them."""
    assert generate.stale() == []


def test_the_schema_is_valid_and_every_reference_in_the_table_resolves():
    import jsonschema

    generated = documents()
    schema, table = generated["schema.json"], generated["protocol.json"]
    jsonschema.Draft202012Validator.check_schema(schema)
    references = json.dumps(generated).split('"$ref": "')[1:]
    for reference in references:
        name = reference.partition('"')[0].rpartition("/")[2]
        assert name in schema["$defs"], name
    assert set(table["requests"]) == set(METHODS)
    assert set(table["notifications"]["client"]) == set(NOTIFICATIONS)
    assert set(table["notifications"]["daemon"]) == set(PUSHES)
    assert {error["kind"] for error in table["errors"]} == KINDS


@pytest.mark.parametrize("example", requests("accepted"))
def test_the_published_examples_fit_the_published_schema(example):
    """Both the params and the results that `protocol-spec/examples` shows."""
    import jsonschema

    generated = documents()
    row = generated["protocol.json"]["requests"][example["request"]["method"]]

    def validate(value, reference):
        schema = {**generated["schema.json"], **json.loads(json.dumps(reference).replace("schema.json#", "#"))}
        jsonschema.Draft202012Validator(schema).validate(value)

    validate(example["request"].get("params") or {}, row["params"])
    if example["request"]["method"] != "shutdown":
        validate(example["answer"]["result"], row["result"])


# An entry's shape is as wide as a log: it has no schema to fit.
TYPED = sorted(path for path in (EXAMPLES / "types").glob("*.json") if path.stem != "Entry")


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.stem)
def test_the_published_types_fit_the_published_schema(path):
    import jsonschema

    schema = documents()["schema.json"]
    document = json.loads(path.read_text())
    for example in document if isinstance(document, list) else document.get("accepted", [document]):
        jsonschema.Draft202012Validator({**schema, "$ref": f"#/$defs/{path.stem}"}).validate(example["value"])
