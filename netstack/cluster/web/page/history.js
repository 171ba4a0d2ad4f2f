// The snapshots, streamed from the server or embedded in the page, and which one is displayed.
(() => {
  const KEPT_S = 600;
  const entries = []; // {at, until, snapshot}, oldest first
  const fixed = JSON.parse(ns.$("history").textContent);
  const state = { live: !fixed, place: 0, playing: false, speed: 1, clock: 0 };
  let changed = () => {};

  ns.history = {
    isFixed: Boolean(fixed),
    state,
    get shown() { return entries[state.live ? entries.length - 1 : Math.min(state.place, entries.length - 1)]; },
    // The snapshots of the last seconds before the displayed one, oldest first.
    until(seconds) { const place = this.place, end = entries[place]?.at ?? 0; return entries.filter((entry, number) => number <= place && entry.snapshot && entry.at > end - seconds); },
    get length() { return entries.length; },
    get place() { return state.live ? entries.length - 1 : state.place; },
    go(place) {
      state.place = Math.max(0, Math.min(place, entries.length - 1));
      state.live = !fixed && state.place >= entries.length - 1;
      state.clock = entries[state.place]?.at ?? 0;
      changed();
    },
    live() { state.playing = false; if (fixed) this.go(entries.length - 1); else { state.live = true; changed(); } },
    play(on) { state.playing = on; if (on && state.place >= entries.length - 1) state.place = 0; state.live = false; state.clock = entries[state.place]?.at ?? 0; changed(); },
    span() { return entries.length ? [entries[0].at, entries.at(-1).until ?? entries.at(-1).at] : [0, 0]; },
  };

  const add = (entry) => {
    if (entries.length && entry.snapshot === null) return;
    entries.push(entry);
    while (entries.length > 1 && entries[0].at < entry.at - KEPT_S) { entries.shift(); if (!state.live) state.place = Math.max(0, state.place - 1); }
    changed();
  };

  setInterval(() => {
    if (!state.playing) return;
    state.clock += 0.1 * state.speed;
    let place = state.place;
    while (place + 1 < entries.length && entries[place + 1].at <= state.clock) place += 1;
    if (place === entries.length - 1) state.playing = false;
    if (place !== state.place || !state.playing) { state.place = place; state.live = !fixed && place === entries.length - 1; changed(); }
  }, 100);

  const say = (text) => { ns.$("head").textContent = text; };
  ns.watch = async (onChange) => {
    changed = onChange;
    if (fixed) { entries.push(...fixed); state.place = Math.max(0, entries.findIndex((each) => each.snapshot?.jobs?.length)); changed(); return; } // start at the first job
    for (;;) {
      try {
        const past = await fetch("netstack/history");
        if (past.status === 401) { ns.$("login").hidden = false; say("this page needs a web token"); return; }
        entries.splice(0, entries.length, ...(await past.json())); changed();
        const stream = (await fetch("netstack/events")).body.pipeThrough(new TextDecoderStream()).getReader();
        for (let text = ""; ;) {
          const { value, done } = await stream.read(); if (done) break;
          text += value; const parts = text.split("\n\n"); text = parts.pop();
          for (const part of parts) { const data = part.split("\n").find((line) => line.startsWith("data: ")); if (data) add(JSON.parse(data.slice(6))); }
        }
      } catch { /* reported below */ }
      say("the JobManager does not answer; retrying");
      await new Promise((again) => setTimeout(again, 1000));
    }
  };
})();
