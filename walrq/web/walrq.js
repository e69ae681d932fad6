/**
 * walrq for web pages: one ES module, no build step, nothing to install.
 *
 *     import { connect } from "./walrq.js";
 *
 *     const client = await connect("ws://127.0.0.1:50052");
 *     await client.push("jobs", "hello");
 *     for await (const message of client.consume("jobs")) {
 *       console.log(message.text());
 *       await message.ack();
 *     }
 *
 * It speaks walrq.json.v1 (docs/browser.md). Times are seconds, as in every client of walrq. Requests that change
 * something carry a number in a session, so that one whose connection broke is asked again on the next node and takes
 * effect once. A call that cannot be answered ends with a WalrqError that says whether it may have happened.
 */

export const SUBPROTOCOL = "walrq.json.v1";

const CLIENT_NAME = "walrq.js/1";
const CONNECT_MS = 5000;
const BACK_OFF_MS = 100;
const BACK_OFF_MS_MAX = 2000;
// Silence after which the node is asked for a sign of life, and how long it then has.
const QUIET_MS = 20000;
const PROBE_MS = 10000;
// Requests under way at a time; parked polls do not count, they would keep out the acks they wait for.
const WINDOW = 64;
// How far the lowest open number may stay behind the newest before old polls are asked anew: a quarter of what the
// server remembers.
const RENEW_SPAN = 1024;
const UNKNOWN_TRIES_MAX = 3;
const TIMER_MS_MAX = 2 ** 31 - 1;

const NOT_CONNECTED = 0;
const SESSION_ENDED = 73;
const OUTCOME_UNKNOWN = 70;
const REPLY_TIMEOUT = 72;
const CONNECTION_LOST = 74;

// Requests that change something, or lease: those that a session protects. The others may simply be asked again.
const SEQUENCED = new Set([
  "push", "poll", "ack", "release", "fail", "reject", "touch", "forget", "cancel", "reschedule", "set_queue",
  "purge_queue", "delete_queue", "redrive", "purge_dead", "move", "close_session",
]);

/** What the server refused, or what nobody can tell. */
export class WalrqError extends Error {
  /** @param {{code: number, name: string|null, text: string, definite: boolean, retry: boolean, details?: object}} failed */
  constructor(failed) {
    super(failed.text);
    this.name = "WalrqError";
    /** The number of the error table. */
    this.code = failed.code;
    /** Its word, QUEUE_NOT_FOUND say. */
    this.reason = failed.name;
    /** True: it did not and will not happen. */
    this.definite = failed.definite;
    /** True: the same request may succeed later. */
    this.retry = failed.retry;
    this.details = failed.details ?? {};
  }
}

const failure = (code, name, text, definite, retry = true) => new WalrqError({ code, name, text, definite, retry });

// --- bytes ----------------------------------------------------------------------------------------------------------
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

function toBase64(bytes) {
  if (typeof bytes.toBase64 === "function") return bytes.toBase64();
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(text);
}

function fromBase64(text) {
  if (typeof Uint8Array.fromBase64 === "function") return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The fields of one message to push. */
function body(payload) {
  if (typeof payload === "string") return { payload };
  if (payload instanceof ArrayBuffer) return { payload_base64: toBase64(new Uint8Array(payload)) };
  if (ArrayBuffer.isView(payload)) {
    return { payload_base64: toBase64(new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength)) };
  }
  throw new TypeError("a payload is text or bytes (Uint8Array, ArrayBuffer); of other values push JSON.stringify(value)");
}

const milliseconds = (seconds, name) => {
  if (typeof seconds !== "number" || !Number.isFinite(seconds) || seconds < 0) {
    throw new RangeError(`${name} is ${seconds}, it must be a number of seconds from 0`);
  }
  return Math.round(seconds * 1000);
};

const moment = (at, name) => {
  const ms = at instanceof Date ? at.getTime() : at;
  if (typeof ms !== "number" || !Number.isFinite(ms)) throw new RangeError(`${name} must be a Date or ms since 1970`);
  return Math.round(ms);
};

