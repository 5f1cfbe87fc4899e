// Which methods are shown, and one choice of several.
const hidden = new Set();

function legend(container) {
  for (const [at, series] of data.series.entries()) {
    const chip = el("button", { class: "chip", type: "button", "aria-pressed": "true" }, lineIcon(at), series.name);
    chip.addEventListener("click", () => {
      hidden.has(at) ? hidden.delete(at) : hidden.add(at);
      document
        .querySelectorAll(`[data-series="${at}"]`)
        .forEach((other) => other.setAttribute("aria-pressed", String(!hidden.has(at))));
      redraw();
    });
    chip.dataset.series = at;
    container.append(chip);
  }
}

function chooser(container, label, options, chosen, choose) {
  const cluster = el("div", { role: "radiogroup", "aria-label": label, class: "controls", style: "margin:0" });
  const chips = options.map((words, at) => {
    const chip = el(
      "button",
      {
        class: "chip",
        type: "button",
        role: "radio",
        "aria-checked": String(at === chosen),
        tabindex: at === chosen ? 0 : -1,
      },
      words,
    );
    chip.addEventListener("click", () => take(at));
    return chip;
  });
  const take = (at) => {
    chips.forEach((chip, i) => {
      chip.setAttribute("aria-checked", String(i === at));
      chip.tabIndex = i === at ? 0 : -1;
    });
    choose(at);
  };
  cluster.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = (chips.indexOf(document.activeElement) + step + chips.length) % chips.length;
    chips[at].focus();
    take(at);
  });
  cluster.append(...chips);
  container.append(cluster);
}
