// The dendrogram and its cut.
function drawTree(run, width) {
  const { members, left, right, low_left, low_right, heights, colours, cut } = run.tree;
  const height = Math.round(Math.min(380, Math.max(240, width * 0.36))),
    top = Math.max(...heights, cut ?? 0) * 1.04 || 1;
  const ys = ticks(0, top, 4).map((value) => [value, number(value, 4)]);
  const box = { left: widest(ys.map((tick) => tick[1])) + 12, right: width - 8, top: 26, bottom: height - 34 };
  const x = scale(-0.5, members.length - 0.5, box.left, box.right),
    y = scale(0, top, box.bottom, box.top);
  const chart = frame(
    width,
    height,
    `Dendrogram of ${members.length} clients, ${cut === null ? "not cut" : `cut at ${number(cut, 4)}`}, ${run.names.length} clusters`,
  );
  const axis = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const [value, words] of ys)
    axis.append(
      line(box.left, y(value), box.right, y(value)),
      text(box.left - 8, y(value) + 4, words, { "text-anchor": "end" }),
    );
  axis.append(
    text(0, 12, "height of the merge", { class: "title" }),
    text(box.right, box.bottom + 28, "clients", { "text-anchor": "end", class: "title" }),
  );
  chart.append(axis);
  const paths = new Map();
  const f = (value) => value.toFixed(1);
  heights.forEach((merge, i) => {
    const piece = `M${f(x(left[i]))},${f(y(low_left[i]))}V${f(y(merge))}H${f(x(right[i]))}V${f(y(low_right[i]))}`;
    paths.set(colours[i], (paths.get(colours[i]) ?? "") + piece);
  });
  for (const [cluster, d] of [...paths].sort((a, b) => a[0] - b[0]))
    chart.append(
      svg("path", {
        d,
        fill: "none",
        stroke: cluster < 0 ? "var(--muted)" : colour(cluster),
        "stroke-width": members.length > 400 ? 0.8 : 1.5,
      }),
    );
  const wide = (box.right - box.left) / members.length;
  members.forEach((client, i) =>
    chart.append(
      svg("rect", {
        x: f(x(i) - wide / 2),
        y: box.bottom + 3,
        width: f(wide + 0.3),
        height: 6,
        fill: colour(run.found[client]),
      }),
    ),
  );
  if (cut !== null) {
    // A merge at the cut is not made: where one is, the line is drawn below it.
    const below = Math.max(0, ...heights.filter((merge) => merge < cut)),
      on = heights.includes(cut),
      at = y(on ? (below + cut) / 2 : cut);
    chart.append(line(box.left, at, box.right, at, { class: "cut" }));
    chart.append(
      text(box.right, at - 6, `cut ${on ? "below" : "at"} ${number(cut, 3)}: ${run.names.length} clusters`, {
        class: "note",
        "text-anchor": "end",
      }),
    );
  } else
    chart.append(
      text(box.right, box.top - 4, "no cut was worth making: one cluster", { class: "note", "text-anchor": "end" }),
    );
  hoverable(chart, (px, py, event) => {
    const at = Math.round(((px - box.left) / (box.right - box.left)) * members.length - 0.5);
    at < 0 || at >= members.length ? hideTip() : showTip(event, ...clientTip(run, members[at]));
  });
  return chart;
}
