"""Pin a release of Kubernetes: write build/MINOR/go.mod and go.sum, out of the module proxy.

`python -m tests.cluster.pin 1.37.2` does it. The release's own go.mod says which etcd and cobra belong to it, and
which modules are published beside it. Name the release in releases.py afterwards.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import click

from tests.cluster.binaries import cache_folder, find_go, say_line
from tests.cluster.releases import BUILD

_MAIN = "koordebpf.test/kubernetes"
# Examples, which kubernetes requires and no command has in it; not each release of them is published.
_STUBS = ("sample-cli-plugin", "sample-controller")


def go_mod(version: str, own: str) -> str:
    """Return the go.mod of the servers and the kubelet of a release, before `go mod tidy`.

    Shape:   `own` is the release's own go.mod, whose modules beside it are v0.X.Y where it is v1.X.Y.
    """
    (language,) = re.findall(r"^go (\S+)$", own, re.MULTILINE)
    (etcd,) = re.findall(r"go\.etcd\.io/etcd/server/v3 (\S+)", own)
    (cobra,) = re.findall(r"github\.com/spf13/cobra (\S+)", own)
    beside = f"v0.{version.removeprefix('1.')}"
    names = re.findall(r"^\tk8s\.io/(\S+) => \./staging/", own, re.MULTILINE)
    places = {name: f"./stub/{name}" if name in _STUBS else f"k8s.io/{name} {beside}" for name in names}
    requires = {
        "github.com/spf13/cobra": cobra,
        "go.etcd.io/etcd/server/v3": etcd,
        "k8s.io/component-base": beside,
        "k8s.io/kubectl": beside,
        "k8s.io/kubernetes": f"v{version}",
    }
    return "\n".join((
        f"module {_MAIN}\n\ngo {language}\n\ngodebug default=go{'.'.join(language.split('.')[:2])}\n",
        "require (", *(f"\t{name} {at}" for name, at in requires.items()), ")\n",
        "replace (", *(f"\tk8s.io/{name} => {place}" for name, place in places.items()), ")\n",
    ))  # fmt: skip


def _own_go_mod(go: Path, version: str) -> str:
    with tempfile.TemporaryDirectory(prefix="koordebpf-pin-") as empty:
        command = [go, "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
        said = subprocess.run(command, cwd=empty, capture_output=True, check=True).stdout
    return Path(json.loads(said)["GoMod"]).read_text()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("version")
def main(version: str) -> None:
    """Write what VERSION is compiled from, and say where."""
    go = find_go(cache_folder(), say_line)
    folder = BUILD / version.rpartition(".")[0]
    folder.mkdir(exist_ok=True)
    file = folder / "go.mod"
    file.write_text(go_mod(version, _own_go_mod(go, version)))
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    subprocess.run([go, "mod", "tidy", f"-modfile={file}"], cwd=BUILD, env=environment, check=True)
    for path in sorted(folder.iterdir()):
        say_line(str(path))


if __name__ == "__main__":
    main()
