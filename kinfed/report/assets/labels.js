// Labels of clients, kin together.
function drawLabels(run, width) {
  const { image, count, edges, order } = run.labels,
    columns = edges.length - 1,
    values = bytes(image);
  const most = values.reduce((a, b) => Math.max(a, b), 1);
  const left = 34,
    top = run.found || run.true_clusters ? 12 : 0,
    cell = Math.max(6, Math.min(22, 360 / count));
  const side = width - left,
    tall = cell * count;
  const [node, pen] = canvas(
    width,
    top + tall + 22,
    `Shares of ${count} labels among the rows of ${order.length} clients`,
  );
  pen.imageSmoothingEnabled = columns > side;
  pen.drawImage(
    heat(
      values.map((value) => (255 * value) / most),
      columns,
      count,
    ),
    left,
    top,
    side,
    tall,
  );
  const colours = run.found ?? run.true_clusters;
  if (colours)
    for (let c = 0; c < columns; c++) {
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
  pen.fillText(
    `clients, ${run.found ? "by found cluster" : run.true_clusters ? "by planted cluster" : "by number"}`,
    width,
    top + tall + 6,
  );
  hoverable(node, (px, py, event) => {
    const column = Math.floor(((px - left) / side) * columns),
      label = Math.floor((py - top) / cell);
    if (column < 0 || column >= columns || label < 0 || label >= count) return hideTip();
    const many = edges[column + 1] - edges[column],
      client = order[edges[column]];
    const share = `${fixed((100 * values[label * columns + column]) / 255, 0)} % of the rows`;
    if (many === 1) showTip(event, ...clientTip(run, client), tipTable([[`label ${label}`, share]]));
    else
      showTip(
        event,
        el("b", {}, `${many} clients${run.found ? ` of ${groupName(run, run.found[client])}` : ""}`),
        tipTable([[`label ${label}`, share]]),
      );
  });
  return node;
}
