"""What a tool call does to a file, by its name and arguments: pure, and one for all agents.

pi, omp, dsh and those who build on them name their tools and arguments in many ways; what a call does shows in the
shape of its arguments (texts to replace, a patch, a content, a command), and in its name where these say nothing.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast

from . import patches, shellwords
from .cwd import is_windows, normal
from .text import as_dict, as_str

Action = Literal["read", "write", "edit", "shell"]

_PATH = ("path", "file_path", "filePath", "file", "filename", "notebook_path", "target_file", "uri")
_PATHS = ("paths", "files", "file_paths")
_OLD_PATH, _NEW_PATH = ("source", "old_path", "from"), ("destination", "new_path", "to", "rename")
_FOLDER = ("cwd", "workdir", "working_directory")
_OLD_TEXT = ("oldText", "old_string", "old_str", "old_text")
_NEW_TEXT = ("newText", "new_string", "new_str", "new_text", "insert_text")
_CONTENT = ("content", "contents", "file_text")
_COMMAND = ("command", "cmd", "script", "code")
_PATCH = ("input", "patch", "patchText", "diff")
_CHANGING = ("edits", "ops", "insert_line", "new_source", *_OLD_TEXT, *_NEW_TEXT, *_PATCH)
_EDITOR: dict[str, Action] = {"view": "read", "create": "write", "str_replace": "edit", "insert": "edit"}
_EDITS = re.compile("edit|patch|replace|insert|update|rename|move|delete|remove", re.IGNORECASE)
_WRITES = re.compile("write|create|save|append", re.IGNORECASE)
_READS = re.compile("read|view|open|cat", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_BRACES = re.compile(rb'\{(?!")[^{}\s,]*+,[^{}\s]*+\}')  # in a log a quote that stands alone is none of the shell
_LOWER = bytes(range(256)).lower()
_QUOTING = b"\\\"'"
_BESIDE, _BEHIND = 512, 4_096  # bytes around a brace list in which the rest of its word is


class Edit(NamedTuple):
    """A text in place of another; `old` is None where the new one is all of the file."""

    old: str | None
    new: str


class Touch(NamedTuple):
    """What a call does to one file."""

    action: Action
    path: str  # as the call spells it
    renamed_from: str = ""
    renamed_to: str = ""
    edits: tuple[Edit, ...] = ()
    hunks: str = ""  # of a patch

    @property
    def rewrites(self) -> bool:
        """Whether the call holds the whole new text of the file."""
        return bool(self.edits) and self.edits[0].old is None


class Wanted:
    """The file that is asked for, and whether a path that a call spells means it.

    An absolute path means one file. A relative one means each file whose path ends in it, from the beginning of a
    folder's name on, and the one that it leads to from a session's own folder.
    """

    def __init__(self, path: str, home: str, spelled: Callable[[str], str] = lambda path: path) -> None:
        """`spelled` says how a path is spelled here that may come from elsewhere (aliases of folders)."""
        self._home = home
        self._spelled = spelled
        given = self._clean(path)
        self.absolute = _is_absolute(given)
        self._given = given
        self._path = self._place(given, None)
        self.name = posixpath.basename(self._path.rstrip("/"))
        # What of the name stands in every log as it is, however that writes its strings.
        self._needle = max(_PLAIN.findall(self.name), key=len, default="").lower()

    def may_be_in(self, log: bytes) -> bool:
        """Whether a call in these bytes of a log may touch the file. False is sure, but for a call that is cut off.

        A shell may be given a name in any case, with quotes in its middle and spread over brace lists.
        """
        if self._needle.encode() in log.translate(_LOWER, _QUOTING):
            return True
        looked = 0  # up to where every brace list has been looked at with all of its word
        for found in _BRACES.finditer(log):
            if found.end() <= looked:
                continue
            begin = max(0, found.start() - _BESIDE)
            begin = max(begin, log.rfind(b" ", begin, found.start()) + 1)
            blank = log.find(b" ", found.end(), found.end() + _BEHIND)
            end = found.end() + _BEHIND if blank < 0 else blank
            looked = end - _BESIDE if blank < 0 else blank
            word = log[begin:end].translate(_LOWER, _QUOTING).decode("latin-1")
            if shellwords.may_spell(word, self._needle):
                return True
        return False

    def fits(self, path: str, cwd: str | None) -> bool:
        """Whether `path`, spelled in a session of the folder `cwd` (None: unknown), is the wanted file."""
        path = self._clean(path)
        if not path or "\n" in path:
            return False
        found = self._place(path, cwd)
        if found == self._path:
            return True
        if self.absolute:
            return not _is_absolute(found) and not found.startswith(".") and self._path.endswith(f"/{found}")
        return found.endswith(f"/{self._path}") or (cwd is not None and found == self._place(self._given, cwd))

    def place(self, path: str, cwd: str | None) -> str:
        """The one spelling of a file that a session of the folder `cwd` calls `path`."""
        return self._place(self._clean(path), cwd)

    def _clean(self, path: str) -> str:
        path = unicodedata.normalize("NFC", path.strip())
        return self._expanded(path.removeprefix("file://").removeprefix("@"))

    def _expanded(self, path: str) -> str:
        return self._home + path[1:] if path == "~" or path.startswith("~/") else path

    def _place(self, path: str, cwd: str | None) -> str:
        if cwd is not None and not _is_absolute(path):
            path = self._expanded(f"{cwd.rstrip('/')}/{path}")
        if is_windows(path) or "/" not in path:
            path = path.replace("\\", "/")
        if not _is_absolute(path):
            return posixpath.normpath(path)
        return self._spelled(normal(posixpath.normpath(path)))


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or is_windows(path)


def touches(name: str, arguments: object, wanted: Wanted, cwd: str | None) -> list[Touch]:
    """What a call of the tool `name` does to the wanted file, in a session of the folder `cwd`: mostly nothing."""
    fields = _fields(arguments)
    base = _text(fields, _FOLDER)
    folder = _below(cwd, base) if base else cwd
    found = list(_of_files(name, fields, wanted, folder))
    if not found and not _paths(fields) and (command := _command(fields)):
        named = shellwords.named(command, wanted.name, lambda path, below: wanted.fits(path, _below(folder, below)))
        if named is not None:
            found.append(Touch("shell", named.word, named.moved_from, named.moved_to))
    return found


def asked(arguments: object) -> str:
    """The change that a call asks for, as hunks, whichever file it means; "" where it asks for none."""
    fields = _fields(arguments)
    for key in _PATCH:
        if found := patches.sections(as_str(fields.get(key))):
            return "\n".join(patches.headed(one.path, one.moved_to or one.path, one.hunks) for one in found)
    edits = _changes(fields) if _paths(fields) else ()
    if edits and edits[0].old is None:
        return patches.made("", edits[0].new).partition("\n")[2].partition("\n")[2]
    return "\n".join([patches.replaced(edit.old or "", edit.new) for edit in edits]) or _hunks(fields)


def files(name: str, arguments: object) -> list[tuple[Action, str]]:
    """The files that a call reads or changes, as it spells them; commands and searches are not looked into."""
    fields = _fields(arguments)
    sections = [section for key in _PATCH for section in patches.sections(as_str(fields.get(key)))]
    if sections:
        return [("write" if section.operation == "add" else "edit", section.path) for section in sections]
    action = _action(name, fields)
    if action == "read" and not _READS.search(name):
        return []
    return [(action, path) for path in _paths(fields)]


def _fields(arguments: object) -> dict[str, Any]:
    """The arguments of a call; a text that is no object is what some patch tools are given."""
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return {"input": arguments} if isinstance(arguments, str) else as_dict(arguments)


def _below(cwd: str | None, folder: str) -> str | None:
    if not folder:
        return cwd
    return shellwords.below(cwd or "", folder) or None


def _parsed(arguments: str) -> object:
    """What a model wrote as JSON text; the text where it is none."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _text(fields: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str) and value), "")


