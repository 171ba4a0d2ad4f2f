"use strict";
// The filters: hide unchosen parts, and draw lines, frontiers and axes again for the visible marks. Also the fields that
// select one view of a section, and the values under the pointer in charts over time. Nothing is loaded.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const SVG = "http://www.w3.org/2000/svg";
  const isGone = (element) => element.closest(".out, .off") !== null;
  const drawn = (point) => ["cx", "cy"].map((name) => Number(point.querySelector(".hit").getAttribute(name)));
  const spot = (point) => [Number(point.dataset.x), Number(point.dataset.y)]; // where `rescale` moved it

  // Lines join the visible marks; with all marks visible they are the original ones. `rescale` then draws them.
  const rejoin = () => {
    for (const series of all("svg .series")) {
      const line = series.querySelector(".line");
      const points = all(".pt", series);
      if (!line || !points.length) continue;
      line.dataset.whole ??= line.dataset.d;
      const left = points.filter((point) => !point.classList.contains("out"));
      const path = left.map(drawn).map(([x, y], number) => `${number ? "L" : "M"}${x} ${y}`).join("");
      line.dataset.d = left.length === points.length ? line.dataset.whole : path;
    }
  };

  // The frontier: no mark to the right of a corner is as low as the corner.
  const frontiers = () => {
    for (const stairs of all("svg .stairs")) {
      const group = `.pt[data-group="${stairs.dataset.group}"]`;
      const points = all(group, stairs.ownerSVGElement).filter((point) => !isGone(point)).map((point) => [...spot(point), point]);
      points.sort(([x, y], [u, v]) => u - x || v - y);
      const corners = [];
      for (const [x, y, point] of points) {
        const isCorner = !corners.length || y > corners[0][1];
        point.classList.toggle("corner", isCorner);
        if (isCorner) corners.unshift([x, y]);
      }
      stairs.classList.toggle("off", !corners.length);
      if (!corners.length) continue;
      const [[x, y], ...rest] = corners;
      const steps = rest.map(([u, v]) => `V${v}H${u}`).join("");
      stairs.querySelector(".frontier").setAttribute("d", `M${stairs.dataset.left} ${y}H${x}${steps}V${stairs.dataset.top}`);
      stairs.querySelector("text").setAttribute("x", corners.at(-1)[0] - 4);
    }
    placeTags();
  };

  // Tags of corners must not overlap each other, marks, or names of frontiers. Each is put below to the right, to the left,
  // or above; without room it is hidden, and the tooltip of the mark has its text.
  const LETTER = 6.8, HEIGHT = 14, MARK = 7.5; // of 11 px text, in the drawing's own unit: hidden tabs have no boxes
  const textBox = (text, x, y, isLeft) => {
    const width = LETTER * text.length;
    return { left: isLeft ? x - width : x, right: isLeft ? x : x + width, top: y - HEIGHT + 3, bottom: y + 3 };
  };
  const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const placeTags = () => {
    for (const svg of all("svg").filter((each) => each.querySelector(".tag"))) {
      const [, , width] = svg.getAttribute("viewBox").split(" ").map(Number);
      const points = all(".pt", svg).filter((point) => !isGone(point));
      const marks = points.map((point) => [...spot(point), point]);
      const taken = marks.map(([x, y]) => ({ left: x - MARK, right: x + MARK, top: y - MARK, bottom: y + MARK }));
      for (const name of all(".stairs:not(.off):not(.out) text", svg)) {
        taken.push(textBox(name.textContent, Number(name.getAttribute("x")), Number(name.getAttribute("y")), true));
      }
      for (const [x, y, point] of marks.filter(([, , point]) => point.classList.contains("corner"))) {
        const tag = point.querySelector(".tag");
        if (!tag) continue;
        const [drawnX, drawnY] = drawn(point);
        const places = [[8, 15], [-8, 15], [8, -7], [-8, -7]].map(([dx, dy]) => [dx, dy, textBox(tag.textContent, x + dx, y + dy, dx < 0)]);
        const free = places.find(([, , box]) => box.left > 0 && box.right < width && !taken.some((other) => touch(box, other)));
        tag.classList.toggle("off", !free);
        if (!free) continue;
        tag.setAttribute("x", drawnX + free[0]);
        tag.setAttribute("y", drawnY + free[1]);
        tag.setAttribute("text-anchor", free[0] < 0 ? "end" : "start");
        taken.push(free[2]);
      }
    }
  };

  const panel = document.querySelector("#choose");
  const boxes = panel ? all("input", panel) : [];

  // The choice is part of the address, so that a shared link shows the same: `?hide=0-1.2-0`.
  const address = new URL(location.href);
  const away = new Set((address.searchParams.get("hide") ?? "").split("."));
  for (const box of boxes) box.checked = !away.has(box.value);
  const remember = () => {
    const off = boxes.filter((box) => !box.checked).map((box) => box.value);
    const now = new URL(location.href);
    if (off.length) now.searchParams.set("hide", off.join("."));
    else now.searchParams.delete("hide");
    try {
      history.replaceState(null, "", now);
    } catch {
      // the page has no address of its own, such as one inside a message
    }
  };
  const hideUnchosen = () => {
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const part of all("[data-f]")) {
      part.classList.toggle("out", part.dataset.f.split(" ").some((token) => off.has(token)));
    }
    if (panel) {
      const output = panel.querySelector("output");
      const shown = all("#runs tbody tr").filter((row) => !row.classList.contains("out")).length;
      const runs = output.dataset.runs;
      output.textContent = shown === Number(runs) ? `all ${runs} runs shown` : `${shown} of ${runs} runs shown`;
    }
  };

  const views = all(".views").map((root) => ({
    root,
    select: root.querySelector("select"),
    parts: all(":scope > .view", root),
    none: root.querySelector(".none"),
  }));
  const open = ({ select, parts }, number) => {
    if (select) select.value = String(number);
    for (const [place, part] of parts.entries()) part.open = place === number;
  };
  const allowed = (parts) => [...parts.keys()].filter((number) => !parts[number].classList.contains("out"));
  const choosable = () => {
    for (const view of views) {
      const places = allowed(view.parts);
      for (const [number, option] of [...(view.select?.options ?? [])].entries()) {
        option.hidden = option.disabled = !places.includes(number);
      }
      const now = view.parts.findIndex((part) => part.open);
      if (places.length && !places.includes(now)) open(view, places[0]);
      view.none.hidden = places.length > 0;
      view.none.textContent = "Nothing was measured with the settings chosen.";
    }
  };

  const refresh = () => {
    remember();
    hideUnchosen();
    choosable();
    rejoin();
    rescale();
    frontiers();
    document.dispatchEvent(new Event("shown"));
    document.documentElement.dataset.shown = panel?.querySelector("output").textContent ?? "";
  };

  if (panel) {
    panel.hidden = false;
    panel.open = window.innerWidth > 620;
    // The target of a link is scrolled to below the panel.
    const root = document.documentElement;
    const clear = () => { root.style.scrollPaddingTop = `${panel.offsetHeight + 20}px`; };
    new ResizeObserver(clear).observe(panel);
    clear();
    for (const box of boxes) {
      const group = boxes.filter((other) => other.closest("fieldset") === box.closest("fieldset"));
      box.addEventListener("click", (event) => {
        if (event.altKey) for (const other of group) other.checked = other === box;
        if (!group.some((other) => other.checked)) box.checked = true; // at least one value stays chosen
        refresh();
      });
    }
    panel.querySelector("form").addEventListener("reset", () => setTimeout(refresh));
  }
  for (const view of views) {
    view.root.classList.add("chosen");
    if (!view.select) continue;
    view.root.querySelector(".pickview").hidden = false;
    view.select.addEventListener("change", () => open(view, Number(view.select.value)));
    for (const button of all("[data-step]", view.root)) {
      button.addEventListener("click", () => {
        const places = allowed(view.parts);
        const now = places.indexOf(view.parts.findIndex((part) => part.open));
        if (places.length) open(view, places[(now + Number(button.dataset.step) + places.length) % places.length]);
      });
    }
  }
  for (const button of all(".legend button")) {
    button.addEventListener("click", () => {
      rescale();
      frontiers();
    });
  }

  // Charts over time: a line at the pointer, and the value of each task there. The arrow keys move it.
  const tip = document.querySelector("#tip");
  for (const svg of all("svg.bare")) {
    const [left, right, top, bottom] = svg.dataset.box.split(" ").map(Number);
    const [first, last, low, high] = svg.dataset.span.split(" ").map(Number);
    const cursor = document.createElementNS(SVG, "g");
    cursor.style.display = "none";
    svg.append(cursor);
    svg.setAttribute("tabindex", "0");
    const lines = all(".series", svg).map((series) => ({
      series,
      points: series.querySelector(".line").getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number)),
    }));
    const named = (number) => document.querySelector(`.legend [data-series="${number}"]`)?.textContent ?? "";
    let at = null;
    const show = (x) => {
      at = Math.min(Math.max(x, left), right);
      const shown = lines.filter(({ series }) => !isGone(series));
      const near = shown.map(({ series, points }) => ({
        series,
        point: points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best)),
      }));
      if (!near.length) return;
      const line = document.createElementNS(SVG, "line");
      for (const [name, value] of Object.entries({ class: "cursor", x1: at, x2: at, y1: top, y2: bottom })) line.setAttribute(name, value);
      const dots = near.map(({ series, point }) => {
        const dot = document.createElementNS(SVG, "circle");
        const hue = [...series.classList].find((name) => /^h\d$/.test(name));
        for (const [name, value] of Object.entries({ cx: point[0], cy: point[1], r: 4, class: "dot" })) dot.setAttribute(name, value);
        const group = document.createElementNS(SVG, "g");
        group.setAttribute("class", hue);
        group.append(dot);
        return group;
      });
      cursor.replaceChildren(line, ...dots);
      cursor.style.display = "";
      const seconds = first + ((at - left) / (right - left)) * (last - first);
      const part = (y) => `${Math.round(100 * (low + ((bottom - y) / (bottom - top)) * (high - low)))}%`;
      tip.textContent = [`${seconds.toFixed(2)} s`, ...near.map(({ series, point }) => `${named(series.dataset.series)}  ${part(point[1])}`)].join("\n");
      tip.hidden = false;
      const box = svg.getBoundingClientRect();
      const width = document.documentElement.clientWidth;
      const here = box.left + (at / svg.viewBox.baseVal.width) * box.width;
      const beside = here + 14 + tip.offsetWidth > width ? here - 14 - tip.offsetWidth : here + 14;
      tip.style.left = `${Math.max(4, beside) + window.scrollX}px`;
      tip.style.top = `${box.top + window.scrollY + 12}px`;
    };
    const hide = () => {
      cursor.style.display = "none";
      tip.hidden = true;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      show(((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => show(at ?? left));
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show((at ?? left) + (step * (right - left)) / 60);
    });
  }

  refresh();
  document.documentElement.dataset.chosen = "done"; // for tests in a real browser
})();
