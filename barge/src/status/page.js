
"use strict";
// Asks for the figures once a second, and shows what became of them during the last five. What clients say of themselves
// is put in as text, never as markup.
(() => {
  const KEPT = 120, WINDOW = 5, FEW = 10;
  let wholeList = false;
  const samples = [], rates = [];
  const by = id => document.getElementById(id);
  const key = operation => operation.protocol + " " + operation.name;

  const short = (value, units, step) => {
    let unit = 0;
    while (value >= step * 0.9995 && unit < units.length - 1) { value /= step; unit++; }
    const digits = unit === 0 && Number.isInteger(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    return value.toFixed(digits) + units[unit];
  };
  const count = value => short(value, ["", " k", " M", " G", " T"], 1000);
  const bytes = value => short(value, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024);
  const time = nanos => nanos === null ? "–" : nanos > 3e10 ? "> 17 s" : short(nanos, [" ns", " µs", " ms", " s"], 1000);
  const rate = value => value > 0 && value < 1 ? value.toFixed(1) : count(Math.round(value));
  const age = seconds => seconds < 60 ? Math.floor(seconds) + " s" : seconds < 3600 ? Math.floor(seconds / 60) + " min"
    : seconds < 86400 ? (seconds / 3600).toFixed(1) + " h" : (seconds / 86400).toFixed(1) + " d";

  // What was measured between two looks: counts by where their buckets end.
  const between = (now, before) => {
    const counts = new Map(now ? now.buckets : []);
    for (const [end, n] of before ? before.buckets : []) counts.set(end, (counts.get(end) || 0) - n);
    return [...counts].filter(([, n]) => n > 0).sort((a, b) => a[0] - b[0]);
  };
  const quantile = (buckets, part) => {
    let rest = part * buckets.reduce((sum, [, n]) => sum + n, 0);
    if (!(rest > 0)) return null;
    for (const [end, n] of buckets) { rest -= n; if (rest <= 0) return end; }
    return buckets[buckets.length - 1][0];
  };
  const errors = operation => operation ? Object.values(operation.errors).reduce((sum, n) => sum + n, 0) : 0;

  const cell = (tag, text, classes) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (classes) made.className = classes;
    return made;
  };
  // columns: [head, classes]
  const table = (id, columns, rows, none) => {
    const line = (tag, cells) => {
      const made = document.createElement("tr");
      cells.forEach((text, at) => {
        const [value, mark] = Array.isArray(text) ? text : [text, ""];
        made.append(cell(tag, value, [columns[at][1], mark].filter(Boolean).join(" ")));
      });
      return made;
    };
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(line("th", columns.map(column => column[0])));
    rows.forEach(row => body.append(line("td", row)));
    if (rows.length === 0) {
      const row = document.createElement("tr"), only = cell("td", none, "empty");
      only.colSpan = columns.length;
      row.append(only);
      body.append(row);
      by(id).replaceChildren(body);
    } else {
      by(id).replaceChildren(head, body);
    }
  };
  const tile = (what, value, mark) => {
    const made = document.createElement("div");
    made.className = "tile";
    made.append(cell("b", value, mark), cell("span", what));
    return made;
  };

  const draw = () => {
    const top = Math.max(1, ...rates);
    by("peak").textContent = "up to " + rate(Math.max(0, ...rates));
    const points = rates.map((value, at) => [120 - (rates.length - 1 - at), 29 - 27 * value / top]);
    const line = points.map(([x, y], at) => (at ? "L" : "M") + x.toFixed(2) + " " + y.toFixed(2)).join("");
    const [area, stroke] = by("line").children;
    stroke.setAttribute("d", line);
    area.setAttribute("d", points.length > 1 ? line + "L120 30L" + points[0][0] + " 30Z" : "");
  };

  const show = () => {
    const now = samples[samples.length - 1].status;
    const first = samples[Math.max(0, samples.length - 1 - WINDOW)];
    const before = first.status;
    const seconds = Math.max(0.001, now.uptime - before.uptime);
    const per = (a, b) => first === samples[samples.length - 1] ? 0 : Math.max(0, a - b) / seconds;
    const known = new Map(before.operations.map(operation => [key(operation), operation]));
    const all = new Map();
    const operations = now.operations.map(operation => {
      const past = known.get(key(operation));
      const buckets = between(operation, past);
      buckets.forEach(([end, n]) => all.set(end, (all.get(end) || 0) + n));
      return { ...operation, past, buckets, rate: per(operation.count, past ? past.count : 0) };
    });
    operations.sort((a, b) => b.rate - a.rate || b.count - a.count);
    const whole = [...all].sort((a, b) => a[0] - b[0]);
    const failed = operations.reduce((sum, operation) => sum + per(errors(operation), errors(operation.past)), 0);
    const caches = status => status.exports.filter(e => e.cache).reduce(([h, m], { cache }) => [h + cache.hits, m + cache.misses], [0, 0]);
    const [hits, misses] = caches(now);

    by("about").textContent = now.version + ", up " + age(now.uptime);
    by("about").title = "process " + now.pid;
    by("tiles").replaceChildren(
      tile("operations/s", rate(per(now.done.requests, before.done.requests))),
      tile("sent/s", bytes(Math.round(per(now.done.sent, before.done.sent)))),
      tile("received/s", bytes(Math.round(per(now.done.received, before.done.received)))),
      tile("median", time(quantile(whole, 0.5))),
      tile("99th percentile", time(quantile(whole, 0.99))),
      tile("in flight, waiting", now.in_flight + ", " + now.parked),
      tile("connections", String(now.connections)),
      tile("errors/s", rate(failed), failed > 0 ? "bad" : ""),
      ...(hits + misses > 0 ? [tile("cache hits", (100 * hits / (hits + misses)).toFixed(1) + " %")] : []));
    draw();
    table("operations", [["operation"], ["protocol", "text wide"], ["per s"], ["median"], ["99 %"], ["99.9 %", "wide"], ["total", "wide"], ["failed"]],
      operations.slice(0, wholeList ? undefined : FEW).map(o => [o.name, o.protocol, rate(o.rate), time(quantile(o.buckets, 0.5)), time(quantile(o.buckets, 0.99)),
        time(quantile(o.buckets, 0.999)), count(o.count), [count(errors(o)), errors(o) ? "bad" : "none"]]),
      "no requests yet");
    by("all").hidden = operations.length <= FEW;
    by("all").textContent = wholeList ? "show the most frequent" : "show all " + operations.length;
    by("more").textContent = now.connections > now.clients.length ? "the " + now.clients.length + " busiest of " + now.connections : "";
    table("clients", [["address"], ["protocol", "text"], ["user", "text wide"], ["age", "wide"], ["requests"], ["sent"], ["received", "wide"], ["in flight", "wide"], ["waiting", "wide"]],
      now.clients.map(c => [c.peer.replace(/^tcp:/, ""), c.version || c.protocol, c.user, age(c.age), count(c.done.requests), bytes(c.done.sent),
        bytes(c.done.received), String(c.in_flight), String(c.parked)]),
      "no clients");
    const limits = ({ limit, client_limit }) => [limit, client_limit && client_limit + " per client"].filter(Boolean).join("; ") || "–";
    table("exports", [["name"], ["source", "text"], ["cache hits"], ["cached", "wide"], ["limit", "text wide"], ["delayed", "wide"], ["waiting", "wide"]],
      now.exports.map(e => ["/" + e.name, e.source,
        e.cache && e.cache.hits + e.cache.misses > 0 ? (100 * e.cache.hits / (e.cache.hits + e.cache.misses)).toFixed(1) + " %" : "–",
        e.cache ? bytes(e.cache.bytes) : "–", e.limit ? limits(e.limit) : "–", e.limit ? count(e.limit.delayed) : "–",
        e.limit ? String(e.limit.waiting) : "–"]),
      "no exports");
    const why = operations.flatMap(o => Object.entries(o.errors).map(([errno, n]) => [errno, o.name, n]));
    why.sort((a, b) => b[2] - a[2]);
    table("errors", [["error"], ["operation", "text"], ["total"]], why.map(([errno, name, n]) => [errno, name, count(n)]), "no errors");
  };

  by("all").addEventListener("click", () => { wholeList = !wholeList; show(); });
  const state = (text, mark) => { by("state").textContent = text; by("state").className = mark; };
  const look = async () => {
    try {
      const answer = await fetch("/status.json", { signal: AbortSignal.timeout(4000) });
      if (!answer.ok) throw new Error(answer.status);
      const status = await answer.json();
      const last = samples[samples.length - 1];
      if (last && last.status.pid !== status.pid) { samples.length = 0; rates.length = 0; }
      else if (last) rates.push(Math.max(0, status.done.requests - last.status.done.requests) / Math.max(0.001, status.uptime - last.status.uptime));
      samples.push({ status });
      if (samples.length > WINDOW + 1) samples.shift();
      if (rates.length > KEPT) rates.shift();
      show();
      state("live", "live");
    } catch (error) {
      state("no reply", "lost");
    }
    setTimeout(look, 1000);
  };
  look();
})();