/** Options of a push as fields of the request. */
function pushFields({ priority, delay, deliverAt, ttl, maxAttempts }) {
  const fields = {};
  if (priority !== undefined) fields.priority = priority;
  if (delay !== undefined) fields.delay_ms = milliseconds(delay, "delay");
  if (deliverAt !== undefined) fields.deliver_at_ms = moment(deliverAt, "deliverAt");
  if (ttl !== undefined) fields.ttl_ms = milliseconds(ttl, "ttl");
  if (maxAttempts !== undefined) fields.max_attempts = maxAttempts;
  return fields;
}

function messageFields(payload, { headers, group, dedupId }) {
  const fields = body(payload);
  if (headers !== undefined) fields.headers = headers;
  if (group !== undefined) fields.group = group;
  if (dedupId !== undefined) fields.dedup_id = dedupId;
  return fields;
}

/** What a worker wants kept with a failed message: an Error, or text. */
function errorFields(error) {
  if (error === undefined) return {};
  const cut = (text, bytes) => {
    const coded = encoder.encode(text);
    return coded.length <= bytes ? text : decoder.decode(coded.subarray(0, bytes), { stream: true });
  };
  const fresh = error instanceof Error ? { type: error.name, text: error.message } : { type: "Error", text: String(error) };
  return { error_type: cut(fresh.type, 255), error_text: cut(fresh.text, 4096) };
}

// --- messages -------------------------------------------------------------------------------------------------------
/** One leased message. */
export class Message {
  #client;
  #body;
  #settled = false;
  #extending = null;

  constructor(client, given, leasedUntil, visibility) {
    this.#client = client;
    this.queue = given.queue;
    this.id = given.id;
    this.receiptHandle = given.receipt_handle;
    this.headers = given.headers ?? {};
    this.group = given.group;
    this.priority = given.priority;
    /** How many times it has been leased, and how many attempts counted before this one. */
    this.delivery = given.delivery;
    this.attempts = given.attempts;
    this.pushedAt = new Date(given.pushed_ms);
    /** [log index, ordinal] of the lease, for other systems to compare. */
    this.fence = given.fence;
    /** Disk damage destroyed the body. */
    this.lost = given.lost;
    /** performance.now() at which the lease ends, by this page's clock, which counts from before the server's did. */
    this.leasedUntil = leasedUntil;
    this.visibility = visibility;
    this.#body = given.payload_base64 !== undefined ? fromBase64(given.payload_base64) : given.payload;
  }

  /** Text where the payload is UTF-8 without control characters, else bytes; null when it is lost. */
  get payload() {
    return this.#body;
  }

  /** The payload's bytes. */
  bytes() {
    if (this.#body === null) throw failure(19, "BODY_LOST", `the body of message ${this.id} was lost`, true, false);
    return typeof this.#body === "string" ? encoder.encode(this.#body) : this.#body;
  }

  /** The payload as text. */
  text() {
    const found = typeof this.#body === "string" ? this.#body : decoder.decode(this.bytes());
    return found;
  }

  /** The payload, read as JSON. */
  json() {
    return JSON.parse(this.text());
  }

  /** Whether it was given back or acknowledged by this page. */
  get settled() {
    return this.#settled;
  }

  /** It is done: remove it. */
  ack(options) {
    return this.#client.ack(this, options);
  }

  /** It is not done: `fail` (counts; back after a while), `release` (free; back at once), `reject` (dead). */
  nack(options) {
    return this.#client.nack(this, options);
  }

  /** Let the lease end `visibility` seconds from now, never earlier than it would. */
  touch(visibility, options) {
    return this.#client.touch(this, visibility, options);
  }

  /** Touch it from time to time until it is settled, or until what is returned is called. */
  extend() {
    this.stopExtending();
    const pause = () => Math.min(TIMER_MS_MAX, Math.max(1, ((this.leasedUntil - performance.now()) / 3) | 0));
    const again = () => {
      this.#extending = setTimeout(async () => {
        try {
          await this.touch(this.visibility);
        } catch (error) {
          // The lease is over: whoever acknowledges is told.
          if (!(error instanceof WalrqError)) throw error;
          if (error.definite) return;
        }
        if (this.#extending !== null && !this.#settled) again();
      }, pause());
    };
    again();
    return () => this.stopExtending();
  }

