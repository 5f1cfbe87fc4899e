// Draws the charts of the page with vega-embed, sorts tables, switches runs, metrics and colours.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const drawn = new Map(); // slot -> what it shows

async function draw(slot, chart) {
  await new Promise((go) => setTimeout(go)); // the page answers between two charts
  if (drawn.get(slot) !== chart || !slot.clientWidth) return;
  slot.replaceChildren(...chart.panels.map(() => document.createElement("div")));
  for (const [at, panel] of chart.panels.entries()) {
    const box = slot.children[at];
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      ...fit(panel, box.clientWidth),
      datasets: chart.tables,
      width: "container",
      height: panel.usermeta?.square ? Math.min(panel.height, box.clientWidth) : panel.height,
      autosize: { type: "fit-x", contains: "padding" },
    };
    const options = {
      config: data.themes[root.dataset.theme],
      actions: { export: true, source: false, compiled: false, editor: false },
      renderer: slot.dataset.renderer ?? "canvas",
      tooltip: { theme: root.dataset.theme },
    };
    await vegaEmbed(box, spec, options);
    box.querySelector("summary").setAttribute("aria-label", "Save this chart");
  }
}

// A phone has no room for names beside curves. Zoomed, curves show the best methods.
function fit(panel, width) {
  if (!panel.layer) return panel;
  const close = byId("zoom").checked && panel.usermeta?.zoom?.x ? panel.usermeta.zoom : null;
  const zoom = (param) => (param.name === "zoom" && close ? { ...param, value: close } : param);
  const layers = panel.layer.filter((layer) => width >= 520 || layer.name !== "ends");
  return { ...panel, layer: layers.map((one) => (one.params ? { ...one, params: one.params.map(zoom) } : one)) };
}

// One chart after the other, in the order of the page.
let queue = Promise.resolve();
function plan(slot, chart) {
  drawn.set(slot, chart);
  delete root.dataset.drawn;
  const own = queue.then(() => draw(slot, chart));
  queue = own;
  own.then(() => {
    if (queue === own) root.dataset.drawn = "true"; // nobody waits behind it
  });
}

const redraw = () => drawn.forEach((chart, slot) => plan(slot, chart));

function useTheme(name) {
  root.dataset.theme = name;
  byId("theme").setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
  byId("theme").textContent = name === "dark" ? "☀" : "☾";
  redraw();
}

const system = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => useTheme(system.matches ? "dark" : "light");
system.addEventListener("change", systemTheme);
byId("theme").addEventListener("click", () => useTheme(root.dataset.theme === "dark" ? "light" : "dark"));
let before = "light";
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  for (const details of document.querySelectorAll("#settings details")) details.open = true;
  useTheme("light");
});
addEventListener("afterprint", () => useTheme(before));

// What is missing comes last, whichever way a table is sorted.
function order(a, b, way) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const difference = Number(a) - Number(b);
  return way * (Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference);
}

function makeSortable(table) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (!head.ariaSort && head.classList.contains("text"));
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((a, b) => order(value(a), value(b), up ? 1 : -1));
      table.tBodies[0].append(...rows);
    });
  });
}

function showTable(slot, id) {
  const template = byId(id);
  slot.replaceChildren(template.content.cloneNode(true));
  slot.querySelectorAll("table").forEach(makeSortable);
}

function showChart(figure, run, chart) {
  const [slot, empty] = [figure.querySelector(".chart"), figure.querySelector(".empty")];
  slot.hidden = !run[chart];
  empty.hidden = Boolean(run[chart]);
  empty.textContent = run.reasons[chart];
  if (run[chart]) plan(slot, run[chart]);
  else drawn.delete(slot);
}

const showClasses = (at) => showChart(document.querySelector("figure[data-classes]"), data.runs[at], "confusion");

function showRun(at) {
  const run = data.runs[at];
  for (const figure of document.querySelectorAll("figure[data-chart]")) showChart(figure, run, figure.dataset.chart);
  showTable(byId("cluster-table"), `clusters-${at}`);
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
systemTheme();
if (data.parameters) plan(byId("parameter-panels"), data.parameters);
plan(byId("curves"), data.metrics[0]);
plan(byId("spreads"), data.accuracies);
byId("metric").addEventListener("change", (event) => plan(byId("curves"), data.metrics[event.target.value]));
byId("zoom").addEventListener("change", () => [byId("curves"), byId("cost-curves")].forEach((slot) => plan(slot, drawn.get(slot))));
byId("class-run").addEventListener("change", (event) => showClasses(Number(event.target.value)));
byId("run").addEventListener("change", (event) => showRun(Number(event.target.value)));
byId("client-run").addEventListener("change", (event) => showTable(byId("client-table"), `clients-${event.target.value}`));
const most = data.runs.map((run) => Object.keys(run).length);
byId("run").value = most.indexOf(Math.max(...most));
showRun(Number(byId("run").value));
showClasses(0);
plan(byId("cost-curves"), data.cost);
showTable(byId("client-table"), "clients-0");
let width = innerWidth;
addEventListener("resize", () => {
  if (width !== innerWidth) redraw();
  width = innerWidth;
});
root.dataset.ready = "true";
