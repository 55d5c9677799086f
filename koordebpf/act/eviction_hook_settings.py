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

    `webhooks`  each a name and a url or, where that is a secret, a `urlFile`; `when` (before, after; both where it is
                left out), `timeoutSeconds` (1 to 30, 5) and `dryRun` (false: not called in a dry run); also `caFile`
                and `headersFile`. At most 8. Why none: an audit record names pods, and where it is sent is the
                operator's decision.
    """

    webhooks: Annotated[tuple[WebhookHook, ...], Meta(max_length=MOST)] = ()


NO_HOOKS = EvictionHookSettings()


def check_eviction_hooks(settings: EvictionHookSettings) -> None:
    """Return where the hooks can be called as they are set; whether their files are there shows later.

    Raises:  ConfigError: a webhook has no URL or two, a URL is none of http or https, names a user or is not encrypted
             although headers are sent, or two hooks have one name.
    """
    names = [each.name for each in settings.webhooks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(SECTION, name, "must be the name of one hook")
    for index, webhook in enumerate(settings.webhooks):
        _check_webhook(f"{SECTION}.webhooks[{index}]", webhook)
        _check_moments(f"{SECTION}.webhooks[{index}].when", webhook.when)


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
