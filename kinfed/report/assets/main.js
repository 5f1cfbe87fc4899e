// The page: which picture goes where, theme, print.
const byId = (id) => document.getElementById(id);

function theme(name) {
  root.dataset.theme = name;
  byId("theme").setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
  byId("theme").textContent = name === "dark" ? "☀" : "☾";
}

const system = matchMedia("(prefers-color-scheme: dark)");
theme(system.matches ? "dark" : "light");
system.addEventListener("change", () => {
  theme(system.matches ? "dark" : "light");
  redraw();
});
byId("theme").addEventListener("click", () => {
  theme(root.dataset.theme === "dark" ? "light" : "dark");
  redraw();
});

let before = null;
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  printing = true;
  theme("light");
  document.querySelectorAll("details").forEach((details) => {
    details.open = true;
  });
  redraw();
});
addEventListener("afterprint", () => {
  printing = false;
  theme(before);
  redraw();
});

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".legend").forEach(legend);

let metric = data.metrics[0];
if (data.metrics.length > 1) {
  chooser(
    byId("metrics"),
    "metric",
    data.metrics.map((one) => one.title),
    0,
    (at) => {
      metric = data.metrics[at];
      drawn.get(byId("curves")).again();
    },
  );
}
plot(byId("curves"), (width) => drawCurves(metric, "x", width));
plot(byId("cost-curves"), (width) => drawCurves(data.metrics[0], "mb", width));
plot(byId("spreads"), drawSpreads);

// ---- one run, looked at closely

function show(id, wanted, words) {
  const figure = byId(id);
  figure.querySelectorAll(".chart, .pair").forEach((node) => {
    node.hidden = !wanted;
  });
  const empty = figure.querySelector(".empty");
  empty.hidden = Boolean(wanted);
  empty.textContent = words;
  return Boolean(wanted);
}

function look(run) {
  const name = data.series[run.series].name;
  const written = (words) => (run.ended ? words : `${name} has not ended yet: this is written at the end of a run.`);
  const key = byId("map-keys");
  key.replaceChildren();
  if (
    show(
      "map",
      run.map,
      written(
        `No signatures of ${name} were written. Methods that describe their clients (flt, repa) write them; the others do with evaluation.signatures=all, which lets every client train once more at the end.`,
      ),
    )
  ) {
    byId("map-way").textContent = run.map.way;
    const both = {},
      ways = ["found", "planted"].filter((way) => run[way]);
    for (const way of ["found", "planted"]) byId(`map-${way}`).parentElement.hidden = ways.length > 0 && !run[way];
    for (const way of ways.length ? ways : ["found"])
      plot(byId(`map-${way}`), (width) => drawMap(run, way, width, both));
    if (run.found) key.append(groupKeys(run));
  }
  if (show("matrix", run.matrix, written(`${name} relates no clients to each other: there is no matrix to show.`))) {
    for (const when of ["before", "after"]) plot(byId(`matrix-${when}`), (width) => drawMatrix(run, when, width));
  }
  if (
    show(
      "tree",
      run.tree,
      written(
        `${name} does not find its clusters by merging clients, or there are too many to compare all pairs: there is no tree.`,
      ),
    )
  )
    plot(byId("tree-chart"), (width) => drawTree(run, width));
  if (
    show(
      "labels",
      run.labels,
      written("This run does not know which labels its clients hold: their rows are elsewhere."),
    )
  )
    plot(byId("labels-chart"), (width) => drawLabels(run, width));
  const once = run.found
    ? `${name} found its clusters once, and they stayed as they were.`
    : `${name} looks for no clusters.`;
  if (show("bands", run.bands, once)) plot(byId("bands-chart"), (width) => drawBands(run, width));
  if (run.found) groupTable(byId("clusters"), run);
  else
    byId("clusters").replaceChildren(
      el("p", { class: "empty" }, `${name} looks for no clusters: there is nothing to list.`),
    );
}

function pick(container, label, runs, chosen, choose) {
  if (runs.length < 2) {
    if (runs.length) choose(0);
    return;
  }
  if (runs.length <= 8) chooser(container, label, runs.map(runName), chosen, choose);
  else {
    const select = el(
      "select",
      { "aria-label": label },
      ...runs.map((run, at) => el("option", { value: at, ...(at === chosen ? { selected: "" } : {}) }, runName(run))),
    );
    select.addEventListener("change", () => choose(Number(select.value)));
    container.append(el("label", { class: "field" }, "Run", select));
  }
  choose(chosen);
}

const kin = data.runs.filter((run) => run.found || run.map || run.matrix);
if (byId("kin-runs")) {
  const most = (run) => [run.map, run.matrix, run.tree, run.bands].filter(Boolean).length;
  const first = kin.reduce((best, run, at) => (most(run) > most(kin[best]) ? at : best), 0);
  pick(byId("kin-runs"), "run", kin, first, (at) => look(kin[at]));
}
pick(byId("client-runs"), "run", data.runs, 0, (at) => clientTable(byId("client-table"), data.runs[at]));
root.dataset.ready = "true";
