// The signature map, and what is told of a client that is pointed at.
const groupName = (run, index) => (index < 0 ? "no cluster" : `cluster ${run.names[index] ?? "?"}`);

function clientTip(run, client) {
  const rows = [];
  if (run.found) rows.push(["found", swatched(run.found[client], groupName(run, run.found[client]))]);
  if (run.true_clusters)
    rows.push([
      "planted",
      swatched(run.true_clusters[client], run.true_clustersNames[client] < 0 ? "none" : `cluster ${run.true_clustersNames[client]}`),
    ]);
  if (run.accuracy[client] !== null) rows.push(["accuracy", `${fixed(run.accuracy[client] / 100)} %`]);
  if (run.rows.length) rows.push(["training rows", number(run.rows[client])]);
  rows.push(["role", run.roles.words[run.roles.of[client]]]);
  return [el("b", {}, `Client ${client}`), tipTable(rows)];
}

// ---- the map, twice: by found and by planted cluster; pointing at one points at both

function drawMap(run, which, width, both) {
  const size = Math.min(width, 540),
    { clients, xy } = run.map,
    pad = 18;
  const ys = xy.filter((_, i) => i % 2),
    tall = Math.round(Math.max(size * 0.5, (size - 2 * pad) * (Math.max(...ys) - Math.min(...ys)) + 2 * pad));
  const [node, pen] = canvas(size, tall, `Signature map of ${clients.length} clients, coloured by ${which} cluster`);
  const at = (i) => [pad + xy[2 * i] * (size - 2 * pad), tall / 2 - (xy[2 * i + 1] - 0.5) * (size - 2 * pad)];
  const colours = run[which] ?? run.accuracy.map(() => -1),
    r = clients.length > 1500 ? 2.4 : clients.length > 300 ? 3.4 : 5.2;
  const paints = Array.from({ length: COLOURS }, (_, i) => paint(i)),
    none = paint(-1),
    rim = css("--paper"),
    ink = css("--ink");
  const draw = (chosen = null) => {
    pen.clearRect(0, 0, size, tall);
    const kin = chosen === null ? null : colours[clients[chosen]];
    for (let i = 0; i < clients.length; i++) {
      const cluster = colours[clients[i]],
        [x, y] = at(i);
      pen.globalAlpha = kin === null || cluster === kin ? 0.9 : 0.16;
      pen.fillStyle = cluster < 0 ? none : paints[cluster % COLOURS];
      mark(pen, shapeOf(cluster), x, y, r);
      pen.fill();
      if (r > 3) {
        pen.strokeStyle = rim;
        pen.lineWidth = 1;
        pen.stroke();
      }
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
  hoverable(
    node,
    (px, py, event) => {
      let best = null,
        least = 18 ** 2;
      for (let i = 0; i < clients.length; i++) {
        const [x, y] = at(i),
          far = (x - px) ** 2 + (y - py) ** 2;
        if (far < least) [best, least] = [i, far];
      }
      if (best !== last) point((last = best));
      best === null ? hideTip() : showTip(event, ...clientTip(run, clients[best]));
    },
    () => point((last = null)),
  );
  return node;
}

function groupKeys(run) {
  const most = 24,
    sizes = run.names.map((_, i) => run.found.filter((cluster) => cluster === i).length);
  const keys = run.names
    .slice(0, most)
    .map((name, i) => el("li", {}, markIcon(i), `cluster ${name} (${number(sizes[i])})`));
  if (run.names.length > most) keys.push(el("li", {}, `and ${run.names.length - most} smaller ones`));
  return el("ul", { class: "keys", "aria-label": "found clusters and how many clients are in each" }, ...keys);
}
