"""The documentation as a site: built without a warning, its links lead somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="needs mkdocs-material; make setup installs it"
)


def site_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / ".ci/site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = site_module()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ".ci/site.py", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_mkdocs
@pytest.mark.slow
def test_every_page_of_the_repository_is_in_it(site: Path) -> None:
    wanted = {path.relative_to(ROOT) for path in SITE.pages()}
    assert len(wanted) > 30
    missing = set()
    for path in wanted:
        out = site / (path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html"))
        if not out.exists():
            missing.add(path)
    assert missing == set()


@needs_mkdocs
@pytest.mark.slow
def test_pictures_and_styles_are_its_own(site: Path) -> None:
    assert list(site.rglob("eviction.svg"))
    for path in site.rglob("*.css"):
        assert [
            each for each in re.findall(r"url\(([^)]*)\)", path.read_text()) if "//" in each and "data:" not in each
        ] == []


def test_what_leads_nowhere_and_what_is_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there"></a><a href="none.html"></a><a href="#nowhere"></a>'
        '<a href="https://example.org"></a><script src="https://example.org/x.js"></script>'
        '<link rel="stylesheet" href="//example.org/x.css"><img src="data:image/png;base64,AA==">'
    )
    (tmp_path / "b.html").write_text('<a id="there" href="a.html#top"></a><a href="a.html#no"></a>')
    assert SITE.problems(tmp_path) == [
        "a.html: loads https://example.org/x.js",
        "a.html: loads //example.org/x.css",
        "a.html: none.html leads to no page",
        "a.html: #nowhere leads to no heading",
        "b.html: a.html#no leads to no heading",
    ]