def _command(fields: dict[str, Any]) -> str:
    """The command of a shell tool; some give it word by word."""
    for name in _COMMAND:
        value = fields.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            words = [as_str(word) for word in cast("list[Any]", value)]
            return shlex.join(words) if len(words) > 1 else "".join(words)
    return ""


def _paths(fields: dict[str, Any]) -> list[str]:
    """The paths that a call names, with all that a list of them holds."""
    found = [path] if (path := _text(fields, _PATH)) else []
    for name in _PATHS:
        value = fields.get(name)
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            path = item if isinstance(item, str) else _text(as_dict(item), _PATH)
            found += [path] if path else []
    return found


def _spellings(path: str) -> Iterator[str]:
    """The paths that one argument can mean: several between semicolons, one with a selector of lines."""
    yield path
    if ";" in path:
        yield from (part.strip() for part in path.split(";"))
    name = max(path.rfind("/"), path.rfind("\\")) + 1
    if (colon := path.find(":", name)) > 0:  # omp: which lines of a file, `src/a.ts:50-200:raw`
        yield path[:colon]


def _of_files(name: str, fields: dict[str, Any], wanted: Wanted, cwd: str | None) -> Iterator[Touch]:
    """What a call of a tool for files does."""
    for key in _PATCH:
        for section in patches.sections(as_str(fields.get(key))):
            touch = Touch(
                "write" if section.operation == "add" else "edit",
                section.path,
                renamed_to=section.moved_to,
                hunks=section.hunks,
            )
            if (fitting := _fitting(touch, wanted, cwd)) is not None:
                yield fitting
                return
    action = _action(name, fields)
    target = next((new for edit in [fields, *_edits(fields)] if (new := _text(edit, _NEW_PATH))), "")
    for path in _paths(fields) or ([source] if target and (source := _text(fields, _OLD_PATH)) else []):
        for spelling in _spellings(path):
            touch = Touch(action, spelling, renamed_to=target if action == "edit" else "")
            if (fitting := _fitting(touch, wanted, cwd)) is not None:
                yield fitting._replace(edits=_changes(fields), hunks=_hunks(fields))
                return


