"""Which API server commands talk to: what kubectl would take."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml

from koordebpf.errors import ConfigError
from koordebpf.kube.http.transport import found_kubeconfig, open_cluster


def kubeconfig(path: Path, **servers: str) -> Path:
    """Write a kubeconfig with a context for each server; the first is the current one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clusters = [{"name": name, "cluster": {"server": server}} for name, server in servers.items()]
    contexts = [{"name": name, "context": {"cluster": name, "user": "u"}} for name in servers]
    users = [{"name": "u", "user": {"token": "t"}}]
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": clusters,
                "contexts": contexts,
                "users": users,
                "current-context": next(iter(servers)),
            }
        )
    )
    return path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def url_of(given: Path | None = None, context: str | None = None) -> str:
    with contextlib.closing(open_cluster(given, context)) as transport:
        return transport.url


def test_the_option_comes_before_the_variable_and_that_before_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="in-cluster configuration"):
        url_of()
    kubeconfig(tmp_path / "home/.kube/config", home="https://home:1")
    assert url_of() == "https://home:1"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "env", env="https://env:2")))
    assert url_of() == "https://env:2"
    assert url_of(kubeconfig(tmp_path / "option", option="https://option:3")) == "https://option:3"


def test_the_variable_names_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kubeconfig(tmp_path / "a", a="https://a:1"), kubeconfig(tmp_path / "b", b="https://b:2")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{first}:{second}")
    assert url_of() == "https://a:1"
    assert url_of(context="b") == "https://b:2"


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "a", a="https://a:1")
    with pytest.raises(ConfigError, match=f"{path}: 'c': must lead to an API server: .*name c "):
        url_of(path, "c")


def test_an_empty_variable_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    assert found_kubeconfig() is None


def test_a_pod_without_a_home_uses_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    assert found_kubeconfig() is None


def test_a_file_that_is_no_kubeconfig_is_named_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        url_of(path)
    assert str(caught.value).startswith(f"{path}: must lead to an API server: ")
