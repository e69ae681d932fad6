// One queue: its messages by state, its dead letters and what can be done about them, its settings.

import { byId, element, say } from "./dom.js";
import { age, bytes, count, dump, moment } from "./format.js";
import { ask, request } from "./node.js";

const PAGE = 10;
// One request moves this many; a long redrive is a series of them.
const STEP = 1000;
const TABS = [
  ["dead", "Dead letters"],
  ["ready", "Ready"],
  ["delayed", "Delayed"],
  ["leased", "In flight"],
  ["parked", "Parked"],
  ["settings", "Settings"],
];

const shown = { queue: null, tab: "dead", after: 0, next: 0, where: null, chosen: new Set(), page: [], load: 0 };

export function notify(text, bad = false) {
  const notice = byId("notice");
  notice.hidden = false;
  notice.className = bad ? "notice bad" : "notice";
  say(notice, text);
  const dialog = byId("detail");
  // What is below a modal dialog is not seen.
  (dialog.open ? dialog : document.body).insertBefore(notice, dialog.open ? dialog.firstChild : document.querySelector("main"));
}

/** Run what a button means; what the node refuses is said, never swallowed. */
async function attempt(what) {
  try {
    return await what();
  } catch (error) {
    notify(error.message, true);
    return undefined;
  }
}

// --- the dialog ----------------------------------------------------------------------------------------------
const tabs = new Map();
for (const [key, name] of TABS) {
  const tab = element("button", {
    type: "button",
    role: "tab",
    text: name,
    id: `tab-${key}`,
    "aria-controls": "panel",
    on: { click: () => go(key), keydown: (event) => moveTab(event, key) },
  });
  tabs.set(key, tab);
  byId("tabs").append(tab);
}

function moveTab(event, key) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const keys = [...tabs.keys()];
  const next = keys[(keys.indexOf(key) + step + keys.length) % keys.length];
  tabs.get(next).focus();
  go(next);
}

export function openQueue(queue) {
  shown.queue = queue;
  shown.where = null;
  for (const id of ["filter-reason", "filter-type", "filter-text"]) byId(id).value = "";
  byId("notice").hidden = true;
  say(byId("detail-name"), queue.name);
  describe(queue);
  if (!byId("detail").open) byId("detail").showModal();
  go(queue.dead > 0 ? "dead" : queue.ready > 0 || queue.delayed === 0 ? "ready" : "delayed");
}

/** New numbers came while the dialog is open. */
export function refreshQueue(overview, find) {
  if (!byId("detail").open || !shown.queue) return;
  const queue = find(shown.queue.name);
  if (queue) describe(queue);
}

function describe(queue) {
  shown.queue = queue;
  const facts = [
    `${count(queue.ready)} ready`,
    `${count(queue.leased)} in flight`,
    `${count(queue.delayed)} delayed`,
    `${count(queue.dead)} dead`,
    bytes(queue.bytes),
    queue.oldest_s > 0 && `oldest ${age(queue.oldest_s)}`,
  ];
  say(byId("detail-line"), facts.filter(Boolean).join(" · "));
  const tags = [queue.letters && "dead letters", queue.paused && "paused"].filter(Boolean).join();
  if (byId("detail-tags").textContent !== tags)
    byId("detail-tags").replaceChildren(...tags.split(",").filter(Boolean).map((text) => element("span", { class: "tag warn", text })));
  say(byId("pause"), queue.paused ? "Resume" : "Pause");
}

async function go(tab) {
  shown.tab = tab;
  shown.after = 0;
  for (const [key, button] of tabs) {
    button.setAttribute("aria-selected", String(key === tab));
    button.tabIndex = key === tab ? 0 : -1;
  }
  byId("panel").setAttribute("aria-labelledby", `tab-${tab}`);
  byId("filter").hidden = byId("bulk").hidden = tab !== "dead";
  await load();
}

