// What a method found out about its clients: map, matrix, tree, labels, groups over rounds.
const groupName = (run, index) => (index < 0 ? "no group" : `group ${run.names[index] ?? "?"}`);

function clientTip(run, client) {
  const rows = [];
  if (run.found) rows.push(["found", swatched(run.found[client], groupName(run, run.found[client]))]);
  if (run.planted) rows.push(["planted", swatched(run.planted[client], run.plantedNames[client] < 0 ? "none" : `group ${run.plantedNames[client]}`)]);
  if (run.accuracy[client] !== null) rows.push(["accuracy", `${fixed(run.accuracy[client] / 100)} %`]);
  if (run.rows.length) rows.push(["training rows", number(run.rows[client])]);
  rows.push(["role", run.roles.words[run.roles.of[client]]]);
  return [el("b", {}, `Client ${client}`), tipTable(rows)];
}

// ---- the map, twice: by found and by planted group; pointing at one points at both

function drawMap(run, which, width, both) {
  const size = Math.min(width, 540), { clients, xy } = run.map, pad = 18;
  const ys = xy.filter((_, i) => i % 2), tall = Math.round(Math.max(size * 0.5, (size - 2 * pad) * (Math.max(...ys) - Math.min(...ys)) + 2 * pad));
  const [node, pen] = canvas(size, tall, `Signature map of ${clients.length} clients, coloured by ${which} group`);
  const at = (i) => [pad + xy[2 * i] * (size - 2 * pad), tall / 2 - (xy[2 * i + 1] - 0.5) * (size - 2 * pad)];
  const colours = run[which] ?? run.accuracy.map(() => -1), r = clients.length > 1500 ? 2.4 : clients.length > 300 ? 3.4 : 5.2;
  const paints = Array.from({ length: COLOURS }, (_, i) => paint(i)), none = paint(-1), rim = css("--paper"), ink = css("--ink");
  const draw = (chosen = null) => {
    pen.clearRect(0, 0, size, tall);
    const kin = chosen === null ? null : colours[clients[chosen]];
    for (let i = 0; i < clients.length; i++) {
      const group = colours[clients[i]], [x, y] = at(i);
      pen.globalAlpha = kin === null || group === kin ? 0.9 : 0.16;
      pen.fillStyle = group < 0 ? none : paints[group % COLOURS];
      mark(pen, shapeOf(group), x, y, r);
      pen.fill();
      if (r > 3) { pen.strokeStyle = rim; pen.lineWidth = 1; pen.stroke(); }
    }
    pen.globalAlpha = 1;
    if (chosen === null) return;
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    mark(pen, 0, ...at(chosen), r + 4);
    pen.stroke();
  };
  draw();
  both[which] = draw;
  const point = (chosen) => Object.values(both).forEach((other) => other(chosen));
  let last = null;
  hoverable(node, (px, py, event) => {
    let best = null, least = 18 ** 2;
    for (let i = 0; i < clients.length; i++) {
      const [x, y] = at(i), far = (x - px) ** 2 + (y - py) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    if (best !== last) point(last = best);
    best === null ? hideTip() : showTip(event, ...clientTip(run, clients[best]));
  }, () => point(last = null));
  return node;
}

function groupKeys(run) {
  const most = 24, sizes = run.names.map((_, i) => run.found.filter((group) => group === i).length);
  const keys = run.names.slice(0, most).map((name, i) => el("li", {}, markIcon(i), `group ${name} (${number(sizes[i])})`));
  if (run.names.length > most) keys.push(el("li", {}, `and ${run.names.length - most} smaller ones`));
  return el("ul", { class: "keys", "aria-label": "found groups and how many clients are in each" }, ...keys);
}

// ---- the matrix, before and after

function drawMatrix(run, when, width) {
  const { edges, order } = run.matrix, cells = edges.length - 1, values = bytes(run.matrix[when]);
  const strip = when === "after" && run.found ? 10 : 0, size = Math.min(width, 440), side = size - strip;
  const [node, pen] = canvas(size, size, `Related-clients matrix ${when === "after" ? "with kin put together" : "in the clients' own order"}`);
  pen.imageSmoothingEnabled = cells > side;
  pen.drawImage(heat(values, cells, cells), strip, strip, side, side);
  const place = (c) => (when === "after" ? order[edges[c]] : edges[c]);
  if (strip) {
    for (let c = 0; c < cells; c++) {
      pen.fillStyle = paint(run.found[place(c)]);
      const from = strip + (c * side) / cells, wide = side / cells + 0.6;
      pen.fillRect(from, 0, wide, strip - 3);
      pen.fillRect(0, from, strip - 3, wide);
    }
  }
  const named = (c) => {
    const many = edges[c + 1] - edges[c], first = place(c);
    const who = many === 1 ? `client ${first}` : when === "after" ? `${many} clients of ${run.found ? groupName(run, run.found[first]) : "the order"}` : `clients ${first} to ${first + many - 1}`;
    return many === 1 && run.found ? `${who} (${groupName(run, run.found[first])})` : who;
  };
  hoverable(node, (px, py, event) => {
    const column = Math.floor(((px - strip) / side) * cells), row = Math.floor(((py - strip) / side) * cells);
    if (column < 0 || row < 0 || column >= cells || row >= cells) return hideTip();
    const share = values[row * cells + column] / 255, single = edges.at(-1) === cells;
    const said = single ? (share > 0.5 ? "is related to" : "is not related to") : `${fixed(100 * share, 0)} % of pairs related:`;
    showTip(event, ...(single ? [`${named(row)} ${said} ${named(column)}`] : [el("b", {}, said), el("br"), `${named(row)}, ${named(column)}`]));
  });
  return node;
}

// ---- the tree and its cut

function drawTree(run, width) {
  const { members, left, right, low_left, low_right, heights, colours, cut } = run.tree;
  const height = Math.round(Math.min(380, Math.max(240, width * 0.36))), top = Math.max(...heights, cut ?? 0) * 1.04 || 1;
  const ys = ticks(0, top, 4).map((value) => [value, number(value, 4)]);
  const box = { left: widest(ys.map((tick) => tick[1])) + 12, right: width - 8, top: 26, bottom: height - 34 };
  const x = scale(-0.5, members.length - 0.5, box.left, box.right), y = scale(0, top, box.bottom, box.top);
  const chart = frame(width, height, `Dendrogram of ${members.length} clients, ${cut === null ? "not cut" : `cut at ${number(cut, 4)}`}, ${run.names.length} groups`);
  const axis = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const [value, words] of ys) axis.append(line(box.left, y(value), box.right, y(value)), text(box.left - 8, y(value) + 4, words, { "text-anchor": "end" }));
  axis.append(text(0, 12, "height of the merge", { class: "title" }), text(box.right, box.bottom + 28, "clients", { "text-anchor": "end", class: "title" }));
  chart.append(axis);
  const paths = new Map();
  const f = (value) => value.toFixed(1);
  heights.forEach((merge, i) => {
    const piece = `M${f(x(left[i]))},${f(y(low_left[i]))}V${f(y(merge))}H${f(x(right[i]))}V${f(y(low_right[i]))}`;
    paths.set(colours[i], (paths.get(colours[i]) ?? "") + piece);
  });
  for (const [group, d] of [...paths].sort((a, b) => a[0] - b[0])) chart.append(svg("path", { d, fill: "none", stroke: group < 0 ? "var(--muted)" : colour(group), "stroke-width": members.length > 400 ? 0.8 : 1.5 }));
  const wide = (box.right - box.left) / members.length;
  members.forEach((client, i) => chart.append(svg("rect", { x: f(x(i) - wide / 2), y: box.bottom + 3, width: f(wide + 0.3), height: 6, fill: colour(run.found[client]) })));
  if (cut !== null) {
    // A merge at the cut is not made: where one is, the line is drawn below it.
    const below = Math.max(0, ...heights.filter((merge) => merge < cut)), on = heights.includes(cut), at = y(on ? (below + cut) / 2 : cut);
    chart.append(line(box.left, at, box.right, at, { class: "cut" }));
    chart.append(text(box.right, at - 6, `cut ${on ? "below" : "at"} ${number(cut, 3)}: ${run.names.length} groups`, { class: "note", "text-anchor": "end" }));
  } else chart.append(text(box.right, box.top - 4, "no cut was worth making: one group", { class: "note", "text-anchor": "end" }));
  hoverable(chart, (px, py, event) => {
    const at = Math.round(((px - box.left) / (box.right - box.left)) * members.length - 0.5);
    at < 0 || at >= members.length ? hideTip() : showTip(event, ...clientTip(run, members[at]));
  });
  return chart;
}

