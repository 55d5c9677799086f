"""Build the documentation as a site: python .ci/site.py [FOLDER], by default build/site.

Its pages are the Markdown files of the repository at their places, so that links between them hold. Nothing of it is
loaded from elsewhere when it is read. A link that leads nowhere ends the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
_SKIPPED = {"build", "dist", "node_modules"}
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|#|mailto:)([^)\s]+)((?:\s+\"[^\"]*\")?)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
# What a page links to and people look at in place; other files are copied as they are.
_PAGE = ".md"
_CONFIG = """\
site_name: koordebpf
site_description: Protects the latency-sensitive pods of a Kubernetes node
docs_dir: pages
site_dir: {site}
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.indexes, navigation.top, toc.follow, search.highlight]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
plugins: [search]
markdown_extensions:
  - tables
  - admonition
  - pymdownx.superfences
  - pymdownx.highlight:
      use_pygments: true
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {{kwds: {{case: lower}}}}
validation:
  omitted_files: ignore
  absolute_links: warn
  unrecognized_links: warn
  anchors: warn
nav:
{nav}
"""
_NAV = (
    ("koordebpf", "README.md"),
    ("Commands", "docs/commands/README.md"),
    ("Install", "deploy/README.md"),
    ("Documentation", "docs/"),
    ("Deployment", "deploy/"),
    ("BPF programs", "bpf/README.md"),
    ("Tests", "tests/README.md"),
    ("Security", "SECURITY.md"),
    ("Contributing", "CONTRIBUTING.md"),
    ("Changes", "CHANGELOG.md"),
)


def main(folder: str = str(ROOT / "build/site")) -> None:
    """Build it.

    Raises:  SystemExit: a link leads nowhere, or something is loaded from elsewhere.
    """
    site = Path(folder).absolute()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        _copy_pages(work / "pages")
        (work / "mkdocs.yml").write_text(_CONFIG.format(site=site, nav=_nav(work / "pages")))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
        # Of Material's own future; nothing that a reader of the build could change.
        subprocess.run(command, cwd=work, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    wrong = problems(site)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{site}: {sum(1 for _ in site.rglob('*.html'))} pages")


def pages() -> list[Path]:
    """Return the Markdown files of the repository."""
    found = [path for path in ROOT.rglob(f"*{_PAGE}") if not _is_skipped(path)]
    return sorted(found)


def _is_skipped(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in _SKIPPED for part in parts)


def _copy_pages(to: Path) -> None:
    for path in pages():
        out = to / path.relative_to(ROOT)
        out.parent.mkdir(parents=True, exist_ok=True)
        parts = _FENCE.split(path.read_text())
        # Between fences; inside them nothing is a link.
        out.write_text("".join(part if part.startswith("```") else _linked(part, path, to) for part in parts))


# A folder's link leads to its README, or becomes plain text; what is no page is copied beside the pages.
def _linked(text: str, path: Path, to: Path) -> str:
    def link(found: re.Match[str]) -> str:
        words, target, title = found[1], found[2], found[3]
        name, _, anchor = target.partition("#")
        at = (path.parent / name).resolve()
        if at.is_dir():
            if not (at / "README.md").exists():
                return words[1:-1]
            return f"{words}({name.rstrip('/')}/README.md{f'#{anchor}' if anchor else ''}{title})"
        if at.is_file() and at.suffix != _PAGE and at.is_relative_to(ROOT):
            copied = to / at.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(at, copied)
        return found[0]

    return _LINK.sub(link, text)


def _nav(pages_folder: Path) -> str:
    lines: list[str] = []
    single = {target for _, target in _NAV if not target.endswith("/")}
    for title, target in _NAV:
        if not target.endswith("/"):
            lines.append(f"  - {title}: {target}")
            continue
        lines.append(f"  - {title}:")
        for path in sorted((pages_folder / target).rglob(f"*{_PAGE}")):
            name = path.relative_to(pages_folder).as_posix()
            if name not in single:
                lines.append(f"      - {name}")
    return "\n".join(lines)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "object") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical" and given.get("href"):
            self.loaded.append(given["href"])


def problems(site: Path) -> list[str]:
    """Return the links of built pages that lead nowhere, and what they load from elsewhere."""
    parsed: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        parsed[path] = _Page()
        parsed[path].feed(path.read_text())
    wrong = []
    for path, page in parsed.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        here = path.relative_to(site)
        for address in page.loaded + page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    wrong.append(f"{here}: loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{here}: {address} leads to no page")
            elif parts.fragment and target in parsed and unquote(parts.fragment) not in parsed[target].anchors:
                wrong.append(f"{here}: {address} leads to no heading")
    return wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
