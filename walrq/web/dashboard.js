// The overview: totals, cluster, a page of queues, all from one stream of events. A queue's own dialog is in queue.js.

import { byId, draw, element, say, sparkline } from "./dom.js";
import { age, count, rate, short } from "./format.js";
import { follow } from "./node.js";
import { openQueue, refreshQueue } from "./queue.js";

const PAGE = 50;
// A minute of events.
const HISTORY = 60;
const TOTALS = [
  ["queues", "Queues"],
  ["ready", "Ready"],
  ["leased", "In flight"],
  ["delayed", "Delayed"],
  ["dead", "Dead (DLQ)"],
];

const wanted = { search: "", sort: "name", offset: 0 };
let stream = null;
// Of each total and each queue shown: what the last events said.
const totalHistory = new Map(TOTALS.map(([key]) => [key, []]));
let before = null;
const known = new Map();

// --- totals and cluster --------------------------------------------------------------------------------------
const cards = new Map();
for (const [key, name] of TOTALS) {
  const value = element("p", { class: "value", text: "–" });
  const note = element("p", { class: "rate" });
  const line = sparkline(`${name}, last minute`);
  byId("totals").append(
    element("li", { class: key }, element("p", { class: "name", text: name }), value, note, line),
  );
  cards.set(key, { value, note, line });
}

function remember(history, value) {
  history.push(value);
  if (history.length > HISTORY) history.shift();
}

/** Per second, from two looks at counters that start anew with the node. */
function rates(now, past) {
  const seconds = past ? now.at_s - past.at_s : 0;
  return now.counters.map((value, at) => (seconds > 0 ? Math.max(0, value - past.counters[at]) / seconds : 0));
}

function showTotals(totals) {
  // The node counts again only when there has been time to: between two counts the rate stays.
  if (!before || totals.at_s !== before.at_s) {
    const [pushed, delivered, acked] = rates(totals, before);
    if (before) {
      say(cards.get("ready").note, `+${rate(pushed)} / s pushed`);
      say(cards.get("leased").note, `${rate(delivered)} / s leased, ${rate(acked)} / s done`);
    }
    before = totals;
  }
  for (const [key] of TOTALS) {
    const card = cards.get(key);
    say(card.value, short(totals[key]));
    card.value.title = count(totals[key]);
    const history = totalHistory.get(key);
    remember(history, totals[key]);
    draw(card.line, history, HISTORY);
  }
  cards.get("dead").value.classList.toggle("some", totals.dead > 0);
}

function badge(text, kind) {
  return element("span", { class: `badge ${kind}`, text });
}

const ROLES = { leader: "good", voter: "quiet", learner: "warn" };
let shownCluster = "";

function showCluster(cluster) {
  const text = JSON.stringify(cluster);
  if (text === shownCluster) return;
  shownCluster = text;
  const leader = cluster.leader ? `${cluster.leader} leads` : "nobody leads";
  say(byId("cluster-line"), `${leader} · term ${count(cluster.term)} · ${count(cluster.commit_index)} entries decided · cluster ${cluster.cluster}`);
  const cards = cluster.members.map((member) => {
    const lag = member.match_index === null ? null : Math.max(0, cluster.commit_index - member.match_index);
    const facts = [
      lag === null ? "lag: only the leader knows" : `lag ${count(lag)} ${lag === 1 ? "entry" : "entries"}`,
      member.heard_ms === null ? null : `heard ${count(member.heard_ms)} ms ago`,
    ];
    const where = [member.endpoint && `clients ${member.endpoint}`, member.address && `peers ${member.address}`];
    return element(
      "li",
      {},
      element(
        "div",
        { class: "head" },
        element("strong", { text: member.node, title: member.node }),
        badge(member.role, ROLES[member.role] ?? "quiet"),
        badge(member.status || "unknown", member.status === "normal" ? "good" : "warn"),
      ),
      element("p", { text: facts.filter(Boolean).join(" · ") }),
      element("p", { class: "muted", text: where.filter(Boolean).join(" · ") }),
    );
  });
  byId("members").replaceChildren(...cards);
}

// --- queues --------------------------------------------------------------------------------------------------
const COLUMNS = [
  ["ready", "Ready"],
  ["leased", "In flight"],
  ["delayed", "Delayed"],
  ["dead", "Dead"],
  ["in", "In / s"],
  ["done", "Done / s"],
  ["oldest", "Oldest"],
];

function makeRow(queue) {
  const name = element("button", {
    type: "button",
    class: "name-button",
    text: queue.name,
    title: queue.name,
    on: { click: () => openQueue(known.get(queue.name)?.queue ?? queue) },
  });
  const tags = element("span");
  const cells = Object.fromEntries(COLUMNS.map(([key, label]) => [key, element("td", { class: "number", "data-label": label })]));
  const line = sparkline(`ready in ${queue.name}, last minute`);
  const row = element("tr", {}, element("td", {}, element("div", { class: "name-cell" }, name, tags)), ...Object.values(cells), element("td", {}, line));
  return { row, tags, cells, line, history: [], past: null, queue };
}

