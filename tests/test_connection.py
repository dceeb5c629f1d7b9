"""One client's rules: framing, refusals, order, cancelling, requests to the client, and the seams of pygls."""

from __future__ import annotations

import asyncio
import json
import logging
import random

import pytest

from dsh_daemon.wire.codec import decode, encode
from dsh_daemon.wire.connection import READS_AT_ONCE

from .wire import in_loop, until, world


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


# --- framing (C1)


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET / HTTP/1.1\r\n\r\n",
        b"Content-Length: 2\r\nOrigin: http://evil\r\n\r\n{}",
        b"Content-Length: abc\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"Content-Type: application/json\r\n\r\n{}",
        b"\r\n\r\n",
        b"Content-Type: " + b"x" * 5000,
        b"Content-Type: x\r\n" * 300,
        b"Content-Length: 99999999999999\r\n\r\n",
        b"garbage\n",
    ],
)
@in_loop
async def test_bytes_that_are_no_frame_get_an_error_and_the_end(home, raw):
    """A107: a browser's request to a port of ours is answered with an error and the connection ends."""
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        peer.writer.write(raw)
        message = await peer.read()
        assert message["error"]["code"] == -32600
        assert message["id"] is None
        assert await peer.ended()


@in_loop
async def test_a_body_over_the_limit_is_refused_before_it_is_read(home):
    async with world(home, limits={"max_message_bytes": 2000}) as w:
        peer = await w.peer()
        peer.writer.write(b"Content-Length: 2001\r\n\r\n" + b"x" * 100)
        message = await peer.read()
        assert "2001" in message["error"]["message"]
        assert await peer.ended()


@in_loop
async def test_content_type_is_allowed_and_the_case_of_headers_does_not_matter(home):
    async with world(home) as w:
        peer = await w.peer()
        body = b'{"jsonrpc":"2.0","id":7,"method":"daemon/ping"}'
        peer.writer.write(b"content-length:%d\r\nContent-Type: x; charset=utf-8\r\n\r\n%b" % (len(body), body))
        assert (await peer.read())["result"]["protocolVersion"] == 1


@in_loop
async def test_a_frame_may_come_byte_by_byte_or_many_in_one_piece(home):
    async with world(home) as w:
        peer = await w.peer()
        frame = encode({"jsonrpc": "2.0", "id": "é", "method": "daemon/ping"})
        for i in range(len(frame)):
            peer.writer.write(frame[i : i + 1])
            await asyncio.sleep(0)
        assert (await peer.read())["id"] == "é"
        peer.writer.write(frame * 200)
        for _ in range(200):
            assert "result" in await peer.read()


# --- messages


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{nope", -32700),
        (b'"\xff"', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":{"x":NaN}}', -32700),
        (b"[" * 5000 + b"]" * 5000, -32700),
        (b"", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"daemon/ping"}]', -32600),
        (b"5", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"daemon/ping"}', -32600),
        (b'{"id":1,"method":"daemon/ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"daemon/ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"daemon/ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"daemon/ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"daemon/ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"session/noSuch"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":[1]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":"x"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":{"event":{"jsonrpc":"2.0","id":5}}}', -32602),
    ],
)
@in_loop
async def test_every_malformed_message_is_answered_and_the_connection_stays(home, body, code):
    async with world(home) as w:
        peer = await w.peer()
        peer.write(body)
        message = await peer.read()
        assert message["error"]["code"] == code
        assert "result" not in message
        assert (await peer.result("daemon/ping"))["protocolVersion"] == 1


@in_loop
async def test_invalid_params_are_named_one_by_one(home):
    async with world(home) as w:
        peer = await w.peer()
        error = await peer.refused("session/append", {"sessionId": 5, "entries": [{"id": "x"}], "leaf": 1})
        issues = {tuple(issue["path"]): issue["message"] for issue in error["data"]["issues"]}
        assert set(issues) == {("sessionId",), ("entries", 0, "type"), ("leaf",)}
        assert issues["leaf",] == "unknown parameter"
        assert (await peer.refused("session/navigate", {"sessionId": "s", "targetId": "x", "summarize": {"foo": 1}}))[
            "data"
        ]["issues"][-1]["path"] == ["summarize", "foo"]


@pytest.mark.parametrize("params", [None, [], {}, {"workDoneToken": "t"}, {"workDoneToken": 1}])
@in_loop
async def test_missing_null_and_empty_array_params_read_as_an_empty_object(home, params):
    async with world(home) as w:
        peer = await w.peer()
        assert "pid" in await peer.result("daemon/ping", params)


