// Helpers: DOM elements, numbers and times as text.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  ns.$ = (id) => document.getElementById(id);
  ns.el = (tag, text = "", cls = "") => { const made = document.createElement(tag); made.textContent = text; if (cls) made.className = cls; return made; };
  ns.svg = (tag, facts = {}, text) => { const made = document.createElementNS(SVG, tag); for (const [k, v] of Object.entries(facts)) made.setAttribute(k, v); if (text !== undefined) made.textContent = text; return made; };
  ns.row = (...cells) => { const made = ns.el("tr"); for (const each of cells) { const cell = ns.el("td"); cell.append(each ?? ""); made.append(cell); } return made; };
  ns.button = (text, key, act, cls = "link") => { const made = ns.el("button", text, cls); made.type = "button"; made.dataset.key = key; made.addEventListener("click", act); return made; };
  ns.at = (s) => (s ? new Date(1000 * s).toLocaleTimeString() : "");
  ns.took = (s) => (s < 1 ? `${Math.round(1000 * s)} ms` : `${s.toFixed(2)} s`);
  ns.size = (b) => (b < 1024 ? `${b} B` : b < 1 << 20 ? `${(b / 1024).toFixed(1)} KiB` : `${(b / (1 << 20)).toFixed(1)} MiB`);
  ns.count = (n) => Number(n).toLocaleString("en");
  ns.names = {}; // display names of subtasks; the demonstration sets them
  ns.taskName = (vertex, subtask) => ns.names[`${vertex.name} ${subtask}`] ?? `${vertex.name} ${subtask}`;
  ns.isNarrow = () => matchMedia("(max-width:520px)").matches;
  ns.known = (value) => (value === null || value === undefined ? "" : String(value));

  // Redraws an element only when its data changed, so that buttons keep their focus and texts their selection.
  const before = {};
  ns.fill = (id, data, build) => {
    const text = JSON.stringify(data);
    if (before[id] === text) return;
    before[id] = text;
    const focused = document.activeElement?.dataset?.key;
    ns.$(id).replaceChildren(...build());
    const heads = ns.$(id).matches("tbody") ? [...ns.$(id).parentNode.querySelectorAll("th")] : []; // a narrow window shows cells below each other
    for (const row of heads.length ? ns.$(id).rows : []) heads.forEach((head, at) => { if (row.cells[at]) row.cells[at].dataset.head = head.textContent; });
    if (focused && document.activeElement?.dataset?.key !== focused) for (const each of ns.$(id).querySelectorAll("[data-key]")) if (each.dataset.key === focused) each.focus({ preventScroll: true });
  };
})();
