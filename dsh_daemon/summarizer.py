"""A model behind an OpenAI-compatible endpoint that writes summaries. Needs the extra `agent`."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .errors import SummaryFailed

if TYPE_CHECKING:
    from .config import Summarizer as Settings
    from .summaries import Request

RETRIES = 3  # of a request that was refused for a passing reason, and of an answer that broke off
PAUSE = 0.5  # seconds before the first repetition of an answer that broke off; doubled each time
LONGEST = 32  # characters of a token; an answer that is longer comes from what does not mind `max_tokens`
SECRET = 8  # characters from which on a key is one
LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"  # how OpenAI's newer models and older endpoints name it
PLACEHOLDER = "none"  # endpoints on the own machine want no key, the library wants one

log = logging.getLogger(__name__)


def problem(settings: Settings) -> str | None:
    """Why a configured summarizer cannot be used; None where it can."""
    if importlib.util.find_spec("openai") is None:
        return "a summarizer is configured, but its library is missing: pip install 'dsh-daemon[agent]'"
    if settings.api_key_env and not os.environ.get(settings.api_key_env, "").strip():
        return f"the variable {settings.api_key_env} (summarizer.api_key_env) is not set"
    if not all("!" <= char <= "~" for char in key_of(settings)):
        return "the key of the summarizer has characters that no key has (summarizer.api_key)"
    return None


def key_of(settings: Settings) -> str:
    """The key in force, "" for none."""
    if settings.api_key_env:
        return os.environ.get(settings.api_key_env, "").strip()
    return "" if settings.api_key is None else settings.api_key.get_secret_value().strip()


class Summarizer:
    """The configured model."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self._client: Any = None
        self._limit = LIMIT  # the name under which the endpoint takes `max_tokens`

    @property
    def room(self) -> int:
        """Tokens of a request."""
        return max(self.settings.context_window - self.settings.max_tokens, 1_000)

    async def summarize(self, request: Request, heard: Callable[[int], None]) -> str:
        """Ask for a summary; `heard` is told how many characters there are so far. Raises SummaryFailed."""
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        # Its versions differ in the HTTP library that they bring, whose errors come through while an answer is read.
        http = importlib.import_module(openai.DefaultAsyncHttpxClient.__base__.__module__.partition(".")[0])
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await self._patiently(openai, http, request, heard)
        except TimeoutError:
            text = f"{self.name} did not finish within {self.settings.timeout:g} s"
            raise SummaryFailed(text, reason="timeout") from None

    async def _patiently(self, openai: Any, http: Any, request: Request, heard: Callable[[int], None]) -> str:
        pause = PAUSE
        for last in [*[False] * RETRIES, True]:
            try:
                return await self._stream(openai, request, heard)
            except openai.APIStatusError as exc:  # passing ones were repeated already
                raise SummaryFailed(
                    f"{self.name} answered {exc.status_code}: {self._line(exc.message)}", reason="refused"
                ) from None
            except openai.APIConnectionError as exc:
                text = f"{self.name} cannot be reached at {self.settings.address}: {self._line(_cause(exc))}"
                raise SummaryFailed(text, reason="unreachable") from None
            except http.InvalidURL as exc:
                text = f"summarizer.base_url {self.settings.address} is no address: {self._line(str(exc))}"
                raise SummaryFailed(text, reason="unreachable") from None
            except (_BrokenOff, http.HTTPError, openai.APIError, ValueError) as exc:
                if last:
                    why = getattr(exc, "message", "")
                    text = f"the answer of {self.name} breaks off" + (f": {self._line(str(why))}" if why else "")
                    raise SummaryFailed(text, reason="brokenOff") from None
                log.info("the answer of %s broke off (%s): asking again", self.name, type(exc).__name__)
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _stream(self, openai: Any, request: Request, heard: Callable[[int], None]) -> str:
        settings = self.settings
        if self._client is None:
            self._client = openai.AsyncOpenAI(
                base_url=settings.base_url,
                api_key=key_of(settings) or PLACEHOLDER,
                max_retries=RETRIES,
                timeout=settings.timeout,
            )
        try:
            stream = await self._ask(request)
        except openai.BadRequestError as exc:
            if self._limit == NEWER_LIMIT or NEWER_LIMIT not in exc.message:
                raise
            self._limit = NEWER_LIMIT
            stream = await self._ask(request)
        parts: list[str] = []
        size, end = 0, None
        async with stream:
            async for chunk in stream:
                text, reason = _said(chunk)
                end = end or reason
                if text:
                    parts.append(text)
                    heard(size := size + len(text))
                if size > settings.max_tokens * LONGEST:
                    raise SummaryFailed(f"the answer of {self.name} has no end", reason="brokenOff")
                await asyncio.sleep(0)  # many may have come at once
        # A pair of surrogates may have come in two chunks.
        text = "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
        if end is None:
            kind = stream.response.headers.get("content-type", "")
            if "html" in kind or "json" in kind:
                text = f"{self.name} does not answer as /chat/completions does ({kind}): is summarizer.base_url right?"
                raise SummaryFailed(text, reason="refused")
            raise _BrokenOff
        self._check_end(end, text)
        return text

    async def _ask(self, request: Request) -> Any:
        messages = [{"role": "system", "content": request.system}, {"role": "user", "content": request.text}]
        limit = {self._limit: self.settings.max_tokens}
        return await self._client.chat.completions.create(
            model=self.settings.model, messages=messages, stream=True, **limit
        )

    def _check_end(self, reason: str, text: str) -> None:
        """Refuse an answer that is not whole, or none. Raises SummaryFailed."""
        limit = f"summarizer.max_tokens = {self.settings.max_tokens}; raise it"
        if reason == "length" and text:
            raise SummaryFailed(f"the summary of {self.name} did not fit into {limit}", reason="brokenOff")
        if reason == "length":
            raise SummaryFailed(f"{self.name} answered with nothing: its thoughts filled {limit}", reason="empty")
        if reason == "content_filter":
            text = f"a content filter of {self.name} stopped the summary; another model (summarizer.model) may write it"
            raise SummaryFailed(text, reason="refused")
        if not text:
            raise SummaryFailed(f"{self.name} answered with nothing", reason="empty")

    def _line(self, text: str) -> str:
        """What an endpoint says, in short: some repeat the key."""
        key = key_of(self.settings)
        return " ".join((text.replace(key, "…") if len(key) >= SECRET else text).split())[:300]


def _cause(exc: BaseException) -> str:
    """What lies under an error of the library, which itself says no more than that there was one."""
    while isinstance(under := exc.__cause__ or exc.__context__, Exception) and str(under):
        exc = under
    return str(exc)


def _said(chunk: Any) -> tuple[str, str | None]:
    """The text of a chunk, and of the last one why it ended; the library does not check what an endpoint sends."""
    found = getattr(chunk, "choices", None)
    choices = cast("list[Any]", found) if isinstance(found, list) else []
    choice = choices[0] if choices else None
    text = getattr(getattr(choice, "delta", None), "content", None)
    reason = getattr(choice, "finish_reason", None)
    return text if isinstance(text, str) else "", None if reason is None else str(reason)


class _BrokenOff(Exception):
    """The stream ended before the answer did."""
