"""Settings: config.toml and DSHD_* variables, one clear error for a bad one."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from .paths import Folders, folders

MiB = 1 << 20
PREFIX = "DSHD_"
UNKNOWN = "unknown key"


class ConfigError(Exception):
    """A setting that cannot be used: where it stands, which one, why."""

    def __init__(self, where: str, key: str, reason: str) -> None:
        super().__init__(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")
        self.where, self.key, self.reason = where, key, reason


class Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid")


class Limits(Section):
    """What one client may cost."""

    max_message_bytes: int = Field(default=64 * MiB, ge=1024)
    max_backlog_bytes: int = Field(default=8 * MiB, ge=4096)
    max_requests_in_flight: int = Field(default=4096, ge=1)
    max_connections: int = Field(default=512, ge=1)
    stall_seconds: float = Field(
        default=60, gt=0
    )  # a client that reads nothing for so long while data waits is disconnected
    hook_seconds: float = Field(default=30, gt=0)  # what one owner of a hook may take to answer


class Summarizer(Section):
    """The model that writes summaries: any endpoint that speaks OpenAI's `/chat/completions`."""

    base_url: str | None = None
    model: str | None = None
    api_key: SecretStr | None = None
    api_key_env: str | None = None  # the variable that holds the key
    max_tokens: int = Field(default=4096, ge=16)  # of a summary
    context_window: int = Field(default=128_000, ge=2048)  # tokens that the model takes in all
    keep_tokens: int = Field(default=20_000, ge=0)  # of the newest entries, which a compaction leaves as they are
    timeout: float = Field(default=120, gt=0)  # seconds for one summary

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parts = urlsplit(value)
                whole = bool(parts.hostname) and parts.port != 0 and not re.search(r"[\s\x00-\x1f]", value)
            except ValueError as exc:
                raise ValueError(f"not an address ({exc})") from None
            if parts.scheme not in {"http", "https"} or not whole:
                raise ValueError("not an address like http://localhost:8000/v1 or https://…")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.base_url is None) != (self.model is None):
            missing = "base_url" if self.base_url is None else "model"
            raise ValueError(f"base_url and model belong together, and there is no {missing}")
        return self

    @property
    def address(self) -> str:
        """`base_url` as it may be shown: without a name and password in it."""
        return re.sub(r"//[^/]*@", "//", self.base_url or "")


class Search(Section):
    exclude: list[str] = []  # globs over paths and cwds of sessions whose text is kept out of the index


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", env_ignore_empty=False
    )

    roots: Annotated[list[str], NoDecode] = []  # `path` or `format=path`, beside those found by themselves
    cwd_aliases: dict[
        str, str
    ] = {}  # spelling of a directory -> the spelling that counts, for drives and moved folders
    durability: Literal["fsync", "flush"] = "fsync"
    idle_timeout: float = Field(default=900, ge=0)  # seconds without clients after which the daemon leaves; 0 = never
    tcp: str | None = None  # HOST:PORT on loopback; a token is asked for
    watch: Literal["auto", "native", "polling"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    limits: Limits = Limits()
    search: Search = Search()
    summarizer: Summarizer = Summarizer()

    @field_validator("roots", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value

    @property
    def only_these_roots(self) -> bool:
        """DSHD_ROOTS is set (also to nothing): no root is found by itself."""
        return PREFIX + "ROOTS" in os.environ

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, folders().config_file)


def load(where: Folders | None = None) -> Settings:
    """Give the settings in force. Raises ConfigError naming the file or variable, the key and the reason."""
    file = (where or folders()).config_file
    try:
        return Settings()
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(str(file), "", f"not TOML: {exc}") from None
    except OSError as exc:
        raise ConfigError(str(file), "", exc.strerror or str(exc)) from None
    except SettingsError as exc:
        text = getattr(exc.__cause__, "doc", None)  # what was read as JSON
        names = [name for name in os.environ if name.upper().startswith(PREFIX) and os.environ[name] == text]
        raise ConfigError("environment", " or ".join(names), "not JSON" if names else str(exc)) from None
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        path = [str(part) for part in first["loc"]]
        reason = UNKNOWN if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        in_env = _variables(path, reason)
        raise ConfigError(
            "environment" if in_env else str(file), " and ".join(in_env) if in_env else ".".join(path), reason
        ) from None


def _variables(path: list[str], reason: str) -> list[str]:
    """The variables of the environment that a complaint about the setting at `path` is about.

    That is the setting's own, or the nearest one around it (JSON); of a section as a whole, those of its settings
    that the complaint names, and of an unknown one whatever it was given.
    """
    parts = [_snake(part).upper() for part in path]
    for length in range(len(parts), 0, -1):
        variable = PREFIX + "__".join(parts[:length])
        if found := [name for name in os.environ if name.upper() == variable]:
            return found
    below = PREFIX + "__".join(parts) + "__"
    words = {word.upper() for word in re.findall(r"\w+", reason)}
    inside = sorted(name for name in os.environ if name.upper().startswith(below))
    return [name for name in inside if reason == UNKNOWN or name.upper().removeprefix(below) in words]


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