@in_loop
async def test_a_domain_fault_travels_with_its_kind_and_details(home):
    async with world(home) as w:
        peer = await w.peer()
        error = await peer.refused("session/open", {"sessionId": "nobody"})
        assert error["code"] == 1001
        assert error["data"] == {"kind": "sessionNotFound", "sessionId": "nobody"}


@in_loop
async def test_an_unforeseen_error_gives_an_incident_and_no_text_of_the_log(home, caplog):
    """A109: the log names the place of the error, never what a message said."""
    async with world(home) as w:
        peer = await w.peer()
        with caplog.at_level(logging.INFO):
            error = await peer.refused("session/labels", {"sessionId": "s"})
        assert error["code"] == -32603
        assert list(error["data"]) == ["incident"]
        assert error["data"]["incident"] in caplog.text
        assert "session_labels" in caplog.text
        assert "in confidence" not in caplog.text + json.dumps(error)
        assert "result" in await peer.call("daemon/ping")


@pytest.mark.parametrize("result", [{"text": "half \ud83d emoji"}, {"n": 2**70}, {"deep": None}])
@in_loop
async def test_whatever_a_log_holds_is_sent_as_valid_json(home, result):
    async with world(home) as w:
        peer = await w.peer()
        if "deep" in result:
            deep = []
            for _ in range(400):
                deep = [deep]
            result = {"deep": deep}
        w.service.result = result
        answer = await peer.result("session/context", {"sessionId": "s"})
        assert answer == ({"text": "half \ufffd emoji"} if "text" in result else result)


@in_loop
async def test_a_result_that_json_cannot_say_is_an_incident_not_a_silence(home):
    async with world(home) as w:
        peer = await w.peer()
        w.service.result = {"x": object()}
        assert (await peer.refused("session/context", {"sessionId": "s"}))["code"] == -32603


@in_loop
async def test_a_lone_surrogate_escape_is_read_as_the_replacement_character(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.write(b'{"jsonrpc":"2.0","id":1,"method":"session/draft","params":{"sessionId":"s","text":"a\\ud83d"}}')
        assert (await peer.read())["result"] == {"text": "a\ufffd"}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (b"[123456789012345678901234567890]", [123456789012345678901234567890]),
        (b"[18446744073709551615, -9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b'["12345678901234567890123", 0.12345678901234567890123]', ["12345678901234567890123", 0.12345678901234568]),
        (b'["\\ud83d", 36893488147419103232]', ["\ufffd", 2**65]),
        (b"[" * 900 + b"9" * 30 + b"]" * 900, None),
    ],
)
def test_an_integer_of_any_length_is_read_as_one(sent: bytes, read: object):
    value = decode(sent)
    if read is not None:
        assert value == read
        assert [type(one) for one in value] == [type(one) for one in read]
    with pytest.raises(ValueError):
        decode(b'["\\ud83d", 1' + b"0" * 400 + b".0]")


@in_loop
async def test_a_message_inside_of_a_message_is_data(home):
    async with world(home) as w:
        peer = await w.peer()
        entry = {"type": "custom", "id": "a", "data": {"jsonrpc": "2.0", "id": 1, "result": {}}}
        assert (await peer.result("session/append", {"sessionId": "s", "entries": [entry]}))["ids"] == ["a"]


@in_loop
async def test_notifications_are_never_answered(home):
    async with world(home) as w:
        peer = await w.peer()
        for method in ("initialized", "$/setTrace", "$/unknown", "no/such", "session/append", "daemon/ping"):
            peer.send({"jsonrpc": "2.0", "method": method, "params": {"sessionId": "s", "entries": [{"type": "x"}]}})
        for params in ({"id": 99}, {"id": "gone"}, {"id": {}}, {}, [], 5, None):
            peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": params})
        peer.ask("daemon/ping", id_="end")
        assert (await peer.read())["id"] == "end"
        assert w.service.sessions["s"] == []


