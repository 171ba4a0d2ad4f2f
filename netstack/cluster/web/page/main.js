// The selection and the drawing of it. The selection is part of the URL, so a link opens the same view.
(() => {
  const { $, fill } = ns;
  const chosen = { job: null, edge: null, task: null };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    chosen.job = given.get("job"); chosen.task = given.get("task");
    chosen.edge = given.has("edge") ? Number(given.get("edge")) : null;
  };
  const choose = (change) => {
    Object.assign(chosen, change);
    const words = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value !== null && value !== undefined));
    window.history.replaceState(null, "", `#${words}`);
    redraw();
  };

  // Draws the phase of the demonstration; returns the name of its job.
  const drawDemo = (demo, at) => {
    $("demo").hidden = !demo;
    if (!demo) return null;
    const whole = demo.phases.reduce((sum, phase) => sum + phase.seconds, 0);
    let left = (((at - demo.began) % whole) + whole) % whole, number = 0;
    while (left >= demo.phases[number].seconds) { left -= demo.phases[number].seconds; number += 1; }
    const phase = demo.phases[number], next = demo.phases[(number + 1) % demo.phases.length];
    $("demo").dataset.phase = number;
    $("demo-h").textContent = `${number + 1} of ${demo.phases.length}: ${phase.title}`;
    $("demo-text").textContent = phase.text;
    $("demo-next").textContent = `In ${Math.ceil(phase.seconds - left)} s: ${next.title}`;
    return phase.job;
  };

  const drawJob = (job, snapshot, chosen) => {
    const isNow = ns.history.state.live;
    const columns = snapshot.channel_columns;
    $("job-h").textContent = `${job.name} (${job.job_id})`;
    $("job-why").textContent = [job.state, job.reason, job.waits_for && `waiting for ${job.waits_for}`, job.left_out?.length && `too large to show all: without ${job.left_out.join(", ")}`, ...(job.blocked ?? []).map((each) => `${each.taskmanager}, slot ${each.slot}: ${each.text}`)].filter(Boolean).join("; ");
    $("bottleneck").textContent = job.state === "running" && job.bottleneck ? `Bottleneck: ${job.bottleneck.text}` : "";
    fill("act", [snapshot.may_change && job.state === "running" && isNow, job.job_id], () => (snapshot.may_change && job.state === "running" && isNow ? [ns.button("Cancel job", "cancel", () => fetch(`jobs/${job.job_id}?mode=cancel`, { method: "PATCH" }), "")] : []));
    fill("graph", [job.job_id, job.vertices, job.edges, chosen, ns.isNarrow()], () => [ns.graph(job, snapshot, chosen, choose)]);
    const edge = job.edges[chosen.edge];
    $("edge").hidden = !edge;
    if (edge) {
      $("edge-h").textContent = `${job.vertices[edge.producer].name} → ${job.vertices[edge.consumer].name}: ${edge.partitioner}, ${edge.type}${edge.is_prompt ? ", prompt" : ""}`;
      $("edge-sum").textContent = ns.edgeSum(edge, job, columns);
      fill("channels", [job.job_id, edge], () => ns.channelRows(job, edge, columns));
    }
    const why = chosen.task === null ? null : ns.taskWhy(job, chosen.task, snapshot);
    $("task").hidden = !why;
    if (why) { $("task-h").textContent = why.title; fill("task-why", why.items, () => why.items.map((text) => ns.el("li", text))); }
    ns.drawFlames(job, why ? chosen : { ...chosen, task: null }, isNow && !ns.history.isFixed);
    const past = ns.history.until(60);
    fill("vertices", [job.job_id, job.vertices, chosen.task, past.length, past[0]?.at], () => job.vertices.map((v, number) => ns.vertexRow(v, number, chosen, choose, ns.rates(past, job.job_id, number), job.bottleneck?.vertex === number)));
    fill("chaining", job.chaining, () => job.chaining.map((c) => ns.el("li", c.why)));
    const decided = ns.decided(job);
    $("why-parallel").hidden = !decided.length;
    fill("decided", decided, () => decided.map((text) => ns.el("li", text)));
    $("aligning").textContent = ns.aligning(job);
    const pending = job.checkpoints_in_progress ?? []; // a recording may be older than these
    fill("checkpoints", [pending, job.checkpoints], () => [...[...pending].reverse().map(ns.pendingRow), ...[...job.checkpoints].reverse().map(ns.checkpointRow)]);
    const failures = job.failures ?? []; // a recording may be older than these
    $("failed").hidden = !failures.length;
    fill("failures", [job.job_id, failures], () => ns.failureRows(failures, job.failures_left_out));
    fill("log", [job.log, $("search").value], () => ns.logRows(job, $("search").value));
  };

  const redraw = () => {
    const { state, shown, length, place } = ns.history, [began, until] = ns.history.span();
    const slider = $("slider"); slider.max = Math.max(0, length - 1); slider.value = place;
    slider.setAttribute("aria-valuetext", ns.at(shown?.at));
    $("when").textContent = state.live ? "now" : `${ns.at(shown?.at)} of ${ns.at(began)} to ${ns.at(until)}`; $("when").className = state.live ? "" : "past";
    $("play").textContent = state.playing ? "Pause" : "Play"; $("play").setAttribute("aria-pressed", state.playing);
    $("live").textContent = ns.history.isFixed ? "End" : "Live";
    const snapshot = shown?.snapshot;
    if (!snapshot) return;
    const here = snapshot.taskmanagers.filter((t) => !t.gone).length;
    $("head").textContent = `${ns.history.isFixed ? "Recorded: " : ""}${here} TaskManager${here === 1 ? "" : "s"}, ${snapshot.jobs.length} job${snapshot.jobs.length === 1 ? "" : "s"}`;
    ns.names = snapshot.demo?.names ?? {};
    const demonstrated = drawDemo(snapshot.demo, state.live ? Date.now() / 1000 : shown.at);
    fill("tms", [snapshot.taskmanagers, snapshot.jobs.map((j) => [j.vertices, j.networks])], () => snapshot.taskmanagers.map((t) => ns.taskManagerRow(t, snapshot.jobs)));
    fill("jobs", snapshot.jobs.map((j) => [j.job_id, j.name, j.state, j.tasks, j.checkpoints_completed, j.restarts]), () => snapshot.jobs.map((j) => ns.jobRow(j, choose)));
    const job = snapshot.jobs.find((j) => j.job_id === chosen.job) ?? snapshot.jobs.find((j) => j.name === demonstrated) ?? snapshot.jobs.at(-1);
    $("job").hidden = !job;
    if (job) drawJob(job, snapshot, demonstrated && chosen.edge === null ? { ...chosen, edge: 0 } : chosen);
    document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1);
  };

  $("slider").addEventListener("input", () => { ns.history.state.playing = false; ns.history.go(Number($("slider").value)); });
  $("live").addEventListener("click", () => ns.history.live());
  $("play").addEventListener("click", () => ns.history.play(!ns.history.state.playing));
  $("speed").addEventListener("change", () => { ns.history.state.speed = Number($("speed").value); });
  $("search").addEventListener("input", redraw);
  window.addEventListener("resize", redraw);
  window.addEventListener("hashchange", () => { read(); redraw(); });
  $("login").addEventListener("submit", (event) => { 
    event.preventDefault();
    const body = JSON.stringify({ token: $("token").value });
    $("token").value = "";
    fetch("netstack/session", { method: "POST", body }).then(async (answer) => {
      if (answer.ok) { $("login").hidden = true; ns.watch(redraw); } else $("login-why").textContent = (await answer.json()).errors[0];
    });
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;
    if (typing) return;
    if (event.key === "l") ns.history.live();
    else if (event.key === " ") { event.preventDefault(); ns.history.play(!ns.history.state.playing); }
    else if (event.key === "/") { event.preventDefault(); $("search").focus(); }
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") { ns.history.state.playing = false; ns.history.go(ns.history.place + (event.key === "ArrowLeft" ? -1 : 1)); }
  });
  read();
  ns.watch(redraw);
})();
