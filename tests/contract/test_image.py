"""The image of deploy/image: what it leaves out is not needed, and its folders can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.agent_image import unpack
from tests.cluster.image import write_image

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy/image"
DOCKERFILE = (IMAGE / "Dockerfile").read_text()
LEFT_OUT = ("aiohttp", "kubernetes.aio", "kubernetes.client.api", "kubernetes.client.models", "pygments")


def test_what_it_leaves_out_is_not_needed(kubeconfig: Path) -> None:
    program = f"""
import importlib, pathlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        is_gone = any(name == gone or name.startswith(gone + ".") for gone in {LEFT_OUT})
        if is_gone and name != "kubernetes.client.models":  # whose __init__ stays
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from koordebpf.kube.http.transport import open_cluster
open_cluster(pathlib.Path({str(kubeconfig)!r})).close()
for path in sorted(pathlib.Path("koordebpf").rglob("*.py")):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    removed = re.findall(r"(kubernetes/aio|kubernetes/client/api|kubernetes/client/models|pygments)\b", DOCKERFILE)
    assert {name.replace("/", ".") for name in removed} == set(LEFT_OUT) - {"aiohttp"}


def test_an_image_that_is_unpacked_lets_its_user_in_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    write_image(tmp_path / "image.tar", "some:1", {"bin/file": tmp_path / "file"}, links={})
    before = os.umask(0o077)
    try:
        root = unpack(tmp_path / "image.tar", tmp_path).root
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o755
