// Tables of TaskManagers, jobs, subtasks and checkpoints, and the explanations of placements.
(() => {
  const bar = (part, text) => { const made = ns.el("span"), outer = ns.el("span", "", "bar"), inner = ns.el("i"); inner.style.width = `${Math.min(100, Math.round(100 * part))}%`; outer.append(inner); made.append(outer, ` ${text}`); return made; };
  const mostBoxes = 512;

  ns.taskManagerRow = (t, jobs) => {
    const boxes = ns.el("div", "", "boxes slots");
    const inSlot = {};
    for (const job of jobs) for (const v of job.vertices) for (const s of v.subtasks) if (s.taskmanager === t.name) (inSlot[s.slot] ??= []).push(`${job.name}: ${ns.taskName(v, s.subtask)}`);
    const used = Object.values(t.jobs).flat();
    for (let n = 0; n < Math.min(t.slots, 64); n++) { const box = ns.el("span", "", used.includes(n) ? "box used" : "box"); box.title = `slot ${n}: ${(inSlot[n] ?? ["free"]).join(", ")}`; boxes.append(box); }
    const state = t.gone ? "gone" : t.silent_s ? "silent" : "here";
    const name = ns.el("span", t.name + (t.gone ? ": lost" : t.silent_s ? `: silent for ${t.silent_s} s` : ""), state === "here" ? "" : `state ${state}`);
    if (t.gone) name.title = t.gone;
    const network = t.network, names = Object.fromEntries(jobs.map((j) => [j.job_id, j.name]));
    const memory = network ? bar(1 - network.free_segments / network.segments, `${ns.count(network.segments - network.free_segments)} of ${ns.count(network.segments)} segments of ${ns.size(network.segment_bytes)} in use, ${network.pools} pools`) : t.memory_bytes === undefined ? "" : `${ns.size(t.memory_bytes - t.free_memory_bytes)} of ${ns.size(t.memory_bytes)} in use`;
    const connections = ns.el("div");
    const own = jobs.flatMap((job) => (job.networks ?? []).filter((each) => each.taskmanager === t.name));
    for (const each of [network, ...own].filter(Boolean)) for (const c of each.connections) connections.append(ns.el("div", `${c.direction === "out" ? "to" : "from"} ${c.peer.replace(/^\w+:\/\//, "")}: ${c.channels} ${c.is_prompt ? "prompt " : ""}channels, ${ns.size(c.bytes_sent)} out, ${ns.size(c.bytes_received)} in${c.round_trip_s ? `, ${ns.took(c.round_trip_s)} round trip` : ""}`));
    const made = ns.row(name, t.host, boxes, memory, connections, Object.keys(t.jobs).map((j) => names[j] ?? j.slice(0, 8)).join(", "));
    made.dataset.tm = t.name; made.dataset.gone = t.gone ? "yes" : "no"; if (t.gone) made.className = "gone"; return made;
  };

  ns.jobRow = (j, choose) => {
    const made = ns.row(ns.button(j.name, `job-${j.job_id}`, () => choose({ job: j.job_id, edge: null, task: null })), ns.el("span", j.state, `state ${j.state}`), Object.entries(j.tasks).map(([s, n]) => `${n} ${s}`).join(", "), String(j.checkpoints_completed), String(j.restarts), ns.at(j.submitted_at));
    made.dataset.job = j.job_id; made.dataset.state = j.state; return made;
  };

  // Records per second of a vertex at each snapshot, averaged over the seconds before it, since counts arrive in steps. A restart counts from 0 again.
  const overS = 5;
  ns.rates = (snapshots, jobId, number) => {
    const rates = [], seen = [];
    for (const { at, snapshot } of snapshots) {
      const vertex = snapshot.jobs.find((j) => j.job_id === jobId)?.vertices[number];
      if (!vertex) continue;
      while (seen.length > 1 && seen[0].at < at - overS) seen.shift();
      const before = seen[0];
      if (before && at > before.at) rates.push({ in: Math.max(0, vertex.records_in - before.in) / (at - before.at), out: Math.max(0, vertex.records_out - before.out) / (at - before.at) });
      seen.push({ at, in: vertex.records_in, out: vertex.records_out });
    }
    return rates;
  };
  const sparkline = (records, rates, name) => {
    const cell = ns.el("span", `${ns.count(records)} `), values = rates.map((each) => each[name]);
    if (values.length < 2 || !Math.max(...values)) return cell;
    const most = Math.max(...values), points = values.map((v, at) => `${(60 * at) / (values.length - 1)},${15 - (14 * v) / most}`).join(" ");
    const line = ns.svg("svg", { class: "spark", viewBox: "0 0 60 16", width: 60, height: 16, role: "img", "aria-label": `${ns.count(Math.round(values.at(-1)))} per second` });
    line.append(ns.svg("title", {}, `${ns.count(Math.round(values.at(-1)))} per second, at most ${ns.count(Math.round(most))} in the last minute`), ns.svg("polyline", { points }));
    cell.append(line, ns.el("small", ` ${ns.count(Math.round(values.at(-1)))}/s`));
    return cell;
  };

  const milliseconds = (us) => (us < 9999500 ? `${(us / 1000).toPrecision(us < 999500 ? 3 : 4)} ms` : `${(us / 1e6).toFixed(1)} s`);
  ns.latency = (row) => { // a recording may be older than `at_least` and `waiting`
    const text = (name) => `${row.at_least?.includes(name) ? "≥ " : ""}${milliseconds(row[name])}`;
    return `p50 ${text("p50_us")}, p99 ${text("p99_us")}, max ${text("max_us")}${row.waiting ? ` (${ns.count(row.waiting)} markers in queues)` : ""}`;
  };

  ns.vertexRow = (vertex, number, chosen, choose, rates, isBottleneck) => {
    const boxes = ns.el("div", "", "boxes");
    for (const s of vertex.subtasks.slice(0, mostBoxes)) {
      const key = `${number}.${s.subtask}`, level = ns.levelOf(s);
      const box = ns.button("", `task-${key}`, () => choose({ task: chosen.task === key ? null : key }), `box ${s.state} ${level}${chosen.task === key ? " chosen" : ""}`);
      box.setAttribute("aria-label", box.title = `${ns.taskName(vertex, s.subtask)}: ${s.state}, ${level}, attempt ${s.attempt}${s.taskmanager ? `, on ${s.taskmanager} slot ${s.slot}` : ""}`);
      if (level !== "unknown") box.style.background = `linear-gradient(to top, var(--busy) ${s.busy / 10}%, var(--waiting) ${s.busy / 10}% ${(s.busy + s.backpressured) / 10}%, var(--idle) 0)`;
      Object.assign(box.dataset, { state: s.state, level, task: key }); boxes.append(box);
    }
    const more = Math.max(0, vertex.subtasks.length - mostBoxes) + Object.values(vertex.left_out ?? {}).reduce((sum, n) => sum + n, 0);
    if (more) boxes.append(`and ${more} more`);
    const where = {}; for (const s of vertex.subtasks) if (s.taskmanager) where[s.taskmanager] = (where[s.taskmanager] ?? 0) + 1;
    const known = vertex.subtasks.filter((s) => ns.levelOf(s) !== "unknown"), mean = (name) => Math.round(known.reduce((sum, s) => sum + s[name], 0) / known.length / 10);
    const made = ns.row(vertex.name, boxes, sparkline(vertex.records_in, rates, "in"), sparkline(vertex.records_out, rates, "out"), known.length ? `${mean("busy")} / ${mean("idle")} / ${mean("backpressured")} %` : "", (vertex.latencies ?? []).map((each) => `${each.from}: ${ns.latency(each)}`).join("; "), Object.entries(where).map(([t, n]) => `${t} × ${n}`).join(", "));
    made.dataset.vertex = vertex.name; if (isBottleneck) made.className = "bottleneck"; return made;
  };

  const MODES = { none: "load balance none: next to a producer if there is a free slot, else in the order of registration", slots: "load balance slots: the TaskManager with the smallest share of used slots", tasks: "load balance tasks: the TaskManager with the fewest tasks" };
  ns.taskWhy = (job, key, snapshot) => {
    const [number, index] = key.split(".").map(Number), vertex = job.vertices[number], task = vertex?.subtasks[index];
    if (!task) return null;
    const items = [`${task.state}, attempt ${task.attempt}`];
    if (task.taskmanager) {
      const host = task.host ? ` (${task.host})` : "";
      items.push(`Placement: slot ${task.slot} of ${task.taskmanager}${host}.`);
      const beside = job.vertices.flatMap((v) => v.subtasks.filter((s) => v !== vertex && s.taskmanager === task.taskmanager && s.slot === task.slot).map((s) => ns.taskName(v, s.subtask)));
      items.push(beside.length ? `Slot: shared by slot sharing group ${vertex.slot_sharing_group}, one subtask of each vertex: ${beside.join(", ")}.` : `Slot: not shared; no other vertex of slot sharing group ${vertex.slot_sharing_group} has a subtask here.`);
      const read = job.edges.filter((e) => e.consumer === number).flatMap((e) => job.vertices[e.producer].subtasks), near = read.filter((s) => s.taskmanager === task.taskmanager).length;
      items.push(`Host: ${MODES[snapshot.load_balance]}${read.length ? `; ${near} of the ${read.length} subtasks of its producers are on this TaskManager` : ""}.`);
    }
    if (task.busy !== null && task.busy !== undefined) items.push(`Last second: busy ${task.busy / 10} %, idle ${task.idle / 10} %, backpressured ${task.backpressured / 10} %; ${ns.count(task.records_in)} records in, ${ns.count(task.records_out)} out.`);
    for (const pool of task.pools ?? []) items.push(`Output: ${pool.used} of ${pool.size} buffers in use${pool.overdraft ? `, ${pool.overdraft} of them overdraft` : ""}.`);
    for (const pool of task.floating ?? []) if (pool) items.push(`Input: ${pool.used} of ${pool.size} floating buffers in use; ${pool.waiting} channels wait for one.`);
    if (task.barriers?.is_aligning) items.push(`Checkpoint ${task.barriers.checkpoint_id}: ${task.barriers.received} of ${task.barriers.expected} barriers received, ${task.barriers.blocked_channels} channels blocked.`);
    const whole = `${vertex.name} (${index})`;
    for (const each of job.log.filter((l) => l.text.startsWith(whole) || l.text.includes(`${vertex.name} ${index}`)).slice(-3)) items.push(`${ns.at(each.at)} ${each.what}: ${each.text}`);
    return { title: ns.taskName(vertex, index), items };
  };

  ns.checkpointRow = (c) => {
    const how = ns.el("span", c.is_complete ? (c.is_savepoint ? "savepoint" : "complete") : `aborted: ${c.reason}`, c.is_complete ? "" : "failed");
    const made = ns.row(String(c.checkpoint_id), how, ns.took(c.duration_s), ns.size(c.size_bytes), c.subtasks ? ns.took(c.alignment_s) : "", c.subtasks ? ns.size(c.in_flight_bytes) : "", c.slowest);
    made.dataset.checkpoint = c.checkpoint_id; return made;
  };

  ns.pendingRow = (c) => {
    const made = ns.row(String(c.checkpoint_id), ns.el("span", c.text, "pending"), ns.took(c.age_s), "", "", ns.size(c.ahead_bytes), c.waits_for.join(", "));
    made.dataset.checkpoint = c.checkpoint_id; return made;
  };

  ns.aligning = (job) => job.vertices.flatMap((v) => v.subtasks.filter((s) => s.barriers?.is_aligning).map((s) => `${ns.taskName(v, s.subtask)} aligns checkpoint ${s.barriers.checkpoint_id}: ${s.barriers.received} of ${s.barriers.expected} barriers, ${s.barriers.blocked_channels} channels blocked`)).slice(0, 20).join("; ");

  ns.decided = (job) => job.vertices.flatMap((v) => (v.decided ? [...v.decided.steps.map((s) => `${v.name}: ${s}`), ...v.decided.inputs.map((i) => `${v.name} reads ${i.dataset}: ${ns.size(i.bytes)}${i.is_broadcast ? ", broadcast" : ""}`), `${v.name}: bytes of each subtask: ${v.decided.bytes_per_subtask.slice(0, 64).map(ns.size).join(", ")}`] : []));

  ns.failureRows = (failures, leftOut) => {
    const rows = [...failures].reverse().map((f, number) => {
      const made = ns.el("details"), summary = ns.el("summary");
      summary.append(ns.el("span", `${ns.at(f.at)} `, "soft"), f.text, ns.el("b", ` led to: ${f.led_to}`));
      made.append(summary, ns.el("pre", f.traceback || f.text)); made.open = number === 0; made.dataset.failure = f.type; return made;
    });
    return leftOut ? [...rows, ns.el("p", `${leftOut} older failures were discarded`, "soft")] : rows;
  };

  ns.logRows = (job, search) => {
    const words = search.toLowerCase().split(/\s+/);
    return job.log.filter((l) => words.every((w) => `${l.what} ${l.text}`.toLowerCase().includes(w))).reverse().map((l) => { const made = ns.el("div"); made.append(ns.el("span", `${ns.at(l.at)} `, "soft"), ns.el("b", `${l.what} `), l.text); return made; });
  };
})();
