"""The house rules that no linter knows: one test a rule, which lists every place that breaks it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.rules.modules import MODULES, tree
from tests.rules.offenders import report
from tests.rules.pages import ROOT, name_of

MAX_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_ATTRIBUTES = 12  # names that a class stores on self
MAX_ENTRIES = 15
# What exceeds a limit, and why. It only shrinks: an entry that is not needed any more fails a test.
EXCEEDS = {
    ("attributes", "attribution/index.py", "CgroupIndex"): "the tree, the pods, and lookups in both",
    ("attributes", "demo/story.py", "_Run"): "the processes of one story",
    ("attributes", "kernel/backends/files.py", "FilesSignals"): "counters that BPF programs keep elsewhere",
    ("attributes", "kube/cache/reflector.py", "Reflector"): "the state of one list and watch",
    ("attributes", "kube/sources/api.py", "ApiSource"): "one reflector for each resource",
    ("attributes", "store/line_sink.py", "LineSink"): "a queue, its thread and its counters",
}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "handler", "misc"}
# Verbs that say nothing of what a function does. Write poll, drain, read, record, report, observe, judge, act.
_VAGUE_VERBS = re.compile(r"_?(?:take|look|say|note)(?:_|$)")
# Words that add nothing to a name that they are said of.
_FILLER = {
    "a",
    "an",
    "the",
    "this",
    "that",
    "of",
    "for",
    "to",
    "class",
    "function",
    "method",
    "return",
    "returns",
    "get",
}


def words(text: str) -> set[str]:
    """Split snake_case, CamelCase and prose into lower-case words, without filler."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text.replace("_", " "))
    return set(re.findall(r"[a-z0-9]+", split.lower())) - _FILLER


def only_repeats(name: str, docstring: str) -> bool:
    return words(docstring) <= words(name)


def documented(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds) and ast.get_docstring(node)]


def literal_page_sizes(path: Path) -> list[int]:
    # 4096 that is multiplied, divided or called a page, and a shift by 12; a buffer or a bound may well be 4096.
    lines = []
    for node in ast.walk(tree(path)):
        match node:
            case ast.BinOp(left=ast.Constant(value=4096)) | ast.BinOp(right=ast.Constant(value=4096)):
                lines.append(node.lineno)
            case ast.BinOp(left=left, op=ast.LShift() | ast.RShift(), right=ast.Constant(value=12)):
                if not isinstance(left, ast.Constant):
                    lines.append(node.lineno)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.lineno)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.lineno)
            case ast.keyword(arg=str(name), value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.value.lineno)
    return sorted(lines)


