"""Who may register as an eviction plugin: what Katalyst's own code decides, and what it only means to decide."""

from __future__ import annotations

import base64

import pytest

from koordebpf.errors import ConfigError
from koordebpf.slo.katalyst_access import AccessSettings, Rules, judge, parse_rules

FILE = b"""
basicAuthConfig:
  userPasswordPairs:
  - {username: ops, password: czNjcjp0}
  - {username: guest, password: Z3Vlc3Q=}
accessControlConfig:
  accessControlPolicies:
  - {username: ops, policyRule: {resources: [eviction_plugin]}}
  - {username: root, policyRule: {resources: ["*"]}}
  - {username: guest, policyRule: {resources: [http_endpoint]}}
"""
BASIC = AccessSettings(auth_type="Basic")
BOTH = AccessSettings(auth_type="Basic", access_control_type="dynamic_conf")
ALONE = AccessSettings(access_control_type="dynamic_conf")


def token(user: str, password: str, prefix: str = "Basic ") -> str:
    return prefix + base64.b64encode(f"{user}:{password}".encode()).decode()


OPS = token("ops", "s3cr:t")


@pytest.mark.parametrize(
    ("settings", "given", "reason", "user"),
    [
        (AccessSettings(), "", "", "anonymous"),
        (AccessSettings(), "whatever", "", "anonymous"),
        (AccessSettings(), None, "get_token_failed", "unknown"),
        (BASIC, OPS, "", "ops"),
        (BASIC, token("ops", "s3cr:t", "bAsIc "), "", "ops"),
        (BASIC, token("guest", "guest"), "", "guest"),
        (BASIC, token("ops", "s3cr"), "authenticate_failed", "unknown"),
        (BASIC, token("ops", ""), "authenticate_failed", "unknown"),
        (BASIC, token("other", ""), "authenticate_failed", "unknown"),
        (BASIC, "", "authenticate_failed", "unknown"),
        (BASIC, OPS[6:], "authenticate_failed", "unknown"),
        (BASIC, f"{OPS}!", "authenticate_failed", "unknown"),
        (BASIC, "Basic " + base64.b64encode(b"ops").decode(), "authenticate_failed", "unknown"),
        (BASIC, "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(), "authenticate_failed", "unknown"),
        (BOTH, OPS, "", "ops"),
        (BOTH, token("guest", "guest"), "no_permission", "guest"),
        (ALONE, "", "no_permission", "anonymous"),
    ],
)
def test_a_plugin_is_judged_by_token_and_permission(
    settings: AccessSettings, given: str | None, reason: str, user: str
) -> None:
    found, why = judge("one", given, settings, parse_rules("f", FILE))
    assert (found.name, found.reason, found.user, found.is_valid) == ("one", reason, user, not reason)
    assert bool(why) == bool(reason)
    assert not found.is_refused


@pytest.mark.parametrize("given", [None, "", token("guest", "guest"), token("ops", "wrong")])
def test_strict_mode_refuses_all_that_fails_a_missing_permission_too(given: str | None) -> None:
    strict = AccessSettings(auth_type="Basic", access_control_type="dynamic_conf", is_strict=True)
    assert judge("one", given, strict, parse_rules("f", FILE))[0].is_refused
    assert not judge("one", OPS, strict, parse_rules("f", FILE))[0].is_refused


def test_every_permission_is_one_too() -> None:
    rules = Rules({"root": b"x"}, {"root": ("*",)})
    assert judge("one", token("root", "x"), BOTH, rules)[0].is_valid


def test_no_password_lets_no_user_in_that_the_file_does_not_have() -> None:
    assert judge("one", token("", ""), BASIC, Rules())[0].reason == "authenticate_failed"


def test_a_name_of_a_user_is_one_printable_line() -> None:
    user = "\x1b[2J\n" + "x" * 500
    found, why = judge("one", token(user, "p"), BOTH, Rules({user: b"p"}))
    assert found.user.isprintable() and why.isprintable()
    assert len(found.user) < 150


@pytest.mark.parametrize(
    "raw",
    [
        b"basicAuthConfig: {userPasswordPairs: [{username: a, password: 'hunter2!'}]}",
        b"basicAuthConfig: {userPasswordPairs: [{username: a, password: [hunter2!]}]}",
        b"basicAuthConfig: {userPasswordPairs: hunter2!}",
        b"basicAuthConfig: {userPasswordPairs: [{password: hunter2!",
        b"- hunter2!",
        b"\xff\xfehunter2!",
        b"hunter2!: *none",
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_a_word_of_it(raw: bytes) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_rules("/etc/auth.yaml", raw)
    assert "/etc/auth.yaml" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_an_empty_file_has_no_user() -> None:
    assert parse_rules("f", b"{}") == Rules()
