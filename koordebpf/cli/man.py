"""Manual pages (man(7)) of koordebpf and its commands, out of the help that click prints; their exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click

from koordebpf import __version__

OK = 0
# What a code means where a command does not say more.
GENERAL: Mapping[int, str] = {
    OK: "it did what was asked",
    1: "it failed meanwhile: a server, the kernel or another program refused; or Ctrl-C ended it",
    2: "the command line, or a file that it names, is unusable; nothing was done",
    3: "this host lacks something that the command needs: the message has what, and how to get it",
    74: "standard output cannot be written, as on a full disk",
    141: "the reader of standard output ended first, as `head` does",
}
# Command → what its codes mean beyond that.
SPECIAL: Mapping[str, Mapping[int, str]] = {
    "run": {OK: "SIGTERM or SIGINT ended it, and everything is detached", 3: "as above, or ten rounds in a row failed"},
    "plan": {2: "as above; with --strict also where a NodeSLO or ConfigMap has fields that nothing reads"},
    "replay": {1: "a round was decided otherwise than recorded, without other settings being asked for"},
    "backtest": {1: "a predicted peak was exceeded in more than 5 % of the intervals"},
    "explain": {2: "as above; or of an audit file no line could be read"},
    "config check": {OK: "nothing is wrong with the file", 2: "something is wrong with it: each has a line"},
    "slo check": {OK: "nothing is wrong with the ConfigMap", 2: "something is wrong with it: each has a line"},
    "restore": {1: "something could not be restored, or an agent acts; it stays in the journal"},
    "doctor": {
        OK: "every signal is available by its best method",
        1: "the agent runs here, with the losses that the table names",
        2: "it cannot run here, or the command line is wrong",
    },
    "demo": {
        OK: "the story went as it should",
        1: "it did not",
        130: "SIGINT ended it, and everything is cleaned up",
        143: "SIGTERM ended it, and everything is cleaned up",
    },
}
_KEPT = "\b"  # click's mark: the paragraph's lines stay as they are
_HEADING = re.compile(r"^[A-Z][^.\n]*:$")


def codes_of(command: str) -> dict[int, str]:
    """Return what each exit code of a command means, by code; the command is named with its group, as `slo check`.

    >>> sorted(codes_of("demo"))
    [0, 1, 2, 3, 74, 130, 141, 143]
    """
    return dict(sorted({**GENERAL, **SPECIAL.get(command, {})}.items()))


def exit_code_table() -> str:
    """Return the table as Markdown: what holds for all commands, then what a command says beyond that."""
    lines = ["| command | code | meaning |", "| --- | --- | --- |"]
    lines += [f"| every command | {code} | {text} |" for code, text in GENERAL.items()]
    lines += [f"| `{name}` | {code} | {text} |" for name, codes in SPECIAL.items() for code, text in codes.items()]
    return "\n".join(lines) + "\n"


def man_pages(root: click.Group) -> Iterator[tuple[str, str]]:
    """Yield name and text of each page: koordebpf.1, koordebpf-run.1, koordebpf-slo-check.1 and so on."""
    with click.Context(root, info_name="koordebpf", **root.context_settings) as context:
        yield from _pages(root, context)


def _pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    name = context.command_path.replace(" ", "-")
    yield f"{name}.1", "\n".join(_page(name, command, context)) + "\n"
    for below, found in _below(command, context).items():
        # The path of a command below one that is no group would have the arguments of that.
        is_group = isinstance(command, click.Group)
        above, named = (context, below) if is_group else (context.parent, f"{command.name} {below}")
        with click.Context(found, info_name=named, parent=above) as inner:
            yield from _pages(found, inner)


# Of a group all of its commands; `explain` has one, and does something by itself.
def _below(command: click.Command, context: click.Context) -> dict[str, click.Command]:
    if isinstance(command, click.Group):
        found = {name: command.get_command(context, name) for name in command.list_commands(context)}
        return {name: each for name, each in found.items() if each is not None}
    if command.name == "explain" and context.command_path == "koordebpf explain":
        from koordebpf.cli.explain import node

        return {"node": node}
    return {}


def _page(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    said = _paragraphs(inspect.cleandoc(command.help or ""))
    first = next(said, "")
    yield f'.TH "{name.upper()}" "1" "" "koordebpf {__version__}" "User Commands"'
    yield ".ie \\n(.g .ds Aq \\(aq"
    yield ".el .ds Aq '"
    yield f".SH NAME\n{_plain(name)} \\- {_plain(first.rstrip('.'))}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SH SYNOPSIS\n.B {_plain(context.command_path)}\n{_plain(usage)}"
    yield ".SH DESCRIPTION"
    for paragraph in (first, *said):
        yield from _paragraph_lines(paragraph)
    asked = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    options = [record for each in asked if (record := each.get_help_record(context))]
    if options:
        yield ".SH OPTIONS"
        for names, text in options:
            yield f".TP\n.B {_plain(names)}\n{_plain(text) or '.'}"
    if commands := _below(command, context):
        yield ".SH COMMANDS"
        for below, found in commands.items():
            text = found.get_short_help_str(200)
            yield f".TP\n.B {_plain(below)}\n{_plain(text)} See \\fB{_plain(name)}\\-{_plain(below)}\\fP(1)."
    yield ".SH EXIT STATUS"
    for code, meaning in codes_of(context.command_path.removeprefix("koordebpf").strip()).items():
        yield f".TP\n.B {code}\n{_plain(meaning)}."
    if context.parent is not None:
        above = context.parent.command_path.replace(" ", "-")
        yield f".SH SEE ALSO\n.BR {_plain(above)} (1)"


def _paragraphs(text: str) -> Iterator[str]:
    for each in re.split(r"\n\s*\n", text.strip()):
        yield each if each.lstrip().startswith(_KEPT) else " ".join(each.split())


def _paragraph_lines(text: str) -> Iterator[str]:
    if not text.lstrip().startswith(_KEPT):
        yield f".PP\n{_plain(text)}"
        return
    lines = text.lstrip().removeprefix(_KEPT).strip("\n").splitlines()
    if lines and _HEADING.match(lines[0]):
        yield f".SS {_plain(lines[0].rstrip(':'))}"
        lines = lines[1:]
    else:
        yield ".PP"
    yield ".nf"
    yield from map(_plain, lines)
    yield ".fi"


# As roff reads text: a backslash, a minus that may be copied, and what at the start of a line would be a request.
def _plain(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    escaped = escaped.replace("^", "\\(ha").replace("~", "\\(ti").replace('"', "\\(dq")
    return "".join(
        char if char.isascii() else f"\\[u{ord(char):04X}]" for char in re.sub(r"^(\s*)\.", r"\1\\&.", escaped)
    )