  /** End what `extend` began. */
  stopExtending() {
    clearTimeout(this.#extending);
    this.#extending = null;
  }

  /** @internal */
  _settled() {
    this.#settled = true;
    this.stopExtending();
  }
}

// --- calls ----------------------------------------------------------------------------------------------------------
class Call {
  constructor(op, fields) {
    this.op = op;
    this.fields = fields;
    this.sequenced = SEQUENCED.has(op);
    this.waitMs = op === "poll" ? (fields.wait_ms ?? 0) : 0;
    this.waitsUntil = performance.now() + this.waitMs;
    this.sequence = null;
    this.sends = 0;
    this.sentAt = 0;
    this.tries = 0;
    this.done = false;
    this.timer = null;
    this.refusal = null;
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  get parks() {
    return this.waitMs > 0;
  }
}

// --- the client -----------------------------------------------------------------------------------------------------
/** A page's way to a cluster; made by `connect`. Events: "open", "lost" (with `reason`), "closed". */
export class Client extends EventTarget {
  #options;
  #urls;
  #turn = 0;
  #failures = 0;
  #socket = null;
  #up = false;
  #closed = false;
  #session = null;
  #sequence = 0;
  #nextId = 1;
  // Calls without a final answer, by number: the first key is the lowest. A Map keeps the order of insertion.
  #open = new Map();
  #flying = new Map();
  #waiting = [];
  #resting = new Set();
  #opening = null;
  #announced = false;
  #left = false;
  #heardAt = 0;
  #probe = null;
  #retry = null;
  #first;

  constructor(urls, options) {
    super();
    this.#options = options;
    this.#urls = urls;
    this.welcome = null;
    this.#first = Promise.withResolvers ? Promise.withResolvers() : withResolvers();
  }

  /** The address of the node that is connected, or tried next. */
  get url() {
    return this.#urls[this.#turn % this.#urls.length];
  }

  /** Whether requests can be sent now. */
  get connected() {
    return this.#up;
  }

