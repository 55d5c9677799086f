/* Draws the plots of the page from the data in it, by uPlot. Without this script the tables say the same. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const PAPER_PX = 690;
  const DAY_S = 86400;
  const plots = [];

  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const clock = (s) => new Date(s * 1000).toISOString().slice(11, 19);

  const day = (s) => new Date(s * 1000).toISOString().slice(5, 10);

  function bytes(value) {
    let size = value, unit = 0;
    while (Math.abs(size) >= 1000 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
    return `${unit === 0 || Math.abs(size) >= 100 ? size.toFixed(0) : size.toFixed(1)} ${UNITS[unit]}`;
  }

  function amount(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "bytes") return bytes(value);
    if (unit === "bytes/s") return `${bytes(value)}/s`;
    if (unit === "count") return Number.isInteger(value) ? String(value) : "";
    return unit === "%" ? `${value.toFixed(1)} %` : value.toFixed(2);
  }

  /* From zero, or as far below it as above: what shrinks at once would hide what grows. */
  const LEAST = { "bytes": 1048576, "bytes/s": 1048576, "%": 1, "CPUs": 1, "count": 1 };
  function range(unit, low, high) {
    const top = Math.max(high, LEAST[unit]) * 1.05;
    return [Math.max(Math.min(0, low * 1.05), -top), top];
  }

  /* The areas of a stack, each on top of those before it, drawn from the topmost down. */
  function drawn(chart) {
    const areas = chart.series.filter((each) => each.style === "area");
    const sums = new Array(chart.times.length).fill(0);
    const known = chart.times.map((_, at) => areas.some((each) => each.values[at] !== null));
    const stacked = areas.map((each) => {
      each.values.forEach((value, at) => { sums[at] += value ?? 0; });
      return { ...each, drawn: sums.map((sum, at) => (known[at] ? sum : null)) };
    });
    const others = chart.series.filter((each) => each.style !== "area").map((each) => ({ ...each, drawn: each.values }));
    return [...stacked.reverse(), ...others];
  }

  function uplotSeries(each) {
    const stroke = color(each.color);
    if (each.style === "area") return { stroke: color("bg"), width: 0.5, fill: stroke, points: { show: false } };
    if (each.style === "mark") return { stroke, width: 2, dash: each.color === "lower" ? [3, 4] : [8, 5], points: { show: false } };
    return { stroke, width: each.name.startsWith("node") ? 2.5 : 1.5, points: { show: chart_is_short } };
  }
  let chart_is_short = false;

  function drawMarks(u) {
    const { left, top, height, width } = u.bbox, ctx = u.ctx;
    ctx.save();
    ctx.setLineDash([4, 4]);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const mark of data.marks) {
      const x = Math.round(u.valToPos(mark.at, "x", true));
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = ctx.fillStyle = color(mark.kind);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      const half = 5 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x - half, top);
      ctx.lineTo(x + half, top);
      ctx.lineTo(x, top + 1.6 * half);
      ctx.fill();
    }
    ctx.restore();
  }

  function build(chart, host, legend) {
    const series = drawn(chart);
    chart_is_short = chart.times.length <= 30;
    const isBytes = chart.unit.startsWith("bytes");
    const axis = { stroke: color("fg"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const values = [...legend.querySelectorAll(".value")];
    const plot = new uPlot({
      width: root.classList.contains("paper") ? PAPER_PX : host.clientWidth,
      height: chart.id === "memory" ? 340 : 220,
      legend: { show: false },
      tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
      cursor: { sync: { key: "time", scales: ["x", null] }, y: false, points: { show: chart.id !== "memory" } },
      scales: { y: { range: (u, low, high) => range(chart.unit, low ?? 0, high ?? 0) } },
      axes: [
        { ...axis, values: (u, splits, _, __, step) => splits.map((s) => (chart.unit === "count" ? (s % DAY_S ? "" : day(s)) : step >= DAY_S ? day(s) : step >= 60 ? clock(s).slice(0, 5) : clock(s))) },
        { ...axis, size: 84, incrs: isBytes ? Array.from({ length: 50 }, (_, power) => 2 ** power) : undefined,
          values: (u, splits) => splits.map((value) => amount(value, chart.unit)) },
      ],
      series: [{}, ...series.map(uplotSeries)],
      hooks: {
        draw: [drawMarks],
        setCursor: [(u) => {
          const at = u.cursor.idx;
          chart.series.forEach((each, number) => {
            values[number].textContent = at === null || at === undefined ? "" : amount(each.values[at], chart.unit);
          });
        }],
      },
    }, [chart.times, ...series.map((each) => each.drawn)], host);
    return plot;
  }

  function say(chart, at) {
    const said = chart.series.filter((each) => each.values[at] !== null)
      .map((each) => `${each.name} ${amount(each.values[at], chart.unit)}`);
    const isLong = chart.times[chart.times.length - 1] - chart.times[0] >= DAY_S;
    const at_s = chart.times[at];
    const when = chart.unit === "count" ? day(at_s) : isLong ? `${day(at_s)} ${clock(at_s)}` : clock(at_s);
    return `${when} UTC: ${said.join(", ") || "nothing was recorded"}`;
  }

  /* Keys move the cursor, and a screen reader says the values there. */
  function operate(entry) {
    const { chart, host } = entry;
    const last = chart.times.length - 1;
    host.setAttribute("role", "slider");
    host.setAttribute("tabindex", "0");
    host.setAttribute("aria-label", `${chart.title}: time`);
    host.setAttribute("aria-valuemin", "0");
    host.setAttribute("aria-valuemax", String(last));
    const move = (at) => {
      entry.at = Math.max(0, Math.min(last, at));
      host.setAttribute("aria-valuenow", String(entry.at));
      host.setAttribute("aria-valuetext", say(chart, entry.at));
    };
    move(0);
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    host.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      move(Number.isFinite(step) ? entry.at + step : step < 0 ? 0 : last);
      entry.plot.setCursor({ left: entry.plot.valToPos(chart.times[entry.at], "x"), top: 0 });
    });
  }

  function rebuild() {
    for (const entry of plots) {
      entry.plot.destroy();
      entry.plot = build(entry.chart, entry.host, entry.legend);
    }
  }

  for (const chart of data.charts) {
    const host = document.getElementById(`plot-${chart.id}`);
    const legend = host.nextElementSibling;
    const entry = { chart, host, legend, at: 0, plot: build(chart, host, legend) };
    operate(entry);
    plots.push(entry);
  }

  dark.addEventListener("change", rebuild);
  addEventListener("beforeprint", () => { root.classList.add("paper"); rebuild(); });
  addEventListener("afterprint", () => { root.classList.remove("paper"); rebuild(); });
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => plots.forEach((entry) => entry.plot.setSize({ width: entry.host.clientWidth, height: entry.plot.height })), 120);
  });
  root.dataset.drawn = String(plots.length);
})();