async function load() {
  const number = ++shown.load;
  shown.chosen.clear();
  byId("choose-all").checked = false;
  const name = shown.queue.name;
  if (shown.tab === "settings") {
    const found = await attempt(() => request("show_queue", { queue: name }));
    if (found && number === shown.load) showSettings(found.settings);
    return;
  }
  const query = new URLSearchParams({ queue: name, state: shown.tab, after: shown.after, limit: PAGE });
  if (shown.tab === "dead" && shown.where) query.set("where", JSON.stringify(shown.where));
  const found = await attempt(() => ask("GET", `/v1/preview?${query}`));
  if (!found || number !== shown.load) return;
  shown.page = found.messages;
  shown.next = found.next;
  byId("panel").replaceChildren(
    ...(found.messages.length ? found.messages.map(showMessage) : [element("p", { class: "muted", text: "Nothing here." })]),
  );
  byId("panel").scrollTop = 0;
  paging(found.messages.length > 0);
  choices();
}

function paging(any) {
  byId("first").disabled = shown.after === 0;
  byId("more").disabled = !any || !shown.next;
}

function showSettings(settings) {
  const rows = Object.entries(settings).flatMap(([name, value]) => [
    element("dt", { text: name }),
    element("dd", { text: value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value) }),
  ]);
  byId("panel").replaceChildren(element("dl", { class: "settings" }, ...rows));
  shown.after = shown.next = 0;
  paging(false);
}

// --- messages ------------------------------------------------------------------------------------------------
function body(message) {
  if (message.payload === null && message.payload_base64 === undefined)
    return element("pre", { class: "muted", text: "the body was lost to disk damage" });
  const text = message.payload ?? dump(message.payload_base64);
  const rest = message.cut ? `\n… the first ${bytes(message.cut)} of ${bytes(message.bytes)}` : "";
  return element("pre", { text: (text || "(empty)") + rest, tabIndex: 0, "aria-label": "body" });
}

function history(message) {
  if (!message.history.length) return null;
  const lines = message.history.map((each) => {
    const what = [moment(each.at_ms), each.reason, each.worker && `by ${each.worker}`, each.error_type, each.error_text];
    return element("li", { text: what.filter(Boolean).join(" · ") });
  });
  return element("details", {}, element("summary", { text: lines.length === 1 ? "1 attempt remembered" : `${count(lines.length)} attempts remembered` }), element("ul", {}, ...lines));
}

function showMessage(message) {
  const dead = shown.tab === "dead";
  const last = message.history.at(-1);
  const facts = [
    `attempts ${count(message.attempts)}`,
    `deliveries ${count(message.delivery)}`,
    message.priority && `priority ${message.priority}`,
    message.group !== null && `group ${message.group}`,
    `pushed ${moment(message.pushed_ms)}`,
    message.due_ms && `due ${moment(message.due_ms)}`,
    message.deadline_in_ms && `lease ends in ${age(message.deadline_in_ms / 1000)}`,
    dead && message.died_ms && `died ${moment(message.died_ms)}`,
    message.bytes !== null && bytes(message.bytes),
  ];
  const why = [message.reason, last?.error_type, last?.error_text].filter(Boolean).join(": ");
  const choose =
    dead &&
    element("input", {
      type: "checkbox",
      "aria-label": `select message ${message.id}`,
      on: {
        change: (event) => {
          if (event.target.checked) shown.chosen.add(message.id);
          else shown.chosen.delete(message.id);
          choices();
        },
      },
    });
  return element(
    "article",
    { class: "message" },
    element(
      "div",
      { class: "facts" },
      choose && element("label", { class: "check" }, choose),
      element("code", { text: message.id }),
      ...facts.filter(Boolean).map((text) => element("span", { text })),
    ),
    dead && why && element("p", { class: "why", text: why }),
    message.headers && element("details", {}, element("summary", { text: "headers" }), element("pre", { text: JSON.stringify(message.headers, null, 1) })),
    body(message),
    history(message),
  );
}

// --- dead letters --------------------------------------------------------------------------------------------
function choices() {
  const some = shown.chosen.size;
  byId("requeue-some").disabled = byId("purge-some").disabled = some === 0;
  say(byId("requeue-some"), some ? `Requeue selected (${some})` : "Requeue selected");
  say(byId("purge-some"), some ? `Purge selected (${some})` : "Purge selected");
  const all = shown.where ? "all that match" : "all";
  say(byId("requeue-all"), `Requeue ${all}`);
  say(byId("purge-all"), `Purge ${all}`);
}

