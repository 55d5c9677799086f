"""What an operator may set of the hooks around evictions: section `evictionHooks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from koordebpf.errors import NOT_GIVEN, ConfigError

SECTION = "evictionHooks"
MOST = 8  # Why: each has a thread of its own
_MOST_ARGUMENT_BYTES = 8 << 10  # they are sent in one message

When = Literal["before", "after"]
_Name = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        description="a name of small letters, digits and dashes, of at most 32",
    ),
]
_Moments = Annotated[tuple[When, ...], Meta(min_length=1, max_length=2)]
_Seconds = Annotated[int, Meta(ge=1, le=30)]
_Path = Annotated[str, Meta(min_length=1, pattern="^/")]


class CommandHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A program that is started without a shell, with the call as JSON on its standard input."""

    name: _Name
    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
    when: _Moments = ("before", "after")
    timeout_seconds: _Seconds = 5
    dry_run: bool = False


class WebhookHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A URL that the call is posted to, as JSON.

    `url_file`: has the URL in place of `url`, where it is a secret. `headers_file`: has lines `Name: value`. Both are
    read for each call. `ca_file`: in place of the system's certificates.
    """

    name: _Name
    url: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None
    when: _Moments = ("before", "after")
    timeout_seconds: _Seconds = 5
    dry_run: bool = False
    url_file: _Path | None = None
    ca_file: _Path | None = None
    headers_file: _Path | None = None


class EvictionHookSettings(msgspec.Struct, frozen=True):
    """What is called before and after an eviction. Not the runtime hooks of section `hooks`.

    `commands`  each a name and a command, whose first word is an absolute path; `when` (before, after; both where it is
                left out), `timeoutSeconds` (1 to 30, 5) and `dryRun` (false: not called in a dry run). Why none: what
                is called runs with the agent's rights.
    `webhooks`  each a name and a url or, where that is a secret, a `urlFile`; also `caFile` and `headersFile`. At most
                8 hooks in all. Why none: an audit record names pods, and where it is sent is the operator's decision.
    """

    commands: Annotated[tuple[CommandHook, ...], Meta(max_length=MOST)] = ()
    webhooks: Annotated[tuple[WebhookHook, ...], Meta(max_length=MOST)] = ()

    @property
    def hooks(self) -> tuple[CommandHook | WebhookHook, ...]:
        """All of them."""
        return (*self.commands, *self.webhooks)


NO_HOOKS = EvictionHookSettings()


def check_eviction_hooks(settings: EvictionHookSettings) -> None:
    """Return where the hooks can be called as they are set; whether their files are there shows later.

    Raises:  ConfigError: a command has no absolute path or its words are too long, a webhook has no URL or two, a URL
             is none of http or https, names a user or is not encrypted although headers are sent, or two hooks have
             one name.
    """
    names = [each.name for each in settings.hooks]
    if len(names) > MOST:
        raise ConfigError(SECTION, f"{len(names)} hooks", f"must be {MOST} or less in all")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(SECTION, name, "must be the name of one hook")
    for index, command in enumerate(settings.commands):
        _check_command(f"{SECTION}.commands[{index}].command", command.command)
        _check_moments(f"{SECTION}.commands[{index}].when", command.when)
    for index, webhook in enumerate(settings.webhooks):
        _check_webhook(f"{SECTION}.webhooks[{index}]", webhook)
        _check_moments(f"{SECTION}.webhooks[{index}].when", webhook.when)


def _check_command(place: str, command: Sequence[str]) -> None:
    if not command[0].startswith("/"):
        raise ConfigError(f"{place}[0]", command[0], "must be an absolute path; no shell is run")
    for index, word in enumerate(command):
        if "\0" in word:
            raise ConfigError(f"{place}[{index}]", word, "must have no NUL")
    if sum(len(word.encode()) + 1 for word in command) > _MOST_ARGUMENT_BYTES:
        raise ConfigError(place, f"{command[0]} …", f"must be {_MOST_ARGUMENT_BYTES} bytes or less in all")


def _check_moments(place: str, when: Sequence[When]) -> None:
    if len(set(when)) != len(when):
        raise ConfigError(place, list(when), "must name each of before and after at most once")


def _check_webhook(place: str, webhook: WebhookHook) -> None:
    if (webhook.url is None) == (webhook.url_file is None):
        raise ConfigError(place, webhook.name, "must have one of url and urlFile")
    if webhook.url is None:
        return
    if problem := url_problem(webhook.url):
        raise ConfigError(f"{place}.url", NOT_GIVEN, problem)  # it may hold a secret
    if webhook.url.startswith("http:"):
        for name, given in (("headersFile", webhook.headers_file), ("caFile", webhook.ca_file)):
            if given is not None:
                raise ConfigError(f"{place}.{name}", given, "needs an https:// url: http is not encrypted")


def url_problem(url: str) -> str | None:
    """Return the rule that a URL breaks; None: it can be called."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or not url.isascii() or any(each <= " " for each in url):
        return "must be a URL with http:// or https:// and a host"
    if "@" in parts.netloc:
        return "must name no user: a header of headersFile does"
    return None
