"""What the script of a page reads of its charts."""

from __future__ import annotations

from koordebpf.tools.incident.charts import charts_json
from koordebpf.tools.incident.values import Chart, Mark, Series


def test_whole_numbers_are_written_without_a_point_and_others_stay() -> None:
    series = Series("used", "line", (1.0, 1.5, None, -2.0))
    chart = Chart("memory", "Memory", "bytes", (1.0, 2.0, 3.0, 4.0), (series,), "")
    found = charts_json([chart], [Mark(2.0, "oom", "")])
    (drawn,) = found["charts"]
    assert str(drawn["series"][0]["values"]) == "[1, 1.5, None, -2]"
    assert found["marks"] == [{"at": 2.0, "kind": "oom"}]
