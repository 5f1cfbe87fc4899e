// Curves with bands: over rounds, and over the bytes that were moved.
function extent(curves, key) {
  let low = Infinity,
    high = -Infinity;
  for (const curve of curves) {
    for (const value of curve[key === "y" && curve.low ? "low" : key]) low = Math.min(low, value);
    for (const value of curve[key === "y" && curve.high ? "high" : key]) high = Math.max(high, value);
  }
  return [low, high];
}

function padded([low, high], unit) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  return [
    unit === "%" ? Math.max(0, low - room) : low >= 0 ? Math.max(0, low - room) : low - room,
    unit === "%" ? Math.min(100, high + room) : high + room,
  ];
}

function axes(chart, box, x, y, xs, ys, titles) {
  const cluster = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const [value, words] of ys) {
    cluster.append(
      line(box.left, y(value), box.right, y(value)),
      text(box.left - 8, y(value) + 4, words, { "text-anchor": "end" }),
    );
  }
  for (const [value, words] of xs) {
    cluster.append(text(x(value), box.bottom + 18, words, { "text-anchor": "middle" }));
    cluster.append(line(x(value), box.bottom, x(value), box.bottom + 4, { class: "base" }));
  }
  cluster.append(line(box.left, box.bottom, box.right, box.bottom, { class: "base" }));
  cluster.append(text(box.right, box.bottom + 36, titles.x, { "text-anchor": "end", class: "title" }));
  if (titles.y) cluster.append(text(0, 12, titles.y, { class: "title" }));
  chart.append(cluster);
}

function curvePath(curve, key, x, y) {
  return curve[key].map((value, i) => `${i ? "L" : "M"}${x(value).toFixed(1)},${y(curve.y[i]).toFixed(1)}`).join("");
}

function bandPath(curve, key, x, y) {
  const up = curve.high.map((value, i) => `${x(curve[key][i]).toFixed(1)},${y(value).toFixed(1)}`);
  const down = curve.low.map((value, i) => `${x(curve[key][i]).toFixed(1)},${y(value).toFixed(1)}`).reverse();
  return `M${[...up, ...down].join("L")}Z`;
}

function drawCurves(metric, key, width) {
  const curves = metric.curves.filter((curve) => !hidden.has(curve.series));
  if (!curves.length) return el("p", { class: "empty" }, "All methods are hidden: choose one above.");
  const height = Math.round(Math.min(420, Math.max(260, width * 0.42)));
  const [low, high] = padded(extent(curves, "y"), metric.unit);
  const ys = ticks(low, high, 5).map((value) => [value, `${number(value, 3)}${metric.unit && ` ${metric.unit}`}`]);
  const span = extent(curves, key);
  const from = key === "mb" ? 0 : Math.min(span[0], 1),
    to = Math.max(span[1], from + 1e-9);
  const box = { left: widest(ys.map((tick) => tick[1])) + 12, right: width - 12, top: 26, bottom: height - 42 };
  const x = scale(from, to, box.left, box.right),
    y = scale(low, high, box.bottom, box.top);
  let xs = ticks(from, to, width / 90);
  if (key === "x") xs = xs.filter(Number.isInteger);
  const label =
    `${metric.title} by ${key === "mb" ? "megabytes moved" : "round"}: ` +
    curves
      .map((curve) => `${data.series[curve.series].name} ends at ${number(curve.y.at(-1))} ${metric.unit}`)
      .join(", ");
  const chart = frame(width, height, label);
  chart.setAttribute("tabindex", "0");
  axes(
    chart,
    box,
    x,
    y,
    xs.map((value) => [value, key === "mb" ? megabytes(value) : number(value)]),
    ys,
    { x: key === "mb" ? "moved both ways" : "round", y: metric.title },
  );
  for (const curve of curves)
    if (curve.low)
      chart.append(svg("path", { class: "band", d: bandPath(curve, key, x, y), fill: colour(curve.series) }));
  for (const curve of curves) {
    const still = curve[key].at(-1) === curve[key][0];
    if (still)
      chart.append(
        svg("circle", { cx: x(curve[key].at(-1)), cy: y(curve.y.at(-1)), r: 5, fill: colour(curve.series) }),
      );
    else if (curve.y.length <= 12)
      curve.y.forEach((value, i) =>
        chart.append(svg("circle", { cx: x(curve[key][i]), cy: y(value), r: 3, fill: colour(curve.series) })),
      );
    if (!still)
      chart.append(
        svg("path", {
          class: "line",
          d: curvePath(curve, key, x, y),
          stroke: colour(curve.series),
          "stroke-dasharray": dash(curve.series),
        }),
      );
  }
  pointing(chart, curves, metric, key, box, x, y);
  return chart;
}

function pointing(chart, curves, metric, key, box, x, y) {
  const over = svg("g", { visibility: "hidden" });
  const cross = line(0, box.top, 0, box.bottom, { class: "cross" });
  const dots = curves.map((curve) =>
    svg("circle", { r: 4, fill: colour(curve.series), stroke: "var(--paper)", "stroke-width": 1.5 }),
  );
  over.append(cross, ...dots);
  chart.append(over);
  const all = [...new Set(curves.flatMap((curve) => curve[key]))].sort((a, b) => a - b);
  let place = all.length - 1;
  const show = (at, event) => {
    place = at;
    const value = all[at];
    over.setAttribute("visibility", "visible");
    cross.setAttribute("x1", x(value));
    cross.setAttribute("x2", x(value));
    const rows = curves.map((curve, i) => {
      let last = curve[key].findLastIndex((other) => other <= value);
      if (last < 0) last = 0;
      dots[i].setAttribute("cx", x(curve[key][last]));
      dots[i].setAttribute("cy", y(curve.y[last]));
      const spread = curve.low ? ` ± ${fixed((curve.high[last] - curve.low[last]) / 2)}` : "";
      return [
        curve.y[last],
        swatched(curve.series, data.series[curve.series].name),
        `${fixed(curve.y[last])}${metric.unit && ` ${metric.unit}`}${spread}`,
      ];
    });
    rows.sort((a, b) => b[0] - a[0]);
    showTip(
      event,
      el("b", {}, key === "mb" ? `${megabytes(value)} moved` : `Round ${number(value)}`),
      tipTable(rows.map((row) => row.slice(1))),
    );
  };
  const near = (value) =>
    all.reduce((best, other, i) => (Math.abs(x(other) - value) < Math.abs(x(all[best]) - value) ? i : best), 0);
  hoverable(
    chart,
    (px, py, event) => show(near(px), event),
    () => over.setAttribute("visibility", "hidden"),
  );
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(all.length - 1, place + step)),
      where = chart.getBoundingClientRect();
    show(at, { clientX: where.left + x(all[at]), clientY: where.top + where.height / 2 });
  });
  chart.addEventListener("blur", () => {
    hideTip();
    over.setAttribute("visibility", "hidden");
  });
}