  /** @internal */
  async _connect() {
    const { timeout, signal } = this.#options;
    const timer = setTimeout(() => {
      this.#first.reject(failure(NOT_CONNECTED, "NOT_CONNECTED", `no node answered at ${this.#urls.join(", ")}; is it up, and may pages of this origin use it?`, true));
    }, timeout * 1000);
    const abort = () => this.#first.reject(signal.reason);
    signal?.addEventListener("abort", abort, { once: true });
    try {
      signal?.throwIfAborted();
      this.#attempt();
      await this.#first.promise;
    } catch (error) {
      this.#end(error);
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
    return this;
  }

  // --- requests -------------------------------------------------------------------------------------------------------
  /** Append a message; its id. */
  async push(queue, payload, options = {}) {
    const reply = await this.request("push", { queue, ...messageFields(payload, options), ...pushFields(options) }, options);
    return reply.ids[0];
  }

  /** Append messages, all or none: text, bytes, or {payload, headers, group, dedupId}; their ids. */
  async pushBatch(queue, messages, options = {}) {
    const entries = [...messages].map((each) => {
      const plain = typeof each === "string" || each instanceof ArrayBuffer || ArrayBuffer.isView(each);
      return plain ? messageFields(each, {}) : messageFields(each.payload, each);
    });
    if (!entries.length) return [];
    const reply = await this.request("push", { queue, messages: entries, ...pushFields(options) }, options);
    return reply.ids;
  }

  /** Lease up to `maxMessages` from the first of the queues that has some; wait up to `wait` seconds for them. */
  async poll(queues, options = {}) {
    const { maxMessages, visibility, wait, worker = this.#options.worker } = options;
    const fields = typeof queues === "string" ? { queue: queues } : { queues: [...queues] };
    if (maxMessages !== undefined) fields.max_messages = maxMessages;
    if (visibility !== undefined) fields.visibility_ms = milliseconds(visibility, "visibility");
    if (wait !== undefined) fields.wait_ms = milliseconds(wait, "wait");
    if (worker !== undefined) fields.worker = worker;
    const call = this.#submit("poll", fields, options);
    const reply = await call.promise;
    // The lease began between the sending and the answer; counting from the sending errs on the safe side.
    const until = call.sentAt + reply.parked_ms + reply.visibility_ms;
    return reply.messages.map((each) => new Message(this, each, until, reply.visibility_ms / 1000));
  }

  /**
   * Messages as they come, for `for await`. The one in hand is touched until it is settled or the next one is asked
   * for (`extend: false` leaves that to you). Leaving the loop gives back what was leased and not handed out.
   */
  async *consume(queues, options = {}) {
    const { extend = true, signal, wait = 30, maxMessages = 10, ...rest } = options;
    let leased = [];
    let inHand = null;
    try {
      while (!this.#closed) {
        // While it waits here for its turn a message may come to the end of its lease: then it is not handed out.
        leased = leased.filter((each) => each.leasedUntil > performance.now());
        if (!leased.length) {
          leased = await this.poll(queues, { ...rest, wait, maxMessages, signal, timeout: Infinity });
          continue; // they may have been on their way for long
        }
        inHand = leased.shift();
        if (extend) inHand.extend();
        yield inHand;
        inHand.stopExtending();
        inHand = null;
        signal?.throwIfAborted();
      }
    } catch (error) {
      if (!this.#left) throw error;
    } finally {
      inHand?.stopExtending();
      if (leased.length && !this.#closed) {
        await this.nack(leased, { mode: "release" }).catch(() => undefined);
      }
    }
  }

  /** They are done: remove them. One message of the client, several, or {queue, receiptHandle}. */
  async ack(what, options = {}) {
    await this.#settle("ack", what, {}, options);
  }

  /** They are not done; see `Message.nack`. `delay` in seconds goes with `fail`, `error` with `fail` and `reject`. */
  async nack(what, options = {}) {
    const { mode = "fail", delay, error } = options;
    if (!["fail", "release", "reject"].includes(mode)) {
      throw new TypeError(`mode is ${mode}, allowed are fail, release and reject`);
    }
    const fields = mode === "release" ? {} : errorFields(error);
    if (delay !== undefined) fields.delay_ms = milliseconds(delay, "delay");
    await this.#settle(mode, what, fields, options);
  }

  /** Let leases end `visibility` seconds from now, never earlier than they would. */
  async touch(what, visibility, options = {}) {
    const visibility_ms = milliseconds(visibility ?? list(what)[0]?.visibility, "visibility");
    const calls = byQueue(what).map(([queue, messages]) => ({
      messages,
      call: this.#submit("touch", { queue, receipt_handles: messages.map(handle), visibility_ms }, options),
    }));
    await settleAll(calls, (message, reply, position, call) => {
      if (message instanceof Message) message.leasedUntil = call.sentAt + reply.remaining_ms[position];
    });
  }

  /** Any operation of docs/json.md by its name, with its fields as they are there; its reply. */
  async request(op, fields = {}, options = {}) {
    return this.#submit(op, fields, options).promise;
  }

  /** Look at messages without any side effect: a page, and the cursor of the next. */
  peek(queue, fields = {}, options = {}) {
    return this.request("peek", { queue, ...fields }, options);
  }

  /** Settings and counts of a queue. */
  show(queue, options = {}) {
    return this.request("show_queue", { queue }, options);
  }

  /** End the session and the connection. Calls that are under way end with an error. */
  async close() {
    if (this.#closed) return;
    this.#left = true;
    if (this.#up && this.#session !== null) {
      const goodbye = this.#submit("close_session", {}, { timeout: 1 }).promise;
      await goodbye.catch(() => undefined);
    }
    this.#end(failure(CONNECTION_LOST, "CONNECTION_LOST", "the client is closed", false, false));
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }

  async #settle(op, what, fields, options) {
    const calls = byQueue(what).map(([queue, messages]) => ({
      messages,
      call: this.#submit(op, { queue, receipt_handles: messages.map(handle), ...fields }, options),
    }));
    await settleAll(calls, (message) => {
      if (message instanceof Message) message._settled();
    });
  }

  // --- calls ----------------------------------------------------------------------------------------------------------
  #submit(op, fields, { signal, timeout = this.#options.timeout } = {}) {
    const call = new Call(op, fields);
    // Whoever waits for it is told; that nobody does yet is no reason to complain.
    call.promise.catch(() => undefined);
    if (this.#closed) {
      this.#finish(call, failure(NOT_CONNECTED, "NOT_CONNECTED", "the client is closed", true, false));
      return call;
    }
    if (signal?.aborted) {
      this.#finish(call, signal.reason);
      return call;
    }
    if (signal) {
      call.abort = () => this.#abandon(call, signal.reason);
      call.signal = signal;
      signal.addEventListener("abort", call.abort, { once: true });
    }
    const patience = timeout * 1000 + call.waitMs;
    if (patience < TIMER_MS_MAX) call.timer = setTimeout(() => this.#abandon(call, overdue(call)), patience);
    this.#waiting.push(call);
    this.#pump();
    return call;
  }

  /** The caller went away: nothing it leased stays leased for it, as far as the server can still be told. */
  #abandon(call, error) {
    if (call.done) return;
    this.#remove(call);
    if (call.sequence !== null) {
      if (call.op === "poll" && call.sends) this.#forget(call.sequence);
      else this.#open.delete(call.sequence);
    }
    this.#finish(call, error);
    this.#pump();
  }

  /** Its number stays open until the answer, so that `lowest` does not pass it before the server looked. */
  #forget(sequence) {
    const forget = new Call("forget", { forget: sequence });
    forget.promise.catch(() => undefined);
    this.#open.set(sequence, forget);
    this.#waiting.unshift(forget);
  }

  #remove(call) {
    this.#flying.delete(call.id);
    this.#resting.delete(call);
    this.#waiting = this.#waiting.filter((each) => each !== call);
  }

