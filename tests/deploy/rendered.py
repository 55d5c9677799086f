"""deploy/ as it is applied: what kustomize builds of a folder, what Helm makes of the chart."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.programs import helm, kustomize

Object = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY
NAMESPACE = "koordebpf-system"


class CannotRender(RuntimeError):
    """What kustomize or Helm said."""


def built(path: Path) -> list[Object]:
    """Return what `kustomize build` makes of a folder.

    Raises:  CannotRender
    """
    return _objects([str(kustomize()), "build", str(path)])


def templated(values: Mapping[str, Any] | None = None, *options: str, chart: Path = CHART) -> list[Object]:
    """Return what `helm template` makes of the chart with these values.

    Raises:  CannotRender: also where they do not meet values.schema.json.
    """
    command = [str(helm()), "template", "koordebpf", str(chart), "--namespace", NAMESPACE, "--values", "-", *options]
    return _objects(command, yaml.safe_dump(dict(values or {})))


def overlay_with(copy: Path, overlay: str, components: Sequence[str]) -> Path:
    """Return the overlay in a copy of deploy/ that is made here, in which these components are taken in."""
    shutil.copytree(DEPLOY, copy, dirs_exist_ok=True, symlinks=True)
    path = copy / "overlays" / overlay / "kustomization.yaml"
    lines = path.read_text().splitlines()
    taken = [_taken(line, components) for line in lines]
    assert sum(line != before for line, before in zip(taken, lines, strict=True)) == len(components) + bool(components)
    path.write_text("\n".join(taken) + "\n")
    return path.parent


def offered(overlay: str) -> list[str]:
    """Return the components that the overlay lists, in its order."""
    lines = (DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text().splitlines()
    begin = "#   - ../../components/"
    return [line.removeprefix(begin) for line in lines if line.startswith(begin)]


# As the overlay's comment says: `# components:` and the lines that are wanted are uncommented.
def _taken(line: str, components: Sequence[str]) -> str:
    is_wanted = line == "# components:" or any(line == f"#   - ../../components/{name}" for name in components)
    return line.removeprefix("# ") if components and is_wanted else line


def by_name(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    """Return the objects by kind and name."""
    named = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(named) == len(objects)
    return named


def pod_specs(objects: Sequence[Object]) -> dict[str, Object]:
    """Return the spec of the pods of each DaemonSet and Deployment, by its name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("DaemonSet", "Deployment")
    }


@functools.cache
def _run(command: tuple[str, ...], given: str) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRender(done.stderr)
    return done.stdout


def _objects(command: Sequence[str], given: str = "") -> list[Object]:
    # In C: the definition of NodeSLO takes a second otherwise.
    return [one for one in yaml.load_all(_run(tuple(command), given), Loader=yaml.CSafeLoader) if one]
