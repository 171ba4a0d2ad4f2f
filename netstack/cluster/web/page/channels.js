// The channels of one edge: buffers at the producer, credit, buffers at the consumer.
(() => {
  const MANY = 24, NO_LIMIT = 1 << 30; // channels without credit-based flow control report more credit than NO_LIMIT
  const squares = (count, kind) => {
    const made = ns.el("span");
    for (let n = 0; n < Math.min(count, MANY); n++) made.append(ns.el("span", "", `buffer ${kind}`));
    if (count > MANY) made.append(ns.el("span", `+${count - MANY} `, "soft"));
    return made;
  };
  const number = (value, alarm) => ns.el("span", ns.known(value), value === 0 && alarm ? "zero" : "");

  ns.channelsOf = (edge, columns) => (edge.channels ?? []).map((values) => Object.fromEntries(columns.map((name, place) => [name, values[place]])));

  ns.channelRows = (job, edge, columns) => ns.channelsOf(edge, columns).map((c) => {
    const from = ns.taskName(job.vertices[edge.producer], c.producer), to = ns.taskName(job.vertices[edge.consumer], c.consumer);
    const there = ns.el("span", "", "buffers"), here = ns.el("span", "", "buffers");
    if (c.sending !== null) there.append(squares(c.sending, c.is_blocked ? "full blocked" : "full"), c.is_blocked ? ns.el("span", " behind a barrier", "soft") : "");
    here.append(squares(c.queued, "full"), squares(c.free_exclusive, "own"), squares(c.free_floating, "lent"));
    const made = ns.row(`${from} → ${to}`, there, c.credit > NO_LIMIT ? "unlimited" : number(c.credit, c.backlog > 0), ns.known(c.backlog), here, String(c.queued), c.is_local ? "" : `${c.exclusive - c.free_exclusive} of ${c.exclusive}`, c.is_local ? "" : String(c.free_floating), c.is_local ? "" : String(c.unannounced_credit), ns.count(c.buffers), c.is_finished ? "finished" : c.connection);
    made.dataset.channel = `${c.producer}-${c.consumer}-${c.subpartition}`;
    for (const name of ["credit", "backlog", "sending", "queued", "exclusive", "free_exclusive", "free_floating", "unannounced_credit"]) made.dataset[name.replaceAll("_", "")] = ns.known(c[name]);
    return made;
  });

  ns.edgeSum = (edge, job, columns) => {
    const shown = edge.channels?.length ?? 0, all = edge.channel_count ?? 0;
    if (!shown) return "No channel data: the tasks are not running, or have not reported yet.";
    const sums = ns.sums(edge, columns), queued = `${sums.queued} buffers and events at the consumers`;
    const measured = (job.vertices[edge.consumer].latencies ?? []).find((each) => each.input === edge.input), latency = measured ? `; latency ${ns.latency(measured)}` : "";
    const pools = job.vertices[edge.consumer].subtasks.map((task) => task.floating?.[edge.input]).filter(Boolean);
    const floating = pools.length ? `; floating buffers: ${pools.reduce((sum, p) => sum + p.used, 0)} of ${pools.reduce((sum, p) => sum + p.size, 0)} of the gates' pools in use` : "";
    return `${ns.count(all)} channels${shown < all ? ` (${shown} shown)` : ""}; credit ${sums.credit > NO_LIMIT ? "unlimited" : sums.credit}, backlog ${sums.backlog}, ${queued}${floating}${latency}`;
  };
})();