// ---- labels of clients, kin together

function drawLabels(run, width) {
  const { image, count, edges, order } = run.labels, columns = edges.length - 1, values = bytes(image);
  const most = values.reduce((a, b) => Math.max(a, b), 1);
  const left = 34, top = run.found || run.planted ? 12 : 0, cell = Math.max(6, Math.min(22, 360 / count));
  const side = width - left, tall = cell * count;
  const [node, pen] = canvas(width, top + tall + 22, `Shares of ${count} labels among the rows of ${order.length} clients`);
  pen.imageSmoothingEnabled = columns > side;
  pen.drawImage(heat(values.map((value) => (255 * value) / most), columns, count), left, top, side, tall);
  const colours = run.found ?? run.planted;
  if (colours) for (let c = 0; c < columns; c++) {
    pen.fillStyle = paint(colours[order[edges[c]]]);
    pen.fillRect(left + (c * side) / columns, 0, side / columns + 0.6, top - 4);
    if (c && colours[order[edges[c]]] !== colours[order[edges[c - 1]]] && columns / run.names.length > 3) {
      pen.fillStyle = css("--paper");
      pen.fillRect(left + (c * side) / columns - 0.75, top, 1.5, tall);
    }
  }
  pen.fillStyle = css("--muted");
  pen.font = `12px ${css("--sans")}`;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const step = Math.ceil(14 / cell);
  for (let label = 0; label < count; label += step) pen.fillText(label, left - 8, top + (label + 0.5) * cell);
  pen.textBaseline = "top";
  pen.fillText(`clients, ${run.found ? "by found group" : run.planted ? "by planted group" : "by number"}`, width, top + tall + 6);
  hoverable(node, (px, py, event) => {
    const column = Math.floor(((px - left) / side) * columns), label = Math.floor((py - top) / cell);
    if (column < 0 || column >= columns || label < 0 || label >= count) return hideTip();
    const many = edges[column + 1] - edges[column], client = order[edges[column]];
    const share = `${fixed((100 * values[label * columns + column]) / 255, 0)} % of the rows`;
    if (many === 1) showTip(event, ...clientTip(run, client), tipTable([[`label ${label}`, share]]));
    else showTip(event, el("b", {}, `${many} clients${run.found ? ` of ${groupName(run, run.found[client])}` : ""}`), tipTable([[`label ${label}`, share]]));
  });
  return node;
}

