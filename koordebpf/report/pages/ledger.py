"""The ledger for people: who stalled, on whose account, how much, since when. 80 columns."""

from __future__ import annotations

from koordebpf.report.record_line import shortened
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.units import NS_PER_S, format_ns

_NAME = 26
_LEAST_SHARE = 10_000  # what shows as 0.1 ms/s; less than that is summed up
LEDGER_HEADER = f"{'STALLED':<{_NAME}} ← {'ON ACCOUNT OF':<{_NAME}} {'ms/s':>8} {'SINCE':>9}"


def ledger_lines(ledger: LedgerView, most: int = 20) -> list[str]:
    """Return the rows under their heading, the largest first; what does not fit is summed up in one.

    ms/s is over the ledger's window: two tasks that wait all the time are 2000.
    """
    lines = [LEDGER_HEADER]
    if not ledger.rows:
        return [*lines, f"no pod, in {format_ns(ledger.window_ns)}"]
    shown = [row for row in ledger.rows[:most] if row.ns * _LEAST_SHARE >= ledger.window_ns]
    lines += [ledger_line(row, ledger.window_ns) for row in shown]
    if rest := ledger.rows[len(shown) :]:
        rest_ns = sum(row.ns for row in rest)
        lines.append(f"{f'{len(rest)} more':<{2 * _NAME + 3}} {_rate(rest_ns, ledger.window_ns):>8}")
    return lines


def ledger_line(row: LedgerRow, window_ns: int) -> str:
    """Return one row; SINCE is how long before its last stall the uninterrupted charge began."""
    names = f"{party_text(row.victim, _NAME):<{_NAME}} ← {party_text(row.cause, _NAME):<{_NAME}}"
    return f"{names} {_rate(row.ns, window_ns):>8} {format_ns(row.last_ns - row.since_ns):>9}"


def party_text(party: Party, columns: int) -> str:
    """Return who it is in so many columns."""
    match party.kind:
        case "own limit":
            return "its own limit"
        case "unattributed":
            return "no pod seen to grow"
        case "others":
            return "others"
    return shortened(party.label, columns)


def _rate(ns: int, window_ns: int) -> str:
    return f"{ns * 1000 / window_ns:.1f}" if window_ns else f"{ns / NS_PER_S:.1f}"
