"""The exit codes of every command, in one table; docs/commands/README.md and the man pages have it."""

from __future__ import annotations

from collections.abc import Mapping

OK = 0

# What a code means where a command does not say more.
GENERAL: Mapping[int, str] = {
    OK: "it did what was asked",
    1: "it failed meanwhile: a server, the kernel or another program refused; or Ctrl-C ended it",
    2: "the command line, or a file that it names, is unusable; nothing was done",
    3: "this host lacks something that the command needs: the message has what, and how to get it",
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


def codes_of(command: str) -> dict[int, str]:
    """Return what each exit code of a command means, by code; the command is named with its group, as `slo check`.

    >>> sorted(codes_of("demo"))
    [0, 1, 2, 3, 130, 143]
    """
    return dict(sorted({**GENERAL, **SPECIAL.get(command, {})}.items()))


def exit_code_table() -> str:
    """Return the table as Markdown: what holds for all commands, then what a command says beyond that."""
    lines = ["| command | code | meaning |", "| --- | --- | --- |"]
    lines += [f"| every command | {code} | {text} |" for code, text in GENERAL.items()]
    lines += [f"| `{name}` | {code} | {text} |" for name, codes in SPECIAL.items() for code, text in codes.items()]
    return "\n".join(lines) + "\n"
