"""Which eviction plugins may register: who they say they are, and what that user may do.

The rules are those of Katalyst's AuthConfiguration, read from a file. Nothing here repeats a token or a password.

Source: katalyst-core pkg/util/credential/{basic,insecure}.go, credential/authorization/authorizations.go,
pkg/agent/evictionmanager/manager.go ValidatePlugin; katalyst-api pkg/apis/config/v1alpha1/auth.go AuthConfig.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.printable import printable

PERMISSION, EVERY_PERMISSION = "eviction_plugin", "*"
ANONYMOUS, UNKNOWN = "anonymous", "unknown"
_PREFIX = "basic "
_SHOWN = 100  # characters of a user's name
AuthType = Literal["Insecure", "Basic"]
AccessControlType = Literal["insecure", "dynamic_conf"]
Reason = Literal["", "get_token_failed", "authenticate_failed", "no_permission"]


class AccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which plugins outside the process may register.

    `auth_type`           Insecure: every plugin is `anonymous`. Basic: its token is that of a user in the file. Why
                          Insecure: Katalyst's.
    `access_control_type` insecure: every user may. dynamic_conf: those to whom the file grants eviction_plugin. Why
                          insecure: Katalyst's.
    `is_strict`           a plugin that fails is refused; else that is logged and counted. Why off: Katalyst's
                          strict-authentication.
    `file`                the config of Katalyst's AuthConfiguration as YAML or JSON, read for each registration. Its
                          passwords belong into a Secret. Why none: it cannot be guessed.
    """

    auth_type: AuthType = "Insecure"
    access_control_type: AccessControlType = "insecure"
    is_strict: bool = False
    file: str = ""


class Rules(msgspec.Struct, frozen=True):
    """What an AuthConfiguration says: passwords by user, and what each user may do."""

    passwords: Mapping[str, bytes] = {}
    permissions: Mapping[str, tuple[str, ...]] = {}


class Validation(msgspec.Struct, frozen=True):
    """The outcome for one plugin. `reason` "": it is valid. `user` unknown: before it is authenticated."""

    name: str
    is_strict: bool
    reason: Reason
    user: str

    @property
    def is_valid(self) -> bool:
        """Whether nothing failed."""
        return not self.reason

    @property
    def is_refused(self) -> bool:
        """Whether the plugin is not registered."""
        return self.is_strict and not self.is_valid


class _Pair(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""


class _Basic(msgspec.Struct, frozen=True):
    userPasswordPairs: tuple[_Pair, ...] = ()


class _PolicyRule(msgspec.Struct, frozen=True):
    resources: tuple[str, ...] = ()


class _Policy(msgspec.Struct, frozen=True):
    username: str = ""
    policyRule: _PolicyRule = _PolicyRule()


class _AccessControl(msgspec.Struct, frozen=True):
    accessControlPolicies: tuple[_Policy, ...] = ()


class _AuthConfig(msgspec.Struct, frozen=True):
    basicAuthConfig: _Basic = _Basic()
    accessControlConfig: _AccessControl = _AccessControl()


def parse_rules(path: str, raw: bytes) -> Rules:
    """Return what a file says: the config of an AuthConfiguration.

    Raises:  ConfigError: it has another form, or a password is no base64; neither names a password.
    """
    try:
        found = msgspec.yaml.decode(raw, type=_AuthConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # What a parser says may quote the line, with the password in it.
        why = str(error) if isinstance(error, msgspec.ValidationError) else "it is no YAML"
        raise ConfigError(path, "…", f"must be the config of an AuthConfiguration: {why}") from None
    passwords = {}
    for at, pair in enumerate(found.basicAuthConfig.userPasswordPairs):
        try:
            passwords[pair.username] = base64.b64decode(pair.password, validate=True)
        except (binascii.Error, ValueError):
            where = f"{path}: basicAuthConfig.userPasswordPairs[{at}].password"
            raise ConfigError(where, "…", "must be base64") from None
    policies = found.accessControlConfig.accessControlPolicies
    return Rules(passwords, {each.username: each.policyRule.resources for each in policies})


def judge(name: str, token: str | None, settings: AccessSettings, rules: Rules) -> tuple[Validation, str]:
    """Return the outcome for a plugin, and why in a sentence where it is not valid.

    Args:
        name: of the plugin.
        token: as GetToken answered; None: it did not.
        settings: how plugins are judged.
        rules: of the file.
    """

    def outcome(reason: Reason, user: str, why: str = "") -> tuple[Validation, str]:
        return Validation(name, settings.is_strict, reason, printable(user[:_SHOWN])), why

    if token is None:
        return outcome("get_token_failed", UNKNOWN, "it gave no token")
    user = ANONYMOUS
    if settings.auth_type == "Basic":
        if (given := _basic(token)) is None:
            return outcome(
                "authenticate_failed", UNKNOWN, "its token is not of the form Basic and base64 of user:password"
            )
        user, password = given
        # Of a user that there is not: as long as of one that there is.
        known = rules.passwords.get(user)
        if not hmac.compare_digest(known if known is not None else b"", password) or known is None:
            return outcome("authenticate_failed", UNKNOWN, "its user and password are none of the file's")
    if settings.access_control_type == "dynamic_conf":
        permissions = rules.permissions.get(user, ())
        if PERMISSION not in permissions and EVERY_PERMISSION not in permissions:
            return outcome("no_permission", user, f"its user {printable(user[:_SHOWN])} has no permission {PERMISSION}")
    return outcome("", user)


# User and password of an Authorization header. Source: net/http parseBasicAuth.
def _basic(token: str) -> tuple[str, bytes] | None:
    if token[: len(_PREFIX)].lower() != _PREFIX:
        return None
    try:
        raw = base64.b64decode(token[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = raw.partition(b":")
    return (user.decode(errors="replace"), password) if colon else None