  #finish(call, error, reply) {
    if (call.done) return;
    call.done = true;
    clearTimeout(call.timer);
    clearTimeout(call.rest);
    call.signal?.removeEventListener("abort", call.abort);
    if (call.sequence !== null && this.#open.get(call.sequence) === call) this.#open.delete(call.sequence);
    if (call.op === "forget" && this.#open.get(call.fields.forget) === call) this.#open.delete(call.fields.forget);
    if (error !== undefined) call.reject(error);
    else call.resolve(reply);
  }

  #pump() {
    while (this.#up && this.#waiting.length) {
      const call = this.#waiting[0];
      let busy = 0;
      for (const each of this.#flying.values()) busy += each.parks ? 0 : 1;
      if (!call.parks && call.op !== "forget" && busy >= WINDOW) return;
      this.#waiting.shift();
      this.#send(call);
    }
  }

  #send(call) {
    const now = performance.now();
    if (call.parks) call.fields = { ...call.fields, wait_ms: Math.max(0, Math.round(call.waitsUntil - now)) };
    const message = { id: this.#nextId++, op: call.op, ...call.fields };
    if (call.sequenced && this.#session !== null) {
      if (call.sequence === null) {
        call.sequence = ++this.#sequence;
        this.#open.set(call.sequence, call);
        call.sends = 0;
      }
      message.sequence = call.sequence;
      message.lowest = this.#lowest();
    }
    call.id = message.id;
    if (!call.sends) call.sentAt = now;
    call.sends += 1;
    this.#flying.set(call.id, call);
    this.#socket.send(JSON.stringify(message));
    this.#renew();
  }

  #lowest() {
    let lowest = this.#sequence;
    for (const sequence of this.#open.keys()) if (sequence < lowest) lowest = sequence;
    return lowest;
  }

  /** Ask old parked polls anew when they hold the lowest number far behind. */
  #renew() {
    if (this.#sequence - this.#lowest() < RENEW_SPAN) return;
    for (const [sequence, call] of [...this.#open]) {
      if (this.#sequence - sequence < RENEW_SPAN / 2) continue;
      if (call.parks && this.#flying.delete(call.id)) this.#anew(call);
    }
  }

  /** Forget what a parked poll leased or may lease, and ask it under a new number. */
  #anew(call) {
    this.#forget(call.sequence);
    call.sequence = null;
    call.sends = 0;
    this.#waiting.push(call);
  }

  // --- answers --------------------------------------------------------------------------------------------------------
  #answered(reply) {
    const call = this.#flying.get(reply.id);
    if (!call) return;
    this.#flying.delete(reply.id);
    if (reply.reply !== "failed") {
      this.#finish(call, undefined, reply);
    } else {
      this.#refused(call, new WalrqError(reply));
    }
    this.#pump();
  }

  #refused(call, error) {
    if (error.code === SESSION_ENDED) {
      this.#sessionEnded(call, call.sends === 1);
      return;
    }
    call.tries += 1;
    const again =
      error.retry &&
      call.op !== "forget" &&
      !("field" in error.details) &&
      (error.definite || !SEQUENCED.has(call.op) || call.sequence !== null) &&
      (error.code !== OUTCOME_UNKNOWN || call.tries < UNKNOWN_TRIES_MAX);
    if (!again) {
      this.#finish(call, error);
      return;
    }
    call.refusal = error;
    if (error.definite && call.sends === 1 && call.sequence !== null) {
      // The session remembers the refusal; of a request that was sent before it says nothing about the first sending.
      this.#open.delete(call.sequence);
      call.sequence = null;
    }
    const pause = Math.max(backOff(call.tries), Math.min(error.details.retry_after_ms ?? 0, BACK_OFF_MS_MAX));
    this.#resting.add(call);
    call.rest = setTimeout(() => {
      if (this.#resting.delete(call)) {
        this.#waiting.unshift(call);
        this.#pump();
      }
    }, pause);
  }

  #sessionEnded(call, first) {
    this.#open.delete(call.sequence);
    if (call.op === "forget") {
      this.#finish(call, failure(SESSION_ENDED, "SESSION_ENDED", "the session ended", false, false));
    } else if (first || call.op === "poll") {
      call.sequence = null;
      call.sends = 0;
      this.#waiting.push(call);
    } else {
      const text = "the session ended while the request was being retried: it may have taken effect or not";
      this.#finish(call, failure(SESSION_ENDED, "SESSION_ENDED", text, false, false));
    }
    if (this.#up) {
      // The rest of it is answered likewise; the next one starts on this very connection.
      this.#up = false;
      this.#session = null;
      this.#openSession();
    }
  }

