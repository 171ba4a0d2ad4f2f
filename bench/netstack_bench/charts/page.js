"use strict";
// The page is complete without this script, which adds tooltips, switching of lines, sorting, and keyboard navigation
// through marks. Nothing is loaded.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const show = (point) => {
    tip.textContent = point.dataset.tooltip;
    tip.hidden = false;
    const box = point.querySelector(".m").getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), width - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 12;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(above > 4 ? above : box.bottom + 12) + window.scrollY}px`;
    light(point.closest(".series")?.dataset.series ?? null); // a column of all lines belongs to none
  };
  const hide = () => {
    tip.hidden = true;
    light(null);
  };
  const light = (number) => {
    for (const svg of all(".charts svg")) {
      svg.classList.toggle("focus", number !== null && svg.querySelector(`[data-series="${number}"]`) !== null);
      for (const each of all("[data-series]", svg)) each.classList.toggle("on", each.dataset.series === number);
    }
  };
  for (const point of all(".pt")) {
    point.querySelector("title")?.remove(); // the browser's own tooltip is slower, and would cover ours
    point.addEventListener("pointerenter", () => show(point));
    point.addEventListener("pointerleave", hide);
    point.addEventListener("focus", () => show(point));
    point.addEventListener("blur", hide);
  }

  // One stop of the Tab key for all marks of a chart, and for all buttons of a legend; arrows go from one to the next.
  const isThere = (each) => !each.closest(".out, .off") && each.getClientRects().length > 0;
  const rove = (root, selector) => {
    const members = all(selector, root);
    const stop = (at) => {
      for (const each of members) each.setAttribute("tabindex", each === at ? "0" : "-1");
    };
    root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const shown = members.filter(isThere);
      const now = shown.indexOf(document.activeElement.closest(selector));
      if (!step || now < 0) return;
      event.preventDefault();
      const next = shown[(now + step + shown.length) % shown.length];
      stop(next);
      next.focus();
    });
    return () => stop(members.find((each) => each.getAttribute("tabindex") === "0" && isThere(each)) ?? members.find(isThere));
  };
  const stops = [
    ...all("main svg").filter((svg) => svg.querySelector(".pt")).map((svg) => rove(svg, ".pt")),
    ...all(".legend").map((legend) => rove(legend, "button")),
  ];
  const restop = () => stops.forEach((stop) => stop());
  document.addEventListener("shown", restop); // the choice of settings has changed
  document.addEventListener("toggle", restop, true);
  document.addEventListener("change", restop);

  for (const button of all(".legend button")) {
    const number = button.dataset.series;
    button.disabled = false;
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const twin of all(`.legend [data-series="${number}"]`)) twin.setAttribute("aria-pressed", String(on));
      light(null);
      for (const each of all(`.charts [data-series="${number}"]`)) each.classList.toggle("off", !on);
    });
    button.addEventListener("pointerenter", () => {
      if (button.getAttribute("aria-pressed") === "true") light(number);
    });
    button.addEventListener("pointerleave", () => light(null));
  }

  for (const table of all("table.sortable")) {
    for (const [column, head] of all("thead th", table).entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
        const compare = (a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === "" || y === "") return (x === "") - (y === ""); // missing values are last in both directions
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        };
        table.tBodies[0].append(...all("tbody tr", table).sort(compare));
      });
    }
  }

  restop();
  // For tests in a real browser: the number of curves with a length, and that this line was reached.
  const curves = all(".charts .line").filter((line) => line.getTotalLength() > 0).length;
  document.documentElement.dataset.curves = String(curves);
  document.documentElement.dataset.script = "done";
})();