// ---- groups over rounds

function drawBands(run, width) {
  const { rounds, last, flows, small } = run.bands, height = 320;
  const box = { left: 4, right: width - 4, top: 8, bottom: height - 42 };
  const end = Math.max(last, rounds.at(-1) + 1), x = scale(rounds[0], end, box.left, box.right);
  const clients = sum(flows[0].map((flow) => flow[2]));
  const places = [flows[0].map(([from, , n]) => [from, n]), ...flows.map((step) => step.map(([, to, n]) => [to, n]))].map(stacked);
  const most = Math.max(...places.map((stack) => stack.size - 1)), gap = Math.min(4, 60 / Math.max(1, most));
  const y = (people, before) => box.top + (people / clients) * (box.bottom - box.top - gap * most) + gap * before;
  const chart = frame(width, height, `Groups over rounds: ${run.bands.changes} changes, ${places.at(-1).size} bands at the end`);
  const paths = new Map();
  const add = (group, d) => paths.set(group, (paths.get(group) ?? "") + d);
  places.forEach((stack, k) => {
    const from = x(rounds[k]), next = x(rounds[k + 1] ?? end);
    const to = k + 1 < rounds.length ? Math.max(from, Math.min(x(rounds[k + 1] - 1), next - Math.min(28, 0.6 * (next - from)))) : next;
    for (const [group, spot] of stack) add(group, quad(from, to, y(spot.start, spot.at), y(spot.start + spot.count, spot.at), y(spot.start, spot.at), y(spot.start + spot.count, spot.at)));
    if (k + 1 < rounds.length) flowing(flows[k], stack, places[k + 1], y, to, next, add);
  });
  for (const [group, d] of paths) chart.append(svg("path", { d, fill: group === small ? "var(--faint)" : colour(group), opacity: 0.85 }));
  const axis = svg("g", { class: "axis", "aria-hidden": "true" }, line(box.left, box.bottom + 6, box.right, box.bottom + 6, { class: "base" }));
  for (const value of ticks(rounds[0], end, width / 90).filter(Number.isInteger)) axis.append(text(Math.max(10, Math.min(width - 12, x(value))), box.bottom + 24, number(value), { "text-anchor": "middle" }));
  axis.append(text(box.right, box.bottom + 40, "round", { "text-anchor": "end", class: "title" }));
  chart.append(axis);
  hoverable(chart, (px, py, event) => {
    const at = Math.max(0, rounds.findLastIndex((round) => x(round) <= px + 0.5));
    const found = [...places[at]].find(([, spot]) => py >= y(spot.start, spot.at) && py <= y(spot.start + spot.count, spot.at));
    if (!found) return hideTip();
    const until = at + 1 < rounds.length ? rounds[at + 1] - 1 : last;
    const moved = at ? sum(flows[at - 1].filter(([from, to]) => from !== to).map((flow) => flow[2])) : 0;
    const when = until > rounds[at] ? `Rounds ${rounds[at]} to ${until}` : `Round ${rounds[at]}`;
    showTip(event, el("b", {}, when), tipTable([[swatched(found[0] === small ? -1 : found[0], bandName(run, found[0])), `${number(found[1].count)} clients`], ["moved in this change", number(moved)]]));
  });
  return chart;
}