def _fitting(touch: Touch, wanted: Wanted, cwd: str | None) -> Touch | None:
    """The same from the side of the wanted file, which may be what a file is called after its move."""
    if wanted.fits(touch.path, cwd):
        return touch
    if touch.renamed_to and wanted.fits(touch.renamed_to, cwd):
        return touch._replace(path=touch.renamed_to, renamed_from=touch.path, renamed_to="")
    return None


def _action(name: str, fields: dict[str, Any]) -> Action:
    if (action := _EDITOR.get(as_str(fields.get("command")))) is not None:
        return action
    if any(key in fields for key in _CHANGING):
        return "edit"
    if any(key in fields for key in _CONTENT):
        return "write"
    return "edit" if _EDITS.search(name) else "write" if _WRITES.search(name) else "read"


def _edits(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of `edits`; models also write them as JSON text, or a single one without the list."""
    value = fields.get("edits")
    if isinstance(value, str):
        value = _parsed(value)
    return [as_dict(item) for item in (cast("list[Any]", value) if isinstance(value, list) else [value])]


def _changes(fields: dict[str, Any]) -> tuple[Edit, ...]:
    found: list[Edit] = []
    for edit in [*_edits(fields), fields]:
        if edit.get("op") == "create":
            found.append(Edit(None, as_str(edit.get("diff"))))
        elif any(key in edit for key in (*_OLD_TEXT, *_NEW_TEXT)):
            found.append(Edit(_text(edit, _OLD_TEXT), _text(edit, _NEW_TEXT)))
    if not found and any(isinstance(fields.get(key), str) for key in _CONTENT):
        found.append(Edit(None, _text(fields, _CONTENT)))
    return tuple(found)


def _hunks(fields: dict[str, Any]) -> str:
    """The hunks that stand beside the path of the file: omp has them in its edits."""
    shown = [as_str(edit.get("diff")) for edit in [*_edits(fields), fields] if edit.get("op") != "create"]
    return "\n".join(
        text if text.startswith("@@ ") else f"{patches.SOMEWHERE}\n{text.removeprefix('@@').lstrip(chr(10))}"
        for text in shown
        if text
    )


# What it changed


class Known(NamedTuple):
    """The whole text of a file as the log tells it last; not `sure` where a command may have changed it since."""

    text: str
    sure: bool = True


def change(touch: Touch, details: dict[str, Any], before: Known | None) -> str:
    """The change as a unified diff, as exactly as the log tells it; "" where it does not.

    `details`: what the result holds beside its text: pi and omp write there what they did. `before`: the file before
    the call; a text that was written whole is compared with it, be it sure or not.
    """
    if touch.action not in {"write", "edit"}:
        return ""
    return patches.bounded(_recorded(touch, details) or _held(touch, before))


def _recorded(touch: Touch, details: dict[str, Any]) -> str:
    """The change by what the tool said that it did."""
    several = details.get("perFileResults")
    if isinstance(several, list):
        members = [as_dict(item) for item in cast("list[Any]", several)]
        tail = posixpath.basename(touch.renamed_to or touch.path)
        details = next((item for item in members if as_str(item.get("path")).endswith(tail)), as_dict(None))
    if (patch := as_str(details.get("patch"))).startswith("--- "):
        return patch
    old, new = details.get("oldText"), details.get("newText")
    if isinstance(old, str) and isinstance(new, str):
        return patches.whole(touch.path, old, new)
    hunks = patches.numbered(as_str(details.get("diff")))
    return patches.headed(*_names(touch), hunks) if hunks else ""


def _held(touch: Touch, before: Known | None) -> str:
    """The change by what the call asked for."""
    if touch.hunks:
        return patches.headed(*_names(touch), touch.hunks)
    after = applied(touch, before)
    if before is not None and after is not None and (before.sure or touch.rewrites):
        return patches.whole(touch.path, before.text, after.text)
    if touch.rewrites:
        return patches.made(touch.path, touch.edits[0].new)
    hunks = [patches.replaced(edit.old or "", edit.new) for edit in touch.edits]
    return patches.headed(*_names(touch), "\n".join(hunks)) if hunks else ""


def _names(touch: Touch) -> tuple[str, str]:
    return touch.renamed_from or touch.path, touch.renamed_to or touch.path


def applied(touch: Touch, before: Known | None) -> Known | None:
    """The file after a call that succeeded; None where `before` does not tell."""
    if touch.rewrites:
        return Known(touch.edits[0].new)
    if before is None or touch.action == "read":
        return before
    if touch.action == "shell":
        return before._replace(sure=False)
    text = before.text
    for old, new in touch.edits:
        if not old or text.count(old) != 1:
            return None
        text = text.replace(old, new)
    return None if touch.hunks or not touch.edits else before._replace(text=text)