@in_loop
async def test_few_reads_of_one_client_run_at_once_and_writes_do_not_wait_for_them(home):
    async with world(home) as w:
        peer, other = await w.peer(), await w.peer()
        reads = [peer.ask("session/path", {"sessionId": f"r{n}"}) for n in range(READS_AT_ONCE + 5)]
        assert (await peer.call("session/rename", {"sessionId": "s", "title": "x"}))["result"]["stored"] == "log"
        assert "result" in await peer.call("daemon/ping")
        assert w.service.started == [f"r{n}" for n in range(READS_AT_ONCE)]
        other.ask("session/path", {"sessionId": "other"}, id_="other")
        await until(lambda: w.service.started[-1] == "other")
        peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": reads[-1]}})
        assert (await peer.answer(reads[-1]))["error"]["code"] == -32800
        w.service.gate.set()
        for read in reads[:-1]:
            assert "result" in await peer.answer(read)
        assert w.service.started[-4:] == [f"r{n}" for n in range(READS_AT_ONCE, READS_AT_ONCE + 4)]


@in_loop
async def test_a_client_that_reads_no_answers_has_few_made_for_it(home):
    async with world(home) as w:
        peer = await w.peer()
        w.service.result = {"text": "x" * 2_000_000}
        made = w.service.session_context

        async def counted(client, params):
            w.service.started.append("context")
            return await made(client, params)

        w.service.session_context = counted
        peer.writer.transport.pause_reading()
        asked = [peer.ask("session/context", {"sessionId": "s"}) for _ in range(60)]
        await asyncio.sleep(0.5)
        assert len(w.service.started) <= 2 * READS_AT_ONCE
        peer.writer.transport.resume_reading()
        for id_ in asked:
            assert "result" in await peer.answer(id_)
        assert len(w.service.started) == 60


@in_loop
async def test_an_id_that_is_in_flight_is_refused(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.ask("session/path", {"sessionId": "a"}, id_=5)
        peer.ask("session/path", {"sessionId": "b"}, id_=5)
        message = await peer.read()
        assert (message["id"], message["error"]["code"]) == (5, -32600)
        w.service.gate.set()
        assert "result" in await peer.answer(5)
        assert w.service.started == ["a"]
        assert "result" in await peer.answer(peer.ask("session/path", {"sessionId": "c"}, id_=5))


@in_loop
async def test_too_many_requests_in_flight_are_refused_with_a_time_to_retry(home):
    """A159: what is too much is said, with a time."""
    async with world(home, limits={"max_requests_in_flight": 3}) as w:
        peer = await w.peer()
        for i in range(4):
            peer.ask("session/path", {"sessionId": "s"}, id_=f"r{i}")
        error = (await peer.answer("r3"))["error"]
        assert error["data"]["kind"] == "overloaded"
        assert error["data"]["retryAfterMs"] > 0
        w.service.gate.set()
        for i in range(3):
            assert "result" in await peer.answer(f"r{i}")


@in_loop
async def test_damaged_messages_never_end_the_connection_nor_go_unanswered(home):
    """Bytes of valid requests, changed at random: each body gets one answer or is a notification."""
    rng = random.Random(20260101)
    seeds = [
        b'{"jsonrpc":"2.0","id":1,"method":"session/append","params":{"sessionId":"s","entries":[{"type":"x"}]}}',
        b'{"jsonrpc":"2.0","id":"a","method":"session/draft","params":{"sessionId":"s","text":"\\ud83d\\ude00"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
        b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}',
    ]
    async with world(home) as w:
        peer = await w.peer()
        sent = answered = 0
        for number in range(600):
            body = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(body))
                match rng.randrange(3):
                    case 0:
                        body[at] = rng.randrange(256)
                    case 1:
                        del body[at : at + rng.randrange(1, 9)]
                    case _:
                        body[at:at] = rng.choice([b"[", b"}", b"null", b'"', b"-1e999", b"\xff", b"\\u0000", b","])
                if not body:
                    break
            if b"exit" in body:
                continue
            peer.write(bytes(body))
            peer.ask("daemon/ping", id_=f"ping {number}")
            sent += 1
            while (message := await peer.read()).get("id") != f"ping {number}":
                if "method" in message:
                    continue
                answered += 1
                assert ("result" in message) != ("error" in message)
                assert message.get("error", {}).get("code") != -32603
            assert answered <= sent  # an append may answer after the next ping, but nothing answers twice


# --- order and change before result


@in_loop
async def test_requests_of_one_connection_are_started_in_order(home):
    async with world(home) as w:
        peer = await w.peer()
        ids = [
            peer.ask("session/append", {"sessionId": "s", "entries": [{"type": "x", "id": f"e{i}"}]})
            for i in range(300)
        ]
        for id_ in ids:
            assert "result" in await peer.answer(id_)
        assert w.service.sessions["s"] == [f"e{i}" for i in range(300)]