const bandName = (run, group) => (group === run.bands.small ? "small groups" : group >= run.names.length ? "a group that ended" : groupName(run, group));

function stacked(pairs) {
  const counts = new Map();
  for (const [group, n] of pairs) counts.set(group, (counts.get(group) ?? 0) + n);
  let start = 0;
  const order = [...counts].sort((a, b) => (a[0] < 0) - (b[0] < 0) || a[0] - b[0]);
  return new Map(order.map(([group, count], at) => [group, { start: (start += count) - count, count, at }]));
}

function quad(x1, x2, a1, b1, a2, b2) {
  const f = (value) => value.toFixed(1), m = f((x1 + x2) / 2);
  return `M${f(x1)},${f(a1)}C${m},${f(a1)} ${m},${f(a2)} ${f(x2)},${f(a2)}V${f(b2)}C${m},${f(b2)} ${m},${f(b1)} ${f(x1)},${f(b1)}Z`;
}

function flowing(step, before, after, y, from, to, add) {
  const left = new Map(), right = new Map();
  const rank = (group) => (group < 0 ? 99 : group);
  const arrivals = [...step].sort((a, b) => rank(a[1]) - rank(b[1]) || rank(a[0]) - rank(b[0]));
  const entry = new Map(arrivals.map(([a, b, n]) => {
    const start = right.get(b) ?? 0;
    right.set(b, start + n);
    return [`${a},${b}`, start];
  }));
  for (const [a, b, n] of [...step].sort((p, q) => rank(p[0]) - rank(q[0]) || rank(p[1]) - rank(q[1]))) {
    const out = left.get(a) ?? 0, come = entry.get(`${a},${b}`), one = before.get(a), other = after.get(b);
    left.set(a, out + n);
    add(a, quad(from, to, y(one.start + out, one.at), y(one.start + out + n, one.at), y(other.start + come, other.at), y(other.start + come + n, other.at)));
  }
}