def exceeding(within: ast.Module) -> dict[tuple[str, str], tuple[int, int]]:
    """Return what exceeds a limit as (what is counted, name) → the line where it begins, and how many."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for node in ast.walk(within):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                counts = {"lines": (node.end_lineno - node.lineno + 1, MAX_FUNCTION_LINES)}
            case ast.ClassDef():
                counts = {"attributes": (len(stored_on_self(node)), MAX_ATTRIBUTES)}
            case _:
                continue
        found |= {(what, node.name): (node.lineno, count) for what, (count, limit) in counts.items() if count > limit}
    return found


def stored_on_self(node: ast.ClassDef) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def all_exceeding() -> dict[tuple[str, str, str], tuple[int, int]]:
    return {
        (what, path.relative_to(ROOT / "koordebpf").as_posix(), name): at
        for path in MODULES
        for (what, name), at in exceeding(tree(path)).items()
    }


def test_no_module_needs_a_table_of_contents():
    lines = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    long = [f"{name}: {count}" for name, count in lines.items() if count > MAX_LINES]
    report(long, f"modules have up to {MAX_LINES} lines: split them by topic")


def test_names_of_modules_say_what_they_are():
    wrong = [name_of(path) for path in MODULES if FORBIDDEN_NAMES & {path.stem, path.parent.name}]
    report(wrong, "call these modules and folders after what they hold")


def functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_functions_are_named_by_what_they_do():
    wrong = [
        f"{name_of(path)}:{each.lineno}: {each.name}"
        for path in MODULES
        for each in functions(tree(path))
        if _VAGUE_VERBS.match(each.name)
    ]
    report(
        wrong, "take, look, say and note tell a reader nothing: poll, drain, read, record, report, observe, judge, act"
    )
    assert _VAGUE_VERBS.match("_look") and _VAGUE_VERBS.match("take_due") and not _VAGUE_VERBS.match("taken_over")


def test_modules_ask_the_kernel_for_the_page_size():
    wrong = [f"{name_of(path)}:{line}" for path in MODULES for line in literal_page_sizes(path)]
    report(wrong, "the page size is koordebpf.units.PAGE_BYTES, never a number")


def test_docstrings_say_more_than_the_names():
    wrong = [
        f"{name_of(path)}:{node.lineno}: {node.name}"
        for path in MODULES
        for node in documented(path)
        if only_repeats(node.name, ast.get_docstring(node) or "")
    ]
    report(wrong, "these docstrings repeat the name: say what it cannot, or write none")


def test_a_docstring_that_repeats_is_distinguished_from_one_that_does_not():
    assert only_repeats("decode_frame", "Decode the frame.")
    assert only_repeats("CgroupReader", "A cgroup reader.")
    assert not only_repeats("decode_frame", "Decode one frame; unknown fields are refused.")


def test_a_literal_page_size_is_found(tmp_path):
    path = tmp_path / "reader.py"
    path.write_text('"""4096 in prose."""\nPAGE_BYTES = 4_096\nn * 4096\nbuf = os.read(fd, 4096)\nn >> 12\n')
    assert literal_page_sizes(path) == [2, 3, 5]


def test_functions_and_classes_are_small():
    wrong = [
        f"koordebpf/{path}:{line}: {name}: {count} {what}"
        for (what, path, name), (line, count) in all_exceeding().items()
        if (what, path, name) not in EXCEEDS
    ]
    report(
        wrong,
        f"functions have up to {MAX_FUNCTION_LINES} lines, classes {MAX_ATTRIBUTES} attributes: split these",
    )


def test_what_may_exceed_only_shrinks():
    report(
        map(str, sorted(EXCEEDS.keys() - all_exceeding().keys())), "these exceed no limit any more: remove them here"
    )
    assert len(EXCEEDS) <= MAX_ENTRIES
    assert all(EXCEEDS.values())


def test_the_example_of_a_strategy_is_four_short_files():
    files = sorted((ROOT / "tests/support/example_strategy").glob("*.py"))
    assert [path.name for path in files] == ["__init__.py", "decide.py", "run.py", "values.py"]
    lines = sum(bool(line.strip()) for path in files for line in path.read_text().splitlines())
    assert lines <= 150, (
        "a strategy that measures, writes and shows what it does costs so many lines: shorten what it must say"
    )


def _function_of(lines: int) -> str:
    return "def long():\n" + "    pass\n" * (lines - 1)


def _class_of(attributes: int) -> str:
    stored = "".join(f"        self.b{number} = self.seen = 0\n" for number in range(attributes - 1))
    return f"class Large:\n    def start(self):\n{stored}"


def test_what_exceeds_is_found():
    for source, found in (
        (_function_of(60), {}),
        (_function_of(61), {("lines", "long"): (1, 61)}),
        (_class_of(12), {}),
        (_class_of(13), {("attributes", "Large"): (1, 13)}),
    ):
        assert exceeding(ast.parse(source)) == found


def test_every_module_was_looked_at():
    assert len(MODULES) > 30


# Records count pages: user space knows their size, and a kernel of the same sources may have others. So no source
# has it by heart, as a number or under a name, and none has an amount of bytes as a number of pages.
_PAGE_SIZE = re.compile(
    r"\b4096U?L*\b\s*[*/%]|[*/%]\s*4096U?L*\b|(?<!\b1 )(<<|>>)\s*12\b"
    r"|\w*PAGE_(BITS|SHIFT|SIZE)\w*(: *\w+)?\s*=?\s*\(*\d|PAGE_BYTES\w*(: *\w+)?\s*=\s*(4096|1 << 12)\b"
    r"|\w_PAGES(: *\w+)?\s*=?\s*\(*\d{2}"
)


def test_a_page_size_is_distinguished_from_other_numbers():
    for line in (
        *("n * 4096", "4096UL / n", "n % 4096", "pages << 12", "bytes >>12"),
        *("#define PAGE_BITS 12", "#define PAGE_SHIFT\t(12)", "#define MY_PAGE_SIZE 4096", "enum { PAGE_SHIFT = 12 };"),
        *("#define MIN_REST_PAGES 2048\t/* 8 MiB */", "_MIN_PAGES, _ALL_PAGES = 16, 512", "PAGE_BYTES: int = 4096"),
    ):
        assert _PAGE_SIZE.search(line), line
    for line in (
        *("bytes >> order->page_shift", "MAX_NESTED = 1 << 12", "#define KOORD_NO_LIMIT_PAGES (1ULL << 46)"),
        *('PAGE_BYTES: int = os.sysconf("SC_PAGE_SIZE")', "enum zone_stat_item { NR_FREE_PAGES };"),
    ):
        assert not _PAGE_SIZE.search(line), line


def test_no_source_and_no_load_knows_the_page_size_by_heart():
    sources = [*(ROOT / "bpf").rglob("*.[ch]"), *(ROOT / "tests/workloads").rglob("*.[ch]")]
    sources += [*(ROOT / "koordebpf").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    wrong = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _PAGE_SIZE.search(line)
    ]
    report(wrong, "kernels have pages of other sizes: ask for it, and count in bytes")


def test_every_bpf_source_is_under_the_licences_that_the_kernel_accepts():
    sources = sorted((ROOT / "bpf").rglob("*.[ch]"))
    assert sources
    licence = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause"
    wrong = [name_of(path) for path in sources if licence not in path.read_text()]
    report(wrong, f"these must have the line: {licence}")


# Our own turns of phrase, which no kernel or Kubernetes engineer would search for: as a pattern, and how often each is
# still there in code, tests and pages. A figure never grows. Write evict, restore, report, create, lock, taint, no pod.
# Ordinary phrases, as "a CPU goes offline", are left out by their patterns.
PRIVATE_WORDS = {
    "told(?! apart)": 0,
    "tells of": 0,
    "nobody": 0,
    "somebody": 0,
    "whoever": 0,
    "for want of": 0,
    "(?:hang|hangs|hanging) on": 0,
    "begun": 9,
    "(?:give|gives|given|gave|giving)(?: it| them| its memory| what)? back": 0,
    "births?": 50,
    "foretold|foretell": 0,
    "(?:is|are|be|was) had": 0,
    "anew": 0,
    "(?:every|any)body": 0,
    "mend(?:s|ed)?": 0,
    "under way": 1,
    "on record": 4,
    "(?:gone|going|went|go) on": 0,
    "amid": 0,
    "goes(?! (?:into|through|to|away|wrong|offline|online)\\b)": 0,
    "to go(?! (?:into|through|online|offline|build)\\b)": 0,
}
_SPOKEN = {".py", ".c", ".h", ".sh", ".md", ".yaml", ".txt"}
_SPOKEN_IN = ("koordebpf", "bpf", "tests", "deploy", "vagrant", "docs")


def spoken(text: str) -> str:
    """Return identifiers and prose as lower-case words with one space between them."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text.replace("_", " "))
    return " ".join(re.findall(r"[a-z0-9']+|[^a-z0-9'\s#*]+", split.lower()))