@in_loop
async def test_a_request_pipelined_behind_initialize_is_served(home):
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        peer.ask("initialize", {}, id_=1)
        peer.ask("session/open", {"sessionId": "s"}, id_=2)
        assert "result" in await peer.answer(2)


@in_loop
async def test_the_change_reaches_its_author_before_the_answer(home):
    async with world(home) as w:
        peer = await w.peer()
        await peer.result("session/open", {"sessionId": "s"})
        result = await peer.result("session/append", {"sessionId": "s", "entries": [{"type": "x", "id": "a"}]})
        assert [m["params"]["revision"] for m in peer.pushed] == [result["revision"]]


# --- cancelling (C9)


@in_loop
async def test_a_cancelled_read_answers_so(home):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/path", {"sessionId": "s"})
        peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id_}})
        assert (await peer.answer(id_))["error"]["code"] == -32800
        assert "result" in await peer.call("daemon/ping")


@in_loop
async def test_a_handler_may_answer_a_cancel_with_a_result(home):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/navigate", {"sessionId": "s", "targetId": "x"})
        await peer.call("daemon/ping")
        peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id_}})
        assert (await peer.answer(id_))["result"] == {"outcome": "cancelled"}


# --- requests to the client


@in_loop
async def test_the_daemon_can_ask_a_client_and_gets_its_answer(home):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/leaves", {"sessionId": "s"})
        question = await peer.read()
        assert question["method"] == "hook/sessionBeforeTree"
        peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"cancel": True}})
        assert (await peer.answer(id_))["result"] == {"cancel": True}


@pytest.mark.parametrize("error", [{"code": -32601, "message": "no"}, {"code": "x"}, "boom", {}])
@in_loop
async def test_a_clients_error_is_an_error_of_the_question(home, error):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/leaves", {"sessionId": "s"})
        question = await peer.read()
        peer.send({"jsonrpc": "2.0", "id": question["id"], "error": error})
        assert "error" in await peer.answer(id_)


@in_loop
async def test_cancelling_the_outer_request_cancels_the_question(home):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/leaves", {"sessionId": "s"})
        question = await peer.read()
        peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id_}})
        assert (await peer.answer(id_))["error"]["code"] == -32800
        assert {"id": question["id"]} in [m["params"] for m in peer.pushed if m["method"] == "$/cancelRequest"]
        peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {}})
        assert "result" in await peer.call("daemon/ping")


@in_loop
async def test_an_answer_with_the_id_of_a_request_in_flight_changes_nothing(home):
    async with world(home) as w:
        peer = await w.peer()
        id_ = peer.ask("session/path", {"sessionId": "s"})
        peer.send({"jsonrpc": "2.0", "id": id_, "result": {"ids": ["forged"]}})
        peer.send({"jsonrpc": "2.0", "id": "unknown", "result": {}})
        await peer.call("daemon/ping")
        w.service.gate.set()
        assert (await peer.answer(id_))["result"] == {"ids": []}


# --- leaving


@in_loop
async def test_whoever_stops_sending_still_gets_what_is_under_way(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.ask("session/rename", {"sessionId": "s", "title": "x"}, id_=1)
        peer.writer.write_eof()
        assert (await peer.answer(1))["result"]["stored"] == "log"
        assert await peer.ended()


@in_loop
async def test_a_write_ends_although_its_client_is_gone_and_a_read_does_not(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.ask("session/rename", {"sessionId": "s", "title": "kept"})
        peer.ask("session/path", {"sessionId": "s"})
        await until(lambda: w.service.started)
        peer.writer.transport.abort()
        await until(lambda: w.service.sessions["s"] == ["kept"])
        await until(lambda: not w.server._tasks)
        assert w.service.clients == []


@in_loop
async def test_a_client_that_leaves_during_a_question_fails_the_question_only(home):
    async with world(home) as w:
        asked, asker = await w.peer(), await w.peer()
        await until(lambda: len(w.service.clients) == 2)
        first = w.service.clients[0]
        task = asyncio.create_task(first.ask("hook/x", {}))
        await asked.read()
        asked.close()
        with pytest.raises(ConnectionError):
            await task
        assert "result" in await asker.call("daemon/ping")
