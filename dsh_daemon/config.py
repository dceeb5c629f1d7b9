"""Settings: config.toml and DSHD_* variables, one clear error for a bad one."""

from __future__ import annotations

import os
import tomllib
from typing import Annotated, Any, Literal, Self

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

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.base_url is None) != (self.model is None):
            raise ValueError("base_url and model belong together")
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url begins with http:// or https://")
        return self


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
        raise ConfigError("environment", "", str(exc)) from None
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        path = [str(part) for part in first["loc"]]
        reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
        variable = PREFIX + "__".join(_snake(part).upper() for part in path)
        in_env = [name for name in os.environ if name.upper() == variable]
        raise ConfigError(
            "environment" if in_env else str(file), in_env[0] if in_env else ".".join(path), reason
        ) from None


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
