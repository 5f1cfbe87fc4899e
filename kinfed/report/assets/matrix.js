// Who is related to whom, before and after kin were put together.
function drawMatrix(run, when, width) {
  const { edges, order } = run.matrix,
    cells = edges.length - 1,
    values = bytes(run.matrix[when]);
  const strip = when === "after" && run.found ? 10 : 0,
    size = Math.min(width, 440),
    side = size - strip;
  const [node, pen] = canvas(
    size,
    size,
    `Related-clients matrix ${when === "after" ? "with kin put together" : "in the clients' own order"}`,
  );
  pen.imageSmoothingEnabled = cells > side;
  pen.drawImage(heat(values, cells, cells), strip, strip, side, side);
  const place = (c) => (when === "after" ? order[edges[c]] : edges[c]);
  if (strip) {
    for (let c = 0; c < cells; c++) {
      pen.fillStyle = paint(run.found[place(c)]);
      const from = strip + (c * side) / cells,
        wide = side / cells + 0.6;
      pen.fillRect(from, 0, wide, strip - 3);
      pen.fillRect(0, from, strip - 3, wide);
    }
  }
  const named = (c) => {
    const many = edges[c + 1] - edges[c],
      first = place(c);
    const who =
      many === 1
        ? `client ${first}`
        : when === "after"
          ? `${many} clients of ${run.found ? groupName(run, run.found[first]) : "the order"}`
          : `clients ${first} to ${first + many - 1}`;
    return many === 1 && run.found ? `${who} (${groupName(run, run.found[first])})` : who;
  };
  hoverable(node, (px, py, event) => {
    const column = Math.floor(((px - strip) / side) * cells),
      row = Math.floor(((py - strip) / side) * cells);
    if (column < 0 || row < 0 || column >= cells || row >= cells) return hideTip();
    const share = values[row * cells + column] / 255,
      single = edges.at(-1) === cells;
    const said = single
      ? share > 0.5
        ? "is related to"
        : "is not related to"
      : `${fixed(100 * share, 0)} % of pairs related:`;
    showTip(
      event,
      ...(single
        ? [`${named(row)} ${said} ${named(column)}`]
        : [el("b", {}, said), el("br"), `${named(row)}, ${named(column)}`]),
    );
  });
  return node;
}
