"""Lines out of the pipes of a demo's processes."""

from __future__ import annotations

import os

from koordebpf.demo.story import Lines


def test_a_line_comes_when_it_is_whole_or_at_the_end_and_nothing_is_waited_for() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as pipe:
        lines = Lines(pipe)
        assert (lines.read(), lines.is_open) == ([], True)
        for sent, found in ((b"a\nb", [b"a"]), (b"c\n\n", [b"bc", b""]), (b"d", [])):
            os.write(into, sent)
            assert (lines.read(), lines.is_open) == (found, True)
        os.close(into)
        assert (lines.read(), lines.is_open) == ([b"d"], False)
        assert lines.read() == []
