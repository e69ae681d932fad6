// Asking the node: requests, and the stream of events. Every request carries the header that foreign pages cannot send.

import { byId } from "./dom.js";

export class Refused extends Error {
  constructor(status, body) {
    super(body?.text ?? body?.message ?? `the node answered ${status}`);
    this.status = status;
    this.code = body?.name;
  }
}

const headers = () => ({ "walrq-page": "1" });

let asking = null;

/** The token that the reader types, or nothing. */
function question(why) {
  return new Promise((resolve) => {
    const dialog = byId("login");
    dialog.returnValue = "no";
    byId("token").value = "";
    byId("login-why").textContent = why;
    dialog.showModal();
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "yes" ? byId("token").value.trim() : "";
      byId("token").value = "";
      resolve(given);
    }, { once: true });
  });
}

/** Change a token for a cookie that no script sees; false when the reader has none. One question at a time. */
function login() {
  asking ??= (async () => {
    let why = "";
    try {
      for (;;) {
        const token = await question(why);
        if (!token) return false;
        const response = await fetch("/v1/login", {
          method: "POST",
          headers: { ...headers(), "content-type": "application/json" },
          body: JSON.stringify({ token }),
          cache: "no-store",
          credentials: "same-origin",
          redirect: "error",
        });
        if (response.ok) return true;
        why = response.status === 401 ? "The node does not know this token." : `The node answered ${response.status}.`;
      }
    } catch {
      return false;
    } finally {
      asking = null;
    }
  })();
  return asking;
}

/** The answer to one request; throws `Refused` for what the node refuses. */
export async function ask(method, path, body) {
  for (;;) {
    const options = { method, headers: headers(), cache: "no-store", credentials: "same-origin", redirect: "error" };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    const found = await response.json().catch(() => null);
    if (response.ok) return found;
    if (response.status === 401 && (await login())) continue;
    throw new Refused(response.status, found);
  }
}

/** An operation by its name, for any queue. */
export const request = (op, fields) => ask("POST", "/v1/request", { op, ...fields });

/** Events of `path` until `signal` ends it; reconnects by itself. `told` hears "live", "waiting" and errors. */
export async function follow(path, signal, onEvent, told) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await fetch(path, { headers: headers(), cache: "no-store", credentials: "same-origin", signal });
      if (response.status === 401) {
        if (!(await login())) return told("waiting", "no token");
        continue;
      }
      if (!response.ok) throw new Refused(response.status, await response.json().catch(() => null));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
          if (data) {
            pause = 500;
            told("live");
            onEvent(JSON.parse(data));
          }
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      told("waiting", error.message);
    }
    if (signal.aborted) return;
    told("waiting", "the connection ended");
    await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(pause * 2, 10000);
  }
}
