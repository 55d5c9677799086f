"""The table of `koordebpf doctor`."""

from koordebpf.kernel.signals import SignalSource
from koordebpf.report.doctor import doctor_text

WORKS = SignalSource("node usage", "/proc/meminfo", works=True)
MISSING = SignalSource(
    "OOM kills", "", False, "this kernel has no such tracepoint (ENOENT)", "Use 5.10.", "not reported"
)
POORER = SignalSource(
    "node PSI trigger", "window 2000 ms", True, "a shorter one was refused", "Give CAP.", "slower " * 9
)


def test_what_is_missing_says_why_how_and_what_it_costs() -> None:
    text = doctor_text("Linux 6.18", [WORKS, MISSING, POORER])
    lines = text.splitlines()
    assert lines[0] == "Linux 6.18"
    assert "ok node usage                       /proc/meminfo" in lines
    assert any(line.startswith("-- OOM kills") and "no such tracepoint" in line for line in lines)
    assert any("costs: not reported" in line for line in lines)
    assert any("a shorter one was refused" in line for line in lines)
    assert lines[-1] == "2 of 3 work here."
    assert max(map(len, lines)) <= 80
