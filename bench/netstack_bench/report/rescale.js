"use strict";
// Fits axes to the visible marks: a chart keeps those of its ticks that enclose them. Charts with a common axis (the tabs of
// a figure, the charts of a section) keep it common. Heights change, and in charts with a frontier horizontal positions
// too. The original positions are stored, and restored when everything is visible again.
const rescale = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const number = (element, name) => Number(element.getAttribute(name));
  const isGone = (element) => element.closest(".out, .off") !== null;
  const NEAR = 0.06; // heights are written with one digit
  const GAP = 14; // of names at the ends of lines

  const point = (element) => {
    const hit = element.querySelector(".hit");
    const whisker = element.querySelector(".whisker");
    const y = number(hit, "cy");
    const [, high, low] = whisker ? whisker.getAttribute("d").match(/[\d.]+/g).map(Number) : [0, y, y];
    return { element, y, whisker, x: number(hit, "cx"), high: Math.min(high, y), low: Math.max(low, y) };
  };

  const chart = (svg) => {
    const lines = all("line.grid, line.base", svg);
    const labels = all('text.tick[text-anchor="end"]', svg);
    const ticks = lines.map((line, place) => ({ line, label: labels[place], y: number(line, "y1") }));
    const stairs = svg.querySelector(".stairs") !== null;
    const below = stairs ? all('text.tick[text-anchor="middle"]', svg) : [];
    const home = svg.closest("figure[id], section[id]")?.id ?? "";
    return {
      svg,
      ticks,
      key: [home, svg.getAttribute("viewBox"), ...[...labels, ...below].map((label) => label.textContent)].join("|"),
      below: below.map((label) => ({ label, x: number(label, "x") })),
      isLog: svg.dataset.scale === "log",
      points: all(".pt", svg).map(point),
      paths: all(".line, .expected", svg),
      guides: all(".guide", svg).map((line) => ({ line, y: number(line, "y1") })),
      names: all(".name", svg).map((element) => ({
        element,
        points: all(`.series[data-series="${element.dataset.series}"] .pt`, svg).map(point),
        toX: Number(element.querySelector(".hair").getAttribute("d").match(/L([\d.]+)/)[1]),
      })),
    };
  };

  const charts = all("main svg").filter((svg) => svg.querySelector(".pt")).map(chart);
  for (const { paths } of charts) for (const path of paths) path.dataset.d = path.getAttribute("d");
  const groups = Map.groupBy ? Map.groupBy(charts, ({ key }) => key) : new Map(charts.map((each) => [each, [each]]));

  const shownOf = (group) => group.flatMap(({ points }) => points.filter(({ element }) => !isGone(element)));
  const isComplete = (group, shown) => !shown.length || shown.length === group.flatMap(({ points }) => points).length;

  // The first and last tick around the visible marks; all ticks if no mark is visible.
  const crop = (group) => {
    const ticks = group[0].ticks;
    const shown = shownOf(group);
    const whole = [0, ticks.length - 1];
    if (isComplete(group, shown)) return whole;
    const high = ticks.findIndex(({ y }) => y <= Math.min(...shown.map((each) => each.high)) + NEAR);
    const low = group[0].isLog ? ticks.findLastIndex(({ y }) => y >= Math.max(...shown.map((each) => each.low)) - NEAR) : 0;
    const first = low < 0 ? 0 : low;
    const last = high < 0 ? whole[1] : high;
    return last > first ? [first, last] : first > 0 ? [first - 1, first] : [0, 1];
  };

  // The same for the horizontal axis.
  const cropBelow = (group) => {
    const ticks = group[0].below;
    const shown = shownOf(group);
    const whole = [0, ticks.length - 1];
    if (!ticks.length || isComplete(group, shown)) return whole;
    const first = ticks.findLastIndex(({ x }) => x <= Math.min(...shown.map((each) => each.x)) + NEAR);
    const last = ticks.findIndex(({ x }) => x >= Math.max(...shown.map((each) => each.x)) - NEAR);
    return first >= 0 && last > first ? [first, last] : whole;
  };

  // Names at the ends of the visible lines, moved until they do not touch.
  const setNames = ({ names, ticks }, move) => {
    const ends = names
      .filter(({ element }) => !isGone(element))
      .map((name) => ({ ...name, end: name.points.findLast(({ element }) => !isGone(element)) }))
      .filter(({ end }) => end)
      .sort((a, b) => move(a.end.y) - move(b.end.y));
    const places = [];
    for (const { end } of ends) places.push(Math.max(move(end.y), ticks.at(-1).y, places.length ? places.at(-1) + GAP : 0));
    let limit = ticks[0].y;
    for (let place = places.length - 1; place >= 0; place--) {
      places[place] = Math.min(places[place], limit);
      limit = places[place] - GAP;
    }
    for (const [place, { element, toX, end }] of ends.entries()) {
      element.querySelector("text").setAttribute("y", places[place] + 4);
      element.querySelector(".hair").setAttribute("d", `M${end.x + 8} ${move(end.y)}L${toX} ${places[place]}`);
    }
  };

  const slider = ({ below }, [first, last]) => {
    if (!below.length) return (x) => x;
    const [left, right] = [below[0].x, below.at(-1).x];
    const [from, to] = [below[first].x, below[last].x];
    const slide = (x) => Math.round(10 * (left + ((x - from) / (to - from)) * (right - left))) / 10;
    for (const [place, { label, x }] of below.entries()) {
      label.setAttribute("x", slide(x));
      label.style.display = place >= first && place <= last ? "" : "none";
    }
    return slide;
  };

  const draw = (each, [first, last], keptBelow) => {
    const { ticks, points, paths, guides } = each;
    const slide = slider(each, keptBelow);
    const [bottom, top] = [ticks[0].y, ticks.at(-1).y];
    const [low, high] = [ticks[first].y, ticks[last].y];
    const isWhole = first === 0 && last === ticks.length - 1;
    const move = isWhole ? (y) => y : (y) => Math.round(10 * (bottom - ((low - y) / (low - high)) * (bottom - top))) / 10;
    for (const [place, { line, label, y }] of ticks.entries()) {
      const isIn = place >= first && place <= last;
      line.setAttribute("y1", move(y));
      line.setAttribute("y2", move(y));
      line.setAttribute("class", place === first ? "base" : "grid");
      label.setAttribute("y", move(y) + 4);
      line.style.display = label.style.display = isIn ? "" : "none";
    }
    for (const { element, x, y, whisker, high, low } of points) {
      const down = move(y) - y;
      [element.dataset.x, element.dataset.y] = [slide(x), move(y)];
      element.setAttribute("transform", `translate(${slide(x) - x} ${down})`);
      if (!whisker) continue;
      const [from, to] = [move(high) - down, move(low) - down];
      whisker.setAttribute("d", `M${x} ${from}V${to}M${x - 3} ${from}h6M${x - 3} ${to}h6`);
    }
    for (const path of paths) {
      path.setAttribute("d", path.dataset.d.replace(/([ML][\d.]+) (-?[\d.]+)/g, (_, before, y) => `${before} ${move(Number(y))}`));
    }
    for (const { line, y } of guides) {
      line.setAttribute("y1", move(y));
      line.setAttribute("y2", move(y));
      line.style.display = y <= low + NEAR && y >= high - NEAR ? "" : "none";
    }
    setNames(each, move);
  };

  return () => {
    for (const group of groups.values()) {
      const [kept, keptBelow] = [crop(group), cropBelow(group)];
      for (const each of group) draw(each, kept, keptBelow);
    }
  };
})();
