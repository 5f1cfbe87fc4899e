// Accuracies over clients: one histogram a method, all on one scale.
function drawSpreads(width) {
  const { edges, rows } = data.spreads;
  const shown = rows.filter((row) => !hidden.has(row.series));
  if (!shown.length) return el("p", { class: "empty" }, "All methods are hidden: choose one above.");
  const most = Math.max(...shown.map((row) => Math.max(...row.counts) / sum(row.counts)));
  return shown.map((row, at) => drawSpread(row, edges, most, width, at === shown.length - 1));
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

function drawSpread(row, edges, most, width, isLast) {
  const name = data.series[row.series].name,
    clients = sum(row.counts);
  const height = isLast ? 128 : 92;
  const box = { left: 4, right: width - 4, top: 30, bottom: isLast ? height - 42 : height - 6 };
  const x = scale(edges[0], edges.at(-1), box.left, box.right),
    y = scale(0, most, box.bottom, box.top);
  const chart = frame(
    width,
    height,
    `Accuracies of ${clients} clients with ${name}: mean ${fixed(row.mean)} %, worst decile ${fixed(row.worst)} %`,
  );
  const bars = row.counts.map((count, i) =>
    svg("rect", {
      x: x(edges[i]) + 0.5,
      width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 1),
      y: y(count / clients),
      height: box.bottom - y(count / clients),
      fill: colour(row.series),
      opacity: 0.85,
    }),
  );
  const axis = svg(
    "g",
    { class: "axis", "aria-hidden": "true" },
    line(box.left, box.bottom, box.right, box.bottom, { class: "base" }),
  );
  if (isLast) {
    for (const value of ticks(edges[0], edges.at(-1), width / 80)) {
      const anchor = x(value) > box.right - 20 ? "end" : x(value) < box.left + 20 ? "start" : "middle";
      axis.append(text(x(value), box.bottom + 18, `${number(value)} %`, { "text-anchor": anchor }));
    }
    axis.append(text(box.right, box.bottom + 36, "accuracy of a client", { "text-anchor": "end", class: "title" }));
  }
  const numbers = `worst decile ${fixed(row.worst, 1)} · mean ${fixed(row.mean, 1)} %`;
  chart.append(
    text(box.left, 14, name, { class: "note", style: "font-weight:600" }),
    text(box.right, 14, numbers, { class: "note", "text-anchor": "end" }),
    axis,
    ...bars,
  );
  for (const [value, dashes] of [
    [row.worst, "3 3"],
    [row.mean, "none"],
  ])
    chart.append(
      line(x(value), box.top - 6, x(value), box.bottom, {
        stroke: "var(--ink)",
        "stroke-width": 1.5,
        "stroke-dasharray": dashes,
      }),
    );
  hoverable(chart, (px, py, event) => {
    const at = row.counts.findIndex((_, i) => px >= x(edges[i]) && px < x(edges[i + 1]));
    if (at < 0) return hideTip();
    showTip(
      event,
      swatched(row.series, name),
      tipTable([
        [
          `${number(edges[at])} to ${number(edges[at + 1])} %`,
          `${number(row.counts[at])} clients (${fixed((100 * row.counts[at]) / clients, 1)} %)`,
        ],
      ]),
    );
  });
  return chart;
}
