// The flame graph of a vertex; sampled repeatedly while it is displayed, and only then.
(() => {
  const H = 18, W = 1100;
  let shown = null; // the displayed vertex, "job/vertex"

  const draw = (root) => {
    const rects = []; let deepest = 0;
    const place = (node, x, depth) => {
      const width = (W * node.value) / root.value;
      if (width < 1) return;
      rects.push([node, x, depth, width]); deepest = Math.max(deepest, depth);
      for (const child of node.children) { place(child, x, depth + 1); x += (W * child.value) / root.value; }
    };
    for (let x = 0, n = 0; n < root.children.length; x += (W * root.children[n].value) / root.value, n++) place(root.children[n], x, 0);
    const made = ns.svg("svg", { viewBox: `0 0 ${W} ${(deepest + 1) * H}`, width: W, height: (deepest + 1) * H, role: "img", "aria-label": "Flame graph" });
    for (const [node, x, depth, width] of rects) {
      const group = ns.svg("g", { class: "flame", "data-frame": node.name });
      group.append(ns.svg("rect", { x, y: depth * H, width: Math.max(0.5, width - 1), height: H - 1, rx: 2 }), ns.svg("title", {}, `${node.name}: ${Math.round((100 * node.value) / root.value)} %`));
      const room = Math.floor(width / 7);
      if (room > 3) group.append(ns.svg("text", { x: x + 4, y: depth * H + 13 }, node.name.length > room ? `${node.name.slice(0, room - 1)}…` : node.name));
      made.append(group);
    }
    return made;
  };

  const update = (text, graph = []) => { ns.$("flame-sum").textContent = text; ns.$("flame").replaceChildren(...graph); };
  const look = async (key) => {
    const [job, vertex] = key.split("/");
    while (shown === key) {
      const answer = await fetch(`jobs/${job}/vertices/${vertex}/flamegraph`).catch(() => null), body = await answer?.json();
      if (shown !== key) return;
      if (!answer?.ok) { update(body?.errors[0] ?? "the JobManager does not answer"); await new Promise((wake) => setTimeout(wake, 2000)); continue; }
      update(`${ns.count(body.data.value)} samples from the slots of this vertex; callers are above the functions they call; updated every two seconds`, body.data.value ? [draw(body.data)] : []);
    }
  };

  ns.drawFlames = (job, chosen, isNow) => {
    const vertex = chosen.task === null ? null : chosen.task.split(".")[0], key = `${job.job_id}/${vertex}`;
    const may = vertex !== null && isNow && job.state === "running";
    if (shown !== null && (!may || shown !== key)) { shown = null; update(""); }
    const text = shown === key ? "Hide the flame graph" : "Flame graph";
    ns.fill("flame-act", [may, key, text], () => (may ? [ns.button(text, "flame", () => { shown = shown === key ? null : key; update(shown ? "sampling for two seconds" : ""); if (shown) look(key); ns.drawFlames(job, chosen, isNow); }, "")] : []));
  };
})();
