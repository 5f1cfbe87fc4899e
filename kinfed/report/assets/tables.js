// Tables that sort: those in the page, and long ones that are drawn a page at a time.
function sortable(table) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down =
        head.getAttribute("aria-sort") === "descending" ||
        (!head.hasAttribute("aria-sort") && head.classList.contains("text"));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [
        row.cells[column].dataset.value ?? row.cells[column].textContent,
        row,
      ]);
      rows.sort(([a], [b]) => compared(a, b, down ? 1 : -1));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

// What is missing comes last, whichever way the table is sorted.
function compared(a, b, way) {
  if (a === "" || b === "" || a === null || b === null) return (a === "" || a === null) - (b === "" || b === null);
  const both = Number(a) - Number(b);
  return way * (Number.isNaN(both) ? String(a).localeCompare(String(b), "en", { numeric: true }) : both);
}

function longTable(container, caption, columns, rows, size = 20) {
  let shown = rows,
    page = 0,
    sorted = null,
    way = 1;
  const body = el("tbody"),
    said = el("span"),
    back = el("button", { type: "button" }, "Back"),
    next = el("button", { type: "button" }, "Next");
  const heads = columns.map((column, at) => {
    const head = el(
      "th",
      { scope: "col", ...(column.text ? { class: "text" } : {}) },
      el("button", { type: "button" }, column.title),
    );
    head.firstChild.addEventListener("click", () => {
      way = sorted === at ? -way : column.text || column.title === "client" ? 1 : -1;
      sorted = at;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      shown = [...rows].sort((a, b) => compared(column.value(a), column.value(b), way));
      draw(0);
    });
    return head;
  });
  const draw = (to) => {
    page = Math.max(0, Math.min(to, Math.ceil(shown.length / size) - 1));
    const some = shown.slice(page * size, (page + 1) * size);
    body.replaceChildren(
      ...some.map((row) =>
        el(
          "tr",
          {},
          ...columns.map((column, at) =>
            el(at ? "td" : "th", at ? (column.text ? { class: "text" } : {}) : { scope: "row" }, column.show(row)),
          ),
        ),
      ),
    );
    said.textContent = `${number(page * size + 1)} to ${number(page * size + some.length)} of ${number(shown.length)}`;
    back.disabled = page === 0;
    next.disabled = (page + 1) * size >= shown.length;
  };
  back.addEventListener("click", () => draw(page - 1));
  next.addEventListener("click", () => draw(page + 1));
  const table = el(
    "table",
    { class: "data" },
    el("caption", {}, el("span", {}, caption)),
    el("thead", {}, el("tr", {}, ...heads)),
    body,
  );
  container.replaceChildren(
    el("div", { class: "scroll" }, table),
    ...(rows.length > size ? [el("div", { class: "pager" }, back, said, next)] : []),
  );
  draw(0);
}

function clientTable(container, run) {
  const columns = [
    { title: "client", value: (c) => c, show: (c) => String(c) },
    {
      title: "role",
      text: true,
      value: (c) => run.roles.words[run.roles.of[c]],
      show: (c) => run.roles.words[run.roles.of[c]] || "–",
    },
    run.found && {
      title: "found cluster",
      value: (c) => (run.found[c] < 0 ? null : run.names[run.found[c]]),
      show: (c) => (run.found[c] < 0 ? "–" : swatched(run.found[c], String(run.names[run.found[c]]))),
    },
    run.true_clusters && {
      title: "planted cluster",
      value: (c) => (run.true_clustersNames[c] < 0 ? null : run.true_clustersNames[c]),
      show: (c) => (run.true_clustersNames[c] < 0 ? "–" : swatched(run.true_clusters[c], String(run.true_clustersNames[c]))),
    },
    run.rows.length && { title: "training rows", value: (c) => run.rows[c] ?? null, show: (c) => number(run.rows[c]) },
    {
      title: "accuracy %",
      value: (c) => run.accuracy[c],
      show: (c) => (run.accuracy[c] === null ? "–" : fixed(run.accuracy[c] / 100)),
    },
  ].filter(Boolean);
  longTable(
    container,
    `Every client of ${runName(run)}`,
    columns,
    run.accuracy.map((_, client) => client),
  );
}

function groupTable(container, run) {
  const clusters = run.names.map((name, at) => {
    const members = run.found.flatMap((cluster, client) => (cluster === at ? [client] : []));
    const scored = members.map((client) => run.accuracy[client]).filter((value) => value !== null);
    const planted = run.true_clusters && mostCommon(members.map((client) => run.true_clustersNames[client]));
    return {
      at,
      name,
      members,
      mean: scored.length ? sum(scored) / scored.length / 100 : null,
      worst: scored.length ? scored.reduce((a, b) => Math.min(a, b)) / 100 : null,
      planted,
    };
  });
  const columns = [
    { title: "cluster", value: (g) => g.name, show: (g) => swatched(g.at, String(g.name)) },
    { title: "clients", value: (g) => g.members.length, show: (g) => number(g.members.length) },
    { title: "mean accuracy %", value: (g) => g.mean, show: (g) => fixed(g.mean) },
    { title: "worst client %", value: (g) => g.worst, show: (g) => fixed(g.worst) },
    run.true_clusters && {
      title: "mostly planted cluster",
      value: (g) => g.planted[0],
      show: (g) =>
        g.planted[0] < 0 ? "–" : `${g.planted[0]} (${fixed((100 * g.planted[1]) / g.members.length, 0)} %)`,
    },
  ].filter(Boolean);
  longTable(container, `Groups that ${runName(run)} found`, columns, clusters, 12);
}

function mostCommon(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best), [-1, 0]);
}

const runName = (run) => `${data.series[run.series].name}, seed ${run.seed}`;
