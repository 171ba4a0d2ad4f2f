"use strict";
// Saves a chart as SVG or PNG, or a table as CSV, as it is displayed. Nothing is loaded.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const isSeen = (each) => each.getClientRects().length > 0;

  const save = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const named = (root, kind) => {
    const head = root.closest("section, figure")?.querySelector("h2, h3")?.textContent ?? document.title;
    const own = root.querySelector("h3, caption")?.textContent ?? "";
    const words = head === own ? head : `${head} ${own}`;
    return `${words.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80)}.${kind}`;
  };

  // A self-contained copy without hidden parts, with the page's style sheet inside.
  const alone = (svg) => {
    const copy = svg.cloneNode(true);
    for (const each of all(".out, .off, .hit, .cursor", copy)) each.remove();
    copy.classList.remove("focus");
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    const root = getComputedStyle(document.documentElement);
    const colours = ["--card", "--ink", "--soft", "--rule", "--grid", ...Array.from({ length: 8 }, (_, hue) => `--h${hue}`)];
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.setAttribute("style", colours.map((name) => `${name}:${root.getPropertyValue(name)}`).join(";"));
    copy.setAttribute("font-family", "system-ui, sans-serif");
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = all("style").map((each) => each.textContent).join("").match(/[^{}]*(svg|\.h\d)[^{}]*\{[^{}]*\}/g).join("");
    const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width, height, fill: root.getPropertyValue("--card") })) paper.setAttribute(name, value);
    copy.prepend(style, paper);
    return { text: new XMLSerializer().serializeToString(copy), width: Number(width), height: Number(height) };
  };
  const shown = (root) => all("svg", root).find((svg) => svg.hasAttribute("viewBox") && !svg.closest(".swatch") && isSeen(svg));

  const asSvg = (root) => save(new Blob([alone(shown(root)).text], { type: "image/svg+xml" }), named(root, "svg"));
  const asPng = async (root) => {
    const { text, width, height } = alone(shown(root));
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, named(root, "png")), "image/png");
  };
  const asCsv = (table) => {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const cell = (each) => quoted((each.dataset.v ?? each.textContent).trim());
    const rows = all("tr", table).filter((row) => !row.classList.contains("out"));
    const lines = rows.map((row) => [...row.cells].filter((each) => !each.classList.contains("out")).map(cell).join(","));
    save(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), named(table, "csv"));
  };

  const buttons = (place, choices) => {
    const box = document.createElement("div");
    box.className = "export";
    for (const [label, hint, act] of choices) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.title = hint;
      button.addEventListener("click", act);
      box.append(button);
    }
    place.append(box);
  };
  for (const root of all("figure, .charts > fieldset")) {
    if (!root.querySelector("svg .line, svg .pt")) continue;
    buttons(root, [
      ["SVG", "Save this chart as it is shown", () => asSvg(root)],
      ["PNG", "Save a picture of this chart", () => asPng(root)],
    ]);
  }
  for (const table of all("table.sortable, table.heat")) {
    buttons(table.closest(".map") ?? table.closest(".scroll").parentElement, [["CSV", "Save the rows that are shown", () => asCsv(table)]]);
  }
  document.documentElement.dataset.exports = String(all(".export button").length);
})();