  // --- the connection -------------------------------------------------------------------------------------------------
  #attempt() {
    if (this.#closed) return;
    let socket;
    try {
      socket = new (this.#options.WebSocket ?? globalThis.WebSocket)(this.url, [SUBPROTOCOL]);
    } catch (error) {
      // An address that is none will never be one.
      this.#first.reject(error);
      return;
    }
    this.#socket = socket;
    this.#opening = null;
    const slow = setTimeout(() => this.#lost(socket, "no answer in time"), CONNECT_MS);
    socket.onopen = () => {
      const hello = { op: "hello", client: CLIENT_NAME, session: this.#session };
      if (this.#options.token !== undefined) hello.token = this.#options.token;
      socket.send(JSON.stringify(hello));
    };
    socket.onmessage = (event) => {
      if (socket !== this.#socket) return;
      this.#heardAt = performance.now();
      const reply = JSON.parse(event.data);
      if (reply.reply === "welcome") {
        clearTimeout(slow);
        this.#welcomed(reply);
      } else if (reply.reply === "goaway") {
        // What is under way is still answered; the server closes then.
        this.#up = false;
      } else if (reply.id === 0) {
        this.#givenUp(new WalrqError(reply));
      } else if (reply.id === this.#opening) {
        this.#sessionOpened(reply);
      } else {
        this.#answered(reply);
      }
    };
    socket.onclose = (event) => {
      clearTimeout(slow);
      this.#lost(socket, event.reason || `closed with code ${event.code}`);
    };
    socket.onerror = () => undefined; // a close follows
  }

  #welcomed(welcome) {
    if (this.welcome && this.welcome.cluster !== welcome.cluster) {
      this.#end(failure(30, "WRONG_CLUSTER", `${this.url} belongs to another cluster than before`, false, false));
      return;
    }
    this.welcome = welcome;
    const scheme = this.url.slice(0, this.url.indexOf("//"));
    for (const { endpoint } of welcome.nodes) {
      const url = `${scheme}//${endpoint}`;
      if (!this.#urls.some((known) => same(known, url))) this.#urls.push(url);
    }
    if (this.#session !== null && welcome.session === this.#session) this.#ready();
    else this.#openSession();
  }

  #openSession() {
    this.#opening = this.#nextId++;
    this.#socket.send(JSON.stringify({ id: this.#opening, op: "open_session" }));
  }

  #sessionOpened(reply) {
    if (reply.reply === "session") {
      this.#session = reply.session;
      // Calls of an earlier session that were sent have lost what made it safe to ask again.
      for (const call of [...this.#open.values()]) {
        this.#remove(call);
        this.#open.delete(call.sequence);
        if (!call.done) this.#sessionEndedLate(call);
      }
      this.#open.clear();
      this.#ready();
    } else {
      // Not now: nobody leads, say. Another node may know better.
      this.#lost(this.#socket, reply.text);
    }
  }

  #sessionEndedLate(call) {
    const up = this.#up;
    this.#up = false;
    this.#sessionEnded(call, false);
    this.#up = up;
  }

  #ready() {
    this.#up = true;
    this.#failures = 0;
    this.#watch();
    this.#first.resolve();
    if (!this.#announced) {
      this.#announced = true;
      this.dispatchEvent(new Event("open"));
    }
    this.#pump();
  }

  /** The server said why it gives the connection up; some reasons are final. */
  #givenUp(error) {
    if (!error.retry && error.code < 50) this.#end(error);
  }

  #lost(socket, reason) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    this.#up = false;
    clearTimeout(this.#probe);
    socket.onclose = socket.onmessage = null;
    socket.close();
    if (this.#closed) return;
    const again = [...this.#flying.values()].sort((a, b) => a.id - b.id);
    this.#flying.clear();
    const kept = [];
    for (const call of again) {
      if (call.parks && call.sequence !== null) this.#anew(call);
      else if (!call.sequenced || call.sequence !== null) kept.push(call);
      else {
        const text = "the connection broke before the answer came: it may have happened";
        this.#finish(call, failure(CONNECTION_LOST, "CONNECTION_LOST", text, false));
      }
    }
    this.#waiting.unshift(...kept);
    if (this.#announced) {
      this.#announced = false;
      this.dispatchEvent(Object.assign(new Event("lost"), { reason }));
    }
    // Round once without a pause: with one node of three gone the next one has a leader, or will have soon.
    this.#turn += 1;
    this.#failures += 1;
    const pause = this.#failures < this.#urls.length ? 0 : backOff(this.#failures - this.#urls.length + 1);
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#attempt(), pause);
  }

  /** A connection that died without a word is noticed by its silence. */
  #watch() {
    clearTimeout(this.#probe);
    this.#heardAt = performance.now();
    const look = () => {
      const quiet = performance.now() - this.#heardAt;
      if (quiet < QUIET_MS) {
        this.#probe = setTimeout(look, QUIET_MS - quiet);
        return;
      }
      const socket = this.#socket;
      const asked = performance.now();
      socket.send(JSON.stringify({ id: this.#nextId++, op: "ping" }));
      this.#probe = setTimeout(() => {
        if (this.#heardAt < asked) this.#lost(socket, "the node does not answer");
        else look();
      }, PROBE_MS);
    };
    this.#probe = setTimeout(look, QUIET_MS);
  }

  #end(error) {
    if (this.#closed) return;
    this.#closed = true;
    this.#up = false;
    clearTimeout(this.#probe);
    clearTimeout(this.#retry);
    const socket = this.#socket;
    this.#socket = null;
    if (socket) {
      socket.onclose = socket.onmessage = null;
      socket.close();
    }
    for (const call of [...this.#flying.values(), ...this.#waiting, ...this.#resting]) this.#finish(call, error);
    this.#flying.clear();
    this.#waiting = [];
    this.#resting.clear();
    this.#first.promise.catch(() => undefined);
    this.#first.reject(error);
    this.dispatchEvent(Object.assign(new Event("closed"), { error }));
  }
}

/**
 * A client that is connected, once it is.
 *
 * @param urls one address or several, "ws://127.0.0.1:50052"; the cluster's other nodes are learned.
 * @param options token; timeout in seconds (30) of each call, its wait not counted; worker, the name in death
 *   reports; signal, which ends the connecting.
 */
export async function connect(urls, options = {}) {
  const given = typeof urls === "string" ? urls.split(",") : [...urls];
  const found = given.map((each) => String(each).trim()).filter(Boolean);
  const right = found.filter((each) => /^wss?:\/\/[^/]/i.test(each));
  if (!found.length || right.length < found.length) {
    const what = found.find((each) => !right.includes(each));
    throw new TypeError(`connect needs addresses like ws://127.0.0.1:50052${what === undefined ? "" : `, not ${what}`}`);
  }
  return new Client(found, { timeout: 30, ...options })._connect();
}

// --- small things ---------------------------------------------------------------------------------------------------
const list = (what) => (what != null && typeof what[Symbol.iterator] === "function" ? [...what] : [what]);

function handle(message) {
  const found = message?.receiptHandle;
  if (typeof found !== "string") throw new TypeError("a message needs queue and receiptHandle");
  return found;
}

function byQueue(what) {
  const queues = new Map();
  for (const message of list(what)) {
    handle(message);
    if (!queues.has(message.queue)) queues.set(message.queue, []);
    queues.get(message.queue).push(message);
  }
  return [...queues];
}

/** Wait for all; the first error of a message, or of a request, is thrown once every answer is there. */
async function settleAll(calls, done) {
  let first;
  for (const { messages, call } of calls) {
    try {
      const reply = await call.promise;
      reply.codes.forEach((code, position) => {
        const message = messages[position];
        if (code === 0) {
          done(message, reply, position, call);
        } else {
          const name = reply.names[position];
          const text = `message ${message.id ?? message.receiptHandle} of ${message.queue}: ${name}`;
          first ??= new WalrqError({ code, name, text, definite: true, retry: false, details: { id: message.id } });
        }
      });
    } catch (error) {
      first ??= error;
    }
  }
  if (first !== undefined) throw first;
}

function overdue(call) {
  if (call.sends) {
    return failure(REPLY_TIMEOUT, "REPLY_TIMEOUT", "no reply came in time: it may have taken effect or not", false);
  }
  return call.refusal ?? failure(NOT_CONNECTED, "NOT_CONNECTED", "no node answered in time; it was not sent", true);
}

const backOff = (tries) => Math.min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2 ** Math.min(tries - 1, 10)) * (0.5 + Math.random() / 2);

function same(a, b) {
  try {
    return new URL(a).host === new URL(b).host;
  } catch {
    return false;
  }
}

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}
