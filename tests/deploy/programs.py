"""What renders and checks manifests, in a cache: helm and kustomize from Go's modules, promtool from Debian.

`python -m tests.deploy.programs` brings what is missing and says where it is; with `--are-here` it only tells, by its
exit code, whether they are compiled.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.binaries import CannotHave, alone, cache_folder, digest_of, find_go, run, say_line, unpacked
from tests.cluster.releases import DEFAULT

_BUILD = Path(__file__).parent / "build"
_TOOLS = {"helm": "helm.sh/helm/v3/cmd/helm", "kustomize": "sigs.k8s.io/kustomize/kustomize/v5"}
# k8s.io/* and what they stand on are those of tests/cluster/build/1.35: what was compiled for it is not compiled again.
# Helm without a cluster takes it to be of this release, as its own builds have it; else of 1.20.
_RELEASE = " ".join(
    f"-X helm.sh/helm/v3/pkg/chartutil.k8sVersion{part}={value}"
    for part, value in zip(("Major", "Minor"), DEFAULT.split("."), strict=True)
)
_FLAGS = ("-mod=readonly", "-trimpath", f"-ldflags=-s -w {_RELEASE}")
_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-p=2", "GOTOOLCHAIN": "local", "GOWORK": "off"}
# A module only for the definitions that it has as examples: name, and the sum that go.sum would hold.
_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_OPERATOR_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="


@functools.cache
def helm() -> Path:
    """Return helm."""
    return _compiled() / "helm"


@functools.cache
def kustomize() -> Path:
    """Return kustomize, of the release that kubectl 1.35 has in it."""
    return _compiled() / "kustomize"


@functools.cache
def promtool() -> Path:
    """Return promtool."""
    home = _home()
    with alone(home / "lock", say_line):
        return unpacked(home / "prometheus", ["prometheus"], say_line) / "usr/bin/promtool"


@functools.cache
def operator_definitions() -> dict[str, dict[str, Any]]:
    """Return the Prometheus operator's definitions, by kind."""
    home = _home()
    with alone(home / "lock", say_line):
        go = find_go(cache_folder(), say_line)
        download = [go, "mod", "download", "-json", _OPERATOR]
        done = subprocess.run(download, cwd=home, env=os.environ | _ENVIRONMENT, capture_output=True, check=False)
    module = json.loads(done.stdout or "{}")
    if module.get("Sum") != _OPERATOR_SUM:
        raise CannotHave(f"{_OPERATOR}: {module.get('Error') or module.get('Sum') or done.stderr.decode()}")
    folder = Path(module["Dir"]) / "example/prometheus-operator-crd"
    definitions = [yaml.safe_load(path.read_bytes()) for path in sorted(folder.glob("*_p[or]*.yaml"))]
    return {definition["spec"]["names"]["kind"]: definition for definition in definitions}


def _home() -> Path:
    home = cache_folder().with_name("manifests")
    home.mkdir(parents=True, exist_ok=True)
    return home


def _compiled_folder() -> Path:
    inputs = [path.read_bytes() for path in sorted(_BUILD.iterdir())]
    return _home() / digest_of([*inputs, *(word.encode() for word in (*_FLAGS, *_TOOLS.values()))])


def _compiled() -> Path:
    home, folder = _home(), _compiled_folder()
    with alone(home / "lock", say_line):
        if folder.exists():
            return folder
        cache_folder().mkdir(exist_ok=True)
        go = find_go(cache_folder(), say_line)
        say_line("compiling helm and kustomize, once: 1 minute beside what the cluster's programs have left, else 3")
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        environment = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        build = [str(go), "build", *_FLAGS, "-o", f"{unfinished}/", *_TOOLS.values()]
        run(["env", *environment, "nice", "-n10", *build], _BUILD)
        unfinished.rename(folder)
        return folder


if __name__ == "__main__":
    if sys.argv[1:] == ["--are-here"]:
        sys.exit(not _compiled_folder().exists())
    try:
        programs = (helm(), kustomize(), promtool())
    except CannotHave as error:
        sys.exit(f"manifests: {error}")
    for program in programs:
        say_line(str(program))