/** The reader's yes to something, after he saw what it is about. */
function confirmed(title, text, list, action, danger) {
  const dialog = byId("confirm");
  say(byId("confirm-title"), title);
  say(byId("confirm-text"), text);
  byId("confirm-list").replaceChildren(...list.map((line) => element("li", { text: line })));
  const yes = byId("confirm-yes");
  say(yes, action);
  yes.className = danger ? "main danger" : "main";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

const line = (message) =>
  [message.id, message.reason, message.history.at(-1)?.error_type].filter(Boolean).join("  ");

/** What a filter stands for, in words. */
function words(where) {
  if (!where) return "every dead message";
  const parts = [
    where.ids && `${where.ids.length} selected`,
    where.reason && `reason ${where.reason}`,
    where.error_type && `error type ${where.error_type}`,
    where.error_contains && `error text with “${where.error_contains}”`,
  ];
  return parts.filter(Boolean).join(", ");
}

async function settle(op, where) {
  const queue = shown.queue.name;
  const redrives = op === "redrive";
  await attempt(async () => {
    // A dry run first: nobody agrees to a number that he was not told.
    const found = await request("redrive", { queue, where, limit: STEP, dry_run: true });
    const number = found.more ? `at least ${count(found.count)}` : count(found.count);
    if (!found.count) return notify("No dead message matches.");
    const listed = where?.ids ? shown.page.filter((each) => where.ids.includes(each.id)).map(line) : shown.page.map(line);
    const text = redrives
      ? `Dead messages to requeue: ${number} (${words(where)}). They go back behind the waiting work, attempts at 0.`
      : `Dead messages to remove: ${number} (${words(where)}). This cannot be undone.`;
    const title = redrives ? `Requeue in ${queue}?` : `Purge dead letters of ${queue}?`;
    if (!(await confirmed(title, text, listed, redrives ? `Requeue ${number}` : `Purge ${number}`, !redrives))) return;
    let done = 0;
    if (redrives) {
      for (let more = true; more; ) {
        const moved = await request("redrive", { queue, where, limit: STEP });
        done += moved.count;
        more = moved.more && moved.count > 0;
        notify(`Requeued: ${count(done)}${more ? " so far …" : ""}`);
      }
    } else {
      done = (await request("purge_dead", { queue, where })).count;
      notify(`Removed: ${count(done)}`);
    }
    shown.after = 0;
    await load();
  });
}

byId("requeue-some").addEventListener("click", () => settle("redrive", { ids: [...shown.chosen] }));
byId("purge-some").addEventListener("click", () => settle("purge", { ids: [...shown.chosen] }));
byId("requeue-all").addEventListener("click", () => settle("redrive", shown.where));
byId("purge-all").addEventListener("click", () => settle("purge", shown.where));
byId("choose-all").addEventListener("change", (event) => {
  for (const box of byId("panel").querySelectorAll(".message input[type=checkbox]")) {
    if (box.checked !== event.target.checked) box.click();
  }
});
byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  const where = {
    reason: byId("filter-reason").value || undefined,
    error_type: byId("filter-type").value || undefined,
    error_contains: byId("filter-text").value || undefined,
  };
  shown.where = Object.values(where).some(Boolean) ? where : null;
  shown.after = 0;
  load();
});

// --- the rest ------------------------------------------------------------------------------------------------
byId("pause").addEventListener("click", () =>
  attempt(async () => {
    const queue = shown.queue;
    const found = await request("set_queue", { queue: queue.name, settings: { paused: !queue.paused }, create: false });
    describe({ ...queue, paused: found.settings.paused });
    notify(found.settings.paused ? "Paused: polls get nothing from this queue." : "Resumed.");
    if (shown.tab === "settings") showSettings(found.settings);
  }),
);
byId("first").addEventListener("click", () => {
  shown.after = 0;
  load();
});
byId("more").addEventListener("click", () => {
  shown.after = shown.next;
  load();
});
byId("detail-close").addEventListener("click", () => byId("detail").close());
byId("detail").addEventListener("close", () => {
  byId("notice").hidden = true;
  document.body.insertBefore(byId("notice"), document.querySelector("main"));
  shown.queue = null;
  shown.load++;
});