# Most files have none of them.
_PRIVATE = re.compile(rf"\b(?:{'|'.join(PRIVATE_WORDS)})\b")


def count_words(text: str) -> dict[str, int]:
    said = spoken(text)
    if not _PRIVATE.search(said):
        return dict.fromkeys(PRIVATE_WORDS, 0)
    return {word: len(re.findall(rf"\b(?:{word})\b", said)) for word in PRIVATE_WORDS}


def test_a_private_word_is_found():
    for text, word in (
        ("def give_back(self):", "back"),
        ("class BegunKill:", "begun"),
        ("# nobody\n# is asked", "nobody"),
        ("Told", "told"),
    ):
        assert [found for found, count in count_words(text).items() if count and word in found], text


def test_words_that_contain_a_private_one_are_others():
    assert not any(count_words("untold undergoes begunning pyramid # to\ngoing").values())


def test_an_ordinary_phrase_is_allowed():
    for text in ("a CPU that goes offline", "it goes through a filter", "told apart by a label"):
        assert not any(count_words(text).values()), text


def test_private_words_only_become_fewer():
    sources = [path for room in _SPOKEN_IN for path in (ROOT / room).rglob("*") if path.is_file()]
    sources += ROOT.glob("*.md")
    counts: dict[str, Counter[str]] = {word: Counter() for word in PRIVATE_WORDS}
    for path in sources:
        if path.suffix in _SPOKEN and path != Path(__file__) and not any(part.startswith(".") for part in path.parts):
            for word, count in count_words(path.read_text()).items():
                counts[word][name_of(path)] += count
    more = [
        f"{name}: {word}: {count}"
        for word, of_files in counts.items()
        if of_files.total() > PRIVATE_WORDS[word]
        for name, count in of_files.items()
        if count
    ]
    report(more, "more private words than allowed: say one of each in the field's words")
    fewer = {word: each.total() for word, each in counts.items() if each.total() < PRIVATE_WORDS[word]}
    assert not fewer, f"fewer than allowed: lower the figure to {fewer}"
