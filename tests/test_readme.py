"""What README.md says is what there is: its client runs, its settings are the settings, its licence is there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dsh_daemon.config import PREFIX, Settings

from .running import environment
from .support import header, user, write_log

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, holds: str = "") -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (chosen,) = (text for text in found if holds in text)
    return chosen


@contextmanager
def client(home: Path, roots: Path) -> Generator[subprocess.Popen[str]]:
    """The README's client, as a script, with a daemon of its own that goes with it."""
    env = environment(home, roots, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        [sys.executable, "-c", block("python", "catalog/subscribe")], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
        assert process.poll() is None, "it follows until it is interrupted"
    finally:
        process.kill()
        process.communicate()
        subprocess.run([sys.executable, "-m", "dsh_daemon", "stop"], env=env, check=True, capture_output=True)


def test_the_client_of_the_readme_follows_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    with client(tmp_path / "h", tmp_path / "roots") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sessions: 0\n"
        write_log(tmp_path / "roots" / "t_new.jsonl", [user("a", None, "hello")], header("new"))
        assert process.stdout.readline() == "listed: hello\n"


def test_the_client_of_the_readme_draws_the_latest_session_and_hears_what_is_appended(tmp_path: Path) -> None:
    path = write_log(tmp_path / "roots" / "t_one.jsonl", [user("a", None, "hello")], header("one"))
    with client(tmp_path / "h", tmp_path / "roots") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["sessions: 1\n", "user hello\n"]
        write_log(path, [user("a", None, "hello"), user("b", "a", "more", 2)], header("one"))
        heard = iter(process.stdout.readline, "")
        assert next(line for line in heard if line.startswith("changed")).endswith("leaf b\n")


def test_ctrl_c_ends_the_scripts_of_the_readme_without_a_word(tmp_path: Path) -> None:
    env = environment(tmp_path / "h", "", PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    dshd = [sys.executable, "-m", "dsh_daemon"]
    made = json.loads(subprocess.run([*dshd, "create", "--json"], env=env, check=True, capture_output=True).stdout)
    try:
        for script, args in (("catalog/subscribe", []), ("session/resume", [made["sessionId"]])):
            order = [sys.executable, "-c", block("python", script), *args]
            with subprocess.Popen(
                order,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert (process.communicate(timeout=20)[1], process.returncode) == (b"", 0)
    finally:
        subprocess.run([*dshd, "stop"], env=env, check=True, capture_output=True)


def test_the_agent_of_the_readme_answers_and_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    env = environment(tmp_path / "h", "", PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")

    def dshd(*args: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "dsh_daemon", *args], env=env, check=True, capture_output=True, text=True
        ).stdout

    made = json.loads(dshd("create", "--json"))
    try:
        for turn, said in ((1, "1 messages"), (2, "3 messages")):
            order = [sys.executable, "-c", block("python", "session/resume"), made["sessionId"]]
            with subprocess.Popen(order, env=env, stdout=subprocess.PIPE, text=True) as agent:
                assert agent.stdout is not None
                assert agent.stdout.readline() == f"repaired 0 next turn {turn}\n"
                dshd("agent", made["sessionId"], "--send", "Hello")
                until = time.monotonic() + 20
                while said not in Path(made["path"]).read_text():
                    assert time.monotonic() < until
                    time.sleep(0.02)
                while json.loads(dshd("agent", made["sessionId"], "--json"))["openTurn"]:
                    assert time.monotonic() < until
                agent.kill()
            while json.loads(dshd("agent", made["sessionId"], "--json"))["live"]:
                assert time.monotonic() < until
    finally:
        dshd("stop")


def test_the_settings_of_the_readme_are_the_defaults_of_all_settings() -> None:
    written = block("toml")
    told = tomllib.loads(re.sub(r"^#(?=\w)", "", written, flags=re.MULTILINE))
    assert told.pop("tcp").startswith("127.0.0.1:")
    expected = Settings.model_construct().model_dump(by_alias=False)
    assert expected.pop("tcp") is None
    model = told["summarizer"]
    for name in ("base_url", "model", "api_key", "api_key_env"):  # given as examples
        assert model.pop(name)
        assert expected["summarizer"].pop(name) is None
    assert told == expected
    names = {re.sub("[^A-Z_].*", "", name) for name in re.findall(rf"{PREFIX}[A-Z_]+", written)}
    assert {name.removeprefix(PREFIX).rstrip("_").lower() for name in names} == Settings.model_fields.keys()


def test_what_the_readme_names_is_in_the_repository() -> None:
    for name in re.findall(r"`((?:protocol-spec|dsh_daemon|tests)/[\w./-]*)`", README):
        assert (ROOT / name).exists(), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert os.path.getsize(ROOT / "dsh_daemon/py.typed") == 0, "what the classifier `Typing :: Typed` promises"
