// The job graph: vertices with their chains and subtasks, edges with their credit and backlog.
(() => {
  const W = 232, H = 78, GX = 130, GY = 34;
  ns.levelOf = (task) => {
    if (task.state !== "running" || task.busy === null || task.busy === undefined) return "unknown";
    return task.backpressured >= Math.max(task.busy, task.idle) ? "waiting" : task.busy >= task.idle ? "busy" : "idle";
  };
  ns.sums = (edge, columns) => {
    const total = { credit: 0, backlog: 0, queued: 0 };
    for (const channel of edge.channels ?? []) for (const name of Object.keys(total)) total[name] += channel[columns.indexOf(name)] ?? 0;
    return total;
  };
  const short = (name) => (name.length > 33 ? `${name.slice(0, 32)}…` : name);

  ns.graph = (job, snapshot, chosen, choose) => {
    // Vertices are in topological order; each is placed to the right of its producers.
    const depth = job.vertices.map(() => 0);
    for (const edge of job.edges) depth[edge.consumer] = Math.max(depth[edge.consumer], depth[edge.producer] + 1);
    const rows = {}; const place = depth.map((d) => [d, (rows[d] = (rows[d] ?? -1) + 1)]);
    const deepest = Math.max(0, ...depth), tallest = Math.max(0, ...Object.values(rows));
    const isTall = ns.isNarrow(), [stepX, stepY] = isTall ? [W + 16, H + 52] : [W + GX, H + GY]; // a narrow window shows consumers below producers
    const [columns, lines] = isTall ? [tallest, deepest] : [deepest, tallest], width = columns * stepX + W + 6, height = lines * stepY + H + 38;
    const root = ns.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Job graph" });
    const corner = ([c, r]) => [(isTall ? r : c) * stepX + 2, (isTall ? c : r) * stepY + 14];
    job.edges.forEach((edge, number) => {
      const [x, y] = corner(place[edge.producer]), [u, v] = corner(place[edge.consumer]);
      const across = `M${x + W} ${y + H / 2}C${x + W + 50} ${y + H / 2} ${u - 50} ${v + H / 2} ${u} ${v + H / 2}`;
      const d = isTall ? `M${x + W / 2} ${y + H}C${x + W / 2} ${y + H + 26} ${u + W / 2} ${v - 26} ${u + W / 2} ${v}` : across;
      const sums = ns.sums(edge, snapshot.channel_columns);
      const isRemote = (edge.channels ?? []).some((c) => c[snapshot.channel_columns.indexOf("credit")] !== null);
      const stalled = isRemote && (edge.channels ?? []).some((c) => c[snapshot.channel_columns.indexOf("credit")] === 0 && c[snapshot.channel_columns.indexOf("backlog")] > 0);
      const way = edge.partitioner + (edge.is_prompt ? ", prompt" : "");
      const name = `${way} from ${job.vertices[edge.producer].name} to ${job.vertices[edge.consumer].name}`;
      const group = ns.svg("g", { class: `edge${chosen.edge === number ? " chosen" : ""}${stalled ? " stalled" : ""}`, tabindex: 0, role: "button", "aria-label": name, "aria-pressed": chosen.edge === number, "data-key": `edge-${number}`, "data-edge": number });
      group.append(ns.svg("path", { d }), ns.svg("path", { d, class: "hit" }), ns.svg("title", {}, name));
      const cx = isTall ? (x + u + W) / 2 + 8 : (x + W + u) / 2, cy = (y + v) / 2 + H / 2, anchor = isTall ? "start" : "middle";
      group.append(ns.svg("text", { class: "label", x: cx, y: cy - (isTall ? 5 : 8), "text-anchor": anchor }, way));
      const flow = edge.channel_count ? (isRemote ? `credit ${sums.credit > 1 << 30 ? "unlimited" : sums.credit}, backlog ${sums.backlog}` : `local, ${sums.queued} queued`) : "";
      group.append(ns.svg("text", { class: "label", x: cx, y: cy + (isTall ? 10 : 15), "text-anchor": anchor }, flow));
      group.addEventListener("click", () => choose({ edge: chosen.edge === number ? null : number }));
      group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); choose({ edge: chosen.edge === number ? null : number }); } });
      root.append(group);
    });
    job.vertices.forEach((vertex, number) => {
      const [x, y] = corner(place[number]);
      root.append(ns.svg("rect", { class: "v", x, y, width: W, height: H, rx: 8, "data-vertex": number }));
      const name = vertex.operators.join(" → ");
      const label = ns.svg("text", { x: x + 10, y: y + 20 }, short(name)); label.append(ns.svg("title", {}, name)); root.append(label);
      root.append(ns.svg("text", { class: "label", x: x + 10, y: y + 37 }, `parallelism ${vertex.parallelism} of ${vertex.max_parallelism}, group ${vertex.slot_sharing_group}`));
      vertex.subtasks.slice(0, 24).forEach((task, at) => {
        const box = ns.svg("rect", { class: `${ns.levelOf(task)} ${task.state}`, x: x + 10 + 9 * at, y: y + 48, width: 7, height: 20, rx: 1.5 });
        box.style.fill = ns.levelOf(task) === "unknown" ? "currentColor" : "var(--level)";
        root.append(box);
      });
    });
    return root;
  };
})();