function showQueue(entry, queue, at_s) {
  // The node may tell again what it told a moment ago.
  if (entry.past?.at_s === at_s) return;
  const now = { at_s, counters: queue.counters };
  const [pushed, , acked] = rates(now, entry.past);
  entry.past = now;
  entry.queue = queue;
  remember(entry.history, queue.ready);
  draw(entry.line, entry.history, HISTORY);
  const numbers = {
    ready: short(queue.ready),
    leased: short(queue.leased),
    delayed: short(queue.delayed),
    dead: short(queue.dead),
    in: rate(pushed),
    done: rate(acked),
    oldest: age(queue.oldest_s),
  };
  for (const [key, cell] of Object.entries(entry.cells)) {
    say(cell, numbers[key]);
    cell.classList.toggle("muted-zero", numbers[key] === "0" || numbers[key] === "–");
  }
  entry.cells.dead.classList.toggle("some", queue.dead > 0);
  const tags = [queue.letters && "dead letters", queue.paused && "paused"].filter(Boolean);
  if (entry.tagged !== tags.join()) {
    entry.tagged = tags.join();
    entry.tags.replaceChildren(...tags.map((text) => element("span", { class: text === "paused" ? "tag warn" : "tag", text })));
  }
}

function showQueues(overview) {
  const names = new Set(overview.queues.map((queue) => queue.name));
  for (const name of known.keys()) if (!names.has(name)) known.delete(name);
  const rows = overview.queues.map((queue) => {
    let entry = known.get(queue.name);
    if (!entry) known.set(queue.name, (entry = makeRow(queue)));
    showQueue(entry, queue, overview.at_s);
    return entry.row;
  });
  const body = byId("rows");
  // Only what moved is touched, so that the focus stays where it is.
  if (rows.length !== body.children.length || rows.some((row, at) => body.children[at] !== row)) body.replaceChildren(...rows);
  const first = overview.offset + 1;
  const last = overview.offset + rows.length;
  say(byId("where"), overview.matches ? `${count(first)}–${count(last)} of ${count(overview.matches)}` : "none");
  byId("back").disabled = overview.offset === 0;
  byId("forth").disabled = last >= overview.matches;
  const empty = byId("empty");
  empty.hidden = overview.matches > 0;
  say(empty, wanted.search ? "No queue has that in its name." : "No queues yet: the first push makes one.");
  if (rows.length === 0 && overview.matches > 0) turn(0);
}

// --- the stream ----------------------------------------------------------------------------------------------
function show(overview) {
  say(byId("node"), `node ${overview.node} · ${overview.version}`);
  const consistency = byId("consistency");
  say(consistency, overview.consistency);
  consistency.title =
    overview.consistency === "local" ? "This node's own copy; nobody could confirm that it is up to date." : "Everything acknowledged is in these numbers.";
  consistency.className = overview.consistency === "local" ? "badge warn" : "badge quiet";
  showTotals(overview.totals);
  showCluster(overview.cluster);
  showQueues(overview);
  refreshQueue(overview, (name) => known.get(name)?.queue);
}

function told(state, why) {
  const link = byId("link");
  say(link, state === "live" ? "live" : "reconnecting");
  link.className = state === "live" ? "badge good" : "badge warn";
  link.title = why ?? "";
}

function restart() {
  stream?.abort();
  stream = new AbortController();
  const query = new URLSearchParams({ ...wanted, limit: PAGE });
  follow(`/v1/events?${query}`, stream.signal, show, told);
}

function turn(offset) {
  wanted.offset = Math.max(0, offset);
  restart();
}

let typing = 0;
byId("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    wanted.search = event.target.value;
    turn(0);
  }, 250);
});
byId("sort").addEventListener("change", (event) => {
  wanted.sort = event.target.value;
  turn(0);
});
byId("back").addEventListener("click", () => turn(wanted.offset - PAGE));
byId("forth").addEventListener("click", () => turn(wanted.offset + PAGE));
document.addEventListener("keydown", (event) => {
  const typed = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typed && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search").focus();
  }
});
// A page that nobody sees needs no stream.
document.addEventListener("visibilitychange", () => (document.hidden ? stream?.abort() : restart()));

// --- light and dark ------------------------------------------------------------------------------------------
const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme"), `Theme: ${theme}`);
  localStorage.setItem("walrq-theme", theme);
}
byId("theme").addEventListener("click", () => {
  const now = localStorage.getItem("walrq-theme") ?? "auto";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
setTheme(THEMES.includes(localStorage.getItem("walrq-theme")) ? localStorage.getItem("walrq-theme") : "auto");

restart();
