// Small tools that all pictures share: elements, scales, ticks, colours, one tooltip, redrawing.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, words);
const line = (x1, y1, x2, y2, more = {}) => svg("line", { x1, y1, x2, y2, ...more });

// ---- numbers

function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });
}

const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

function megabytes(value) {
  if (value >= 1e6) return `${number(value / 1e6, 1)} TB`;
  return value >= 1000 ? `${number(value / 1000, 1)} GB` : `${number(value, value < 10 ? 2 : 1)} MB`;
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    found.push(+(at * step).toPrecision(12));
  return found;
}

// ---- colours and marks

let printing = false;
const root = document.documentElement;

function css(name) {
  return getComputedStyle(root).getPropertyValue(name).trim();
}

const colour = (index) => (index < 0 ? "var(--faint)" : `var(--c${index % COLOURS})`);
const paint = (index) => css(index < 0 ? "--faint" : `--c${index % COLOURS}`);
const dash = (index) => (index < COLOURS ? "none" : ["7 4", "2 4", "10 3 2 3"][(Math.floor(index / COLOURS) - 1) % 3]);

// Eight colours times six shapes: clusters stay apart without good eyes for colour.
function mark(pen, shape, x, y, r) {
  pen.beginPath();
  if (shape === 0) pen.arc(x, y, r, 0, 7);
  else {
    const corners = [[0], [4, 0.785], [3, -1.571], [4, 0], [3, 1.571], [6, 0]][shape];
    for (let i = 0; i < corners[0]; i++) {
      const angle = corners[1] + (i * 6.2832) / corners[0];
      pen.lineTo(x + 1.25 * r * Math.cos(angle), y + 1.25 * r * Math.sin(angle));
    }
    pen.closePath();
  }
}

const shapeOf = (index) => (index < 0 ? 0 : Math.floor(index / COLOURS) % 6);

function markIcon(index, size = 12) {
  const icon = el("canvas", {
    width: 2 * size,
    height: 2 * size,
    style: `width:${size}px;height:${size}px`,
    "aria-hidden": "true",
  });
  const pen = icon.getContext("2d");
  pen.fillStyle = paint(index);
  mark(pen, shapeOf(index), size, size, size * 0.72);
  pen.fill();
  return icon;
}

function lineIcon(index) {
  return svg(
    "svg",
    { width: 20, height: 8, "aria-hidden": "true" },
    line(1, 4, 19, 4, {
      stroke: colour(index),
      "stroke-width": 3,
      "stroke-linecap": "round",
      "stroke-dasharray": dash(index),
    }),
  );
}

// ---- tooltip

const tip = el("div", { class: "tip", role: "status", hidden: "" });
document.body.append(tip);

function showTip(event, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
  tip.style.left = `${Math.max(6, Math.min(left, innerWidth - box.width - 6))}px`;
  tip.style.top = `${Math.max(6, Math.min(event.clientY - box.height / 2, innerHeight - box.height - 6))}px`;
}

function hideTip() {
  tip.hidden = true;
}

function tipTable(rows) {
  return el("table", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell)))));
}

function swatched(index, words) {
  return el("span", {}, el("span", { class: "swatch", style: `background:${colour(index)}` }), words);
}

function hoverable(node, moved, left = () => {}) {
  const at = (event) => {
    const box = node.getBoundingClientRect();
    const factor = (node.viewBox?.baseVal?.width || box.width) / box.width;
    moved((event.clientX - box.left) * factor, (event.clientY - box.top) * factor, event);
  };
  node.addEventListener("pointermove", at);
  node.addEventListener("pointerdown", at);
  node.addEventListener("pointerleave", () => {
    hideTip();
    left();
  });
}

// ---- redrawing: by width, by theme, for print

const drawn = new Map();

function plot(container, draw) {
  if (!container) return;
  const again = () => {
    const width = Math.floor(container.clientWidth);
    if (width > 0) container.replaceChildren(...[draw(width, container)].flat().filter(Boolean));
  };
  drawn.set(container, { again, width: container.clientWidth });
  again();
  watcher.observe(container);
}

const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const known = drawn.get(target);
    if (known && known.width !== target.clientWidth) {
      known.width = target.clientWidth;
      known.again();
    }
  }
});

const redraw = () => drawn.forEach(({ again }) => again());

function canvas(width, height, label) {
  const ratio = printing ? 2 : Math.max(1, devicePixelRatio || 1);
  const node = el("canvas", {
    width: Math.round(width * ratio),
    height: Math.round(height * ratio),
    role: "img",
    "aria-label": label,
    style: `width:${width}px;height:auto`,
  });
  const pen = node.getContext("2d");
  pen.scale(ratio, ratio);
  return [node, pen];
}

function frame(width, height, label) {
  return svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": label,
    style: "max-width:100%;height:auto",
  });
}

const widest = (words) => 7 * Math.max(...words.map((word) => word.length));

function bytes(encoded) {
  return Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
}

function rgb(name) {
  const probe = el("canvas", { width: 1, height: 1 }).getContext("2d");
  probe.fillStyle = css(name);
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

// Shares as a picture of columns by rows, from the paper's colour to the ink's.
function heat(values, columns, rows) {
  const low = rgb("--ramp-0"),
    high = rgb("--ramp-1");
  const picture = el("canvas", { width: columns, height: rows });
  const pen = picture.getContext("2d"),
    image = pen.createImageData(columns, rows);
  for (let i = 0; i < values.length; i++) {
    const share = values[i] / 255;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = low[c] + share * (high[c] - low[c]);
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return picture;
}
