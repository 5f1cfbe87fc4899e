// Groups over rounds, as bands that split and merge.
function drawBands(run, width) {
  const { rounds, last, flows, small } = run.bands,
    height = 320;
  const box = { left: 4, right: width - 4, top: 8, bottom: height - 42 };
  const end = Math.max(last, rounds.at(-1) + 1),
    x = scale(rounds[0], end, box.left, box.right);
  const clients = sum(flows[0].map((flow) => flow[2]));
  const places = [
    flows[0].map(([from, , n]) => [from, n]),
    ...flows.map((step) => step.map(([, to, n]) => [to, n])),
  ].map(stacked);
  const most = Math.max(...places.map((stack) => stack.size - 1)),
    gap = Math.min(4, 60 / Math.max(1, most));
  const y = (people, before) => box.top + (people / clients) * (box.bottom - box.top - gap * most) + gap * before;
  const chart = frame(
    width,
    height,
    `Groups over rounds: ${run.bands.changes} changes, ${places.at(-1).size} bands at the end`,
  );
  const paths = new Map();
  const add = (cluster, d) => paths.set(cluster, (paths.get(cluster) ?? "") + d);
  places.forEach((stack, k) => {
    const from = x(rounds[k]),
      next = x(rounds[k + 1] ?? end);
    const to =
      k + 1 < rounds.length
        ? Math.max(from, Math.min(x(rounds[k + 1] - 1), next - Math.min(28, 0.6 * (next - from))))
        : next;
    for (const [cluster, spot] of stack)
      add(
        cluster,
        quad(
          from,
          to,
          y(spot.start, spot.at),
          y(spot.start + spot.count, spot.at),
          y(spot.start, spot.at),
          y(spot.start + spot.count, spot.at),
        ),
      );
    if (k + 1 < rounds.length) flowing(flows[k], stack, places[k + 1], y, to, next, add);
  });
  for (const [cluster, d] of paths)
    chart.append(svg("path", { d, fill: cluster === small ? "var(--faint)" : colour(cluster), opacity: 0.85 }));
  const axis = svg(
    "g",
    { class: "axis", "aria-hidden": "true" },
    line(box.left, box.bottom + 6, box.right, box.bottom + 6, { class: "base" }),
  );
  for (const value of ticks(rounds[0], end, width / 90).filter(Number.isInteger))
    axis.append(
      text(Math.max(10, Math.min(width - 12, x(value))), box.bottom + 24, number(value), { "text-anchor": "middle" }),
    );
  axis.append(text(box.right, box.bottom + 40, "round", { "text-anchor": "end", class: "title" }));
  chart.append(axis);
  hoverable(chart, (px, py, event) => {
    const at = Math.max(
      0,
      rounds.findLastIndex((round) => x(round) <= px + 0.5),
    );
    const found = [...places[at]].find(
      ([, spot]) => py >= y(spot.start, spot.at) && py <= y(spot.start + spot.count, spot.at),
    );
    if (!found) return hideTip();
    const until = at + 1 < rounds.length ? rounds[at + 1] - 1 : last;
    const moved = at ? sum(flows[at - 1].filter(([from, to]) => from !== to).map((flow) => flow[2])) : 0;
    const when = until > rounds[at] ? `Rounds ${rounds[at]} to ${until}` : `Round ${rounds[at]}`;
    showTip(
      event,
      el("b", {}, when),
      tipTable([
        [swatched(found[0] === small ? -1 : found[0], bandName(run, found[0])), `${number(found[1].count)} clients`],
        ["moved in this change", number(moved)],
      ]),
    );
  });
  return chart;
}

const bandName = (run, cluster) =>
  cluster === run.bands.small ? "small clusters" : cluster >= run.names.length ? "a cluster that ended" : groupName(run, cluster);

function stacked(pairs) {
  const counts = new Map();
  for (const [cluster, n] of pairs) counts.set(cluster, (counts.get(cluster) ?? 0) + n);
  let start = 0;
  const order = [...counts].sort((a, b) => (a[0] < 0) - (b[0] < 0) || a[0] - b[0]);
  return new Map(order.map(([cluster, count], at) => [cluster, { start: (start += count) - count, count, at }]));
}

function quad(x1, x2, a1, b1, a2, b2) {
  const f = (value) => value.toFixed(1),
    m = f((x1 + x2) / 2);
  return `M${f(x1)},${f(a1)}C${m},${f(a1)} ${m},${f(a2)} ${f(x2)},${f(a2)}V${f(b2)}C${m},${f(b2)} ${m},${f(b1)} ${f(x1)},${f(b1)}Z`;
}

function flowing(step, before, after, y, from, to, add) {
  const left = new Map(),
    right = new Map();
  const rank = (cluster) => (cluster < 0 ? 99 : cluster);
  const arrivals = [...step].sort((a, b) => rank(a[1]) - rank(b[1]) || rank(a[0]) - rank(b[0]));
  const entry = new Map(
    arrivals.map(([a, b, n]) => {
      const start = right.get(b) ?? 0;
      right.set(b, start + n);
      return [`${a},${b}`, start];
    }),
  );
  for (const [a, b, n] of [...step].sort((p, q) => rank(p[0]) - rank(q[0]) || rank(p[1]) - rank(q[1]))) {
    const out = left.get(a) ?? 0,
      come = entry.get(`${a},${b}`),
      one = before.get(a),
      other = after.get(b);
    left.set(a, out + n);
    add(
      a,
      quad(
        from,
        to,
        y(one.start + out, one.at),
        y(one.start + out + n, one.at),
        y(other.start + come, other.at),
        y(other.start + come + n, other.at),
      ),
    );
  }
}
