// Line charts, as SVG: each line has its own colour, dashes and marks.
const PLOT = { width: 640, height: 340, left: 84, right: 16, top: 12, bottom: 48 };
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2", "12 4"];

function scaleOf(values, log, low, high) {
  let [least, most] = [Math.min(...values), Math.max(...values)];
  if (log) {
    [least, most] = [Math.log10(least), Math.log10(most)];
    if (most - least < 0.3) [least, most] = [least - 0.15, most + 0.15];
  } else {
    least = Math.min(least, 0);
    if (most === least) most = least + 1;
  }
  const share = (value) => ((log ? Math.log10(value) : value) - least) / (most - least);
  const place = (value) => low + share(value) * (high - low);
  return { place, ticks: log ? logTicks(least, most) : plainTicks(least, most) };
}

function logTicks(least, most) {
  const factors = most - least > 2.5 ? [1] : most - least > 1.2 ? [1, 3] : [1, 2, 5];
  const step = Math.max(1, Math.ceil((most - least) / 7));
  const ticks = [];
  for (let power = Math.floor(least); power <= Math.ceil(most); power += 1) {
    if (factors.length === 1 && power % step !== 0) continue;
    for (const factor of factors) {
      const at = power + Math.log10(factor);
      if (at >= least - 1e-9 && at <= most + 1e-9) ticks.push(factor * 10 ** power);
    }
  }
  return ticks;
}

function plainTicks(least, most) {
  const rough = (most - least) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const ticks = [];
  for (let n = Math.ceil(least / step - 1e-9); n * step <= most + step * 1e-9; n += 1) {
    ticks.push(n * step);
  }
  return ticks;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  }
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
}

function drawChart(chart) {
  const { width, height, left, right, top, bottom } = PLOT;
  const xs = chart.series.flatMap((line) => line.x);
  const ys = chart.series.flatMap((line) => line.y);
  const x = scaleOf(xs, chart.log_x, left, width - right);
  const y = scaleOf(ys, chart.log_y, height - bottom, top);
  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label":
      `${chart.title}. ${chart.y_title} over ${chart.x_title}, ${chart.series.length} lines; ` +
      "the numbers are in the table below.",
  });
  for (const tick of x.ticks) {
    const at = x.place(tick);
    svg.append(
      make("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - bottom }),
      make("text", { x: at, y: height - bottom + 16, "text-anchor": "middle" }, short(tick))
    );
  }
  for (const tick of y.ticks) {
    const at = y.place(tick);
    svg.append(
      make("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }),
      make("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, short(tick))
    );
  }
  const axis = `M${left} ${top}V${height - bottom}H${width - right}`;
  svg.append(
    make("path", { class: "axis", d: axis, fill: "none" }),
    make(
      "text",
      { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
      chart.x_title
    ),
    ...linesOf(chart.y_title).map((line, index) =>
      make(
        "text",
        {
          "text-anchor": "middle",
          transform: `translate(${14 + 14 * index} ${(top + height - bottom) / 2}) rotate(-90)`,
        },
        line
      )
    )
  );
  chart.series.forEach((line, index) => {
    const points = line.x.map((value, i) => [x.place(value), y.place(line.y[i])]);
    svg.append(stroke(points, index), ...(points.length <= 24 ? points.map(mark(index)) : []));
  });
  return make(
    "figure",
    {},
    make("figcaption", {}, chart.title),
    svg,
    make("ul", { class: "legend" }, ...chart.series.map(legend)),
    make("details", {}, make("summary", {}, "The numbers"), numbersOf(chart))
  );
}

// A title in one line, or in two where it is longer than its axis.
function linesOf(title) {
  if (title.length <= 42) return [title];
  const middle = title.indexOf(" ", title.length / 2 - 4);
  return middle < 0 ? [title] : [title.slice(0, middle), title.slice(middle + 1)];
}

function stroke(points, index) {
  return make("path", {
    d: points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join(""),
    fill: "none",
    stroke: `var(--line-${index % 6})`,
    "stroke-width": 2,
    // The seventh line has the first one's colour, and other dashes.
    "stroke-dasharray": DASHES[(index + 3 * Math.floor(index / 6)) % 6],
  });
}

const mark = (index) => ([px, py]) =>
  make("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: 3, fill: `var(--line-${index % 6})` });

function legend(line, index) {
  const svg = make("svg", { viewBox: "0 0 40 12", "aria-hidden": "true" });
  svg.append(stroke([[0, 6], [40, 6]], index));
  return make("li", {}, svg, line.name);
}

// One row for each x; a line that has none there leaves its cell empty.
function numbersOf(chart) {
  let xs = [...new Set(chart.series.flatMap((line) => line.x))].sort((a, b) => a - b);
  const step = Math.ceil(xs.length / 32);
  xs = xs.filter((_, i) => i % step === 0 || i === xs.length - 1);
  const headers = [
    [chart.x_title, "number"],
    ...chart.series.map((line) => [line.name + (line.unit ? `, ${line.unit}` : ""), "number"]),
  ];
  const rows = xs.map((value) => [
    short(value),
    ...chart.series.map((line) => {
      const at = line.x.indexOf(value);
      return at < 0 ? "" : short(line.y[at]);
    }),
  ]);
  return makeTable(step > 1 ? `every ${step}th point` : "", headers, rows);
}
