/** Types of walrq.js. Times are seconds. */

export declare const SUBPROTOCOL: "walrq.json.v1";

export type Payload = string | ArrayBuffer | ArrayBufferView;
export type Plain = null | boolean | number | string | Plain[] | { [name: string]: Plain };
export type Headers = { [name: string]: Plain };

export interface ConnectOptions {
  /** Credential. */
  token?: string;
  /** Seconds that each call waits for its answer, 30 by default; a poll's own wait comes on top. */
  timeout?: number;
  /** Names this page in death reports. */
  worker?: string;
  /** Ends the connecting. */
  signal?: AbortSignal;
  /** Another WebSocket than the browser's. */
  WebSocket?: typeof WebSocket;
}

export interface CallOptions {
  /** Ends the call: a poll leaves nothing leased. */
  signal?: AbortSignal;
  timeout?: number;
}

export interface BatchOptions extends CallOptions {
  /** 0 to 255, higher first. */
  priority?: number;
  delay?: number;
  /** A Date or milliseconds since 1970; instead of delay. */
  deliverAt?: Date | number;
  ttl?: number;
  maxAttempts?: number;
}

export interface MessageOptions {
  headers?: Headers;
  /** Messages of one group are handed out in order. */
  group?: string;
  /** A second push of the same id within the queue's window has no effect. */
  dedupId?: string;
}

export interface PushOptions extends BatchOptions, MessageOptions {}

export interface NewMessage extends MessageOptions {
  payload: Payload;
}

export interface PollOptions extends CallOptions {
  maxMessages?: number;
  /** How long they are leased; without it as the queue says. */
  visibility?: number;
  /** How long to wait for messages to come. */
  wait?: number;
  worker?: string;
}

export interface ConsumeOptions extends PollOptions {
  /** Touch the message in hand until it is settled or the next one is asked for; true by default. */
  extend?: boolean;
}

export interface NackOptions extends CallOptions {
  /** `fail` counts and comes back after a while, `release` is free, `reject` is dead at once; `fail` by default. */
  mode?: "fail" | "release" | "reject";
  /** With `fail`: the back-off. */
  delay?: number;
  /** With `fail` and `reject`: kept with the message. */
  error?: unknown;
}

/** What settles a message: itself, or what names it. */
export interface Receipt {
  queue: string;
  receiptHandle: string;
}
export type Settleable = Receipt | Iterable<Receipt>;

/** What the server refused, or what nobody can tell. */
export declare class WalrqError extends Error {
  readonly code: number;
  /** The code's word, QUEUE_NOT_FOUND say. */
  readonly reason: string | null;
  /** True: it did not and will not happen. */
  readonly definite: boolean;
  /** True: the same request may succeed later. */
  readonly retry: boolean;
  readonly details: { [name: string]: any };
}

/** One leased message. */
export declare class Message implements Receipt {
  private constructor();
  readonly queue: string;
  readonly id: string;
  readonly receiptHandle: string;
  readonly headers: Headers;
  readonly group: string | null;
  readonly priority: number;
  readonly delivery: number;
  readonly attempts: number;
  readonly pushedAt: Date;
  readonly fence: [number, number];
  readonly lost: boolean;
  /** performance.now() at which the lease ends. */
  readonly leasedUntil: number;
  readonly visibility: number;
  readonly settled: boolean;
  /** Text where it is UTF-8 without control characters, else bytes; null when it is lost. */
  readonly payload: string | Uint8Array | null;
  bytes(): Uint8Array;
  text(): string;
  json(): any;
  ack(options?: CallOptions): Promise<void>;
  nack(options?: NackOptions): Promise<void>;
  touch(visibility?: number, options?: CallOptions): Promise<void>;
  /** Touch it until it is settled, or until what is returned is called. */
  extend(): () => void;
  stopExtending(): void;
}

/** A reply as docs/json.md has it. */
export interface Reply {
  reply: string;
  [field: string]: any;
}

/** Events: "open", "lost" (with `reason`), "closed" (with `error`). */
export declare class Client extends EventTarget {
  private constructor();
  readonly url: string;
  readonly connected: boolean;
  readonly welcome: Reply | null;
  /** The message's id. */
  push(queue: string, payload: Payload, options?: PushOptions): Promise<string>;
  /** All or none; their ids. */
  pushBatch(queue: string, messages: Iterable<Payload | NewMessage>, options?: BatchOptions): Promise<string[]>;
  poll(queues: string | Iterable<string>, options?: PollOptions): Promise<Message[]>;
  consume(queues: string | Iterable<string>, options?: ConsumeOptions): AsyncGenerator<Message, void, void>;
  ack(what: Settleable, options?: CallOptions): Promise<void>;
  nack(what: Settleable, options?: NackOptions): Promise<void>;
  touch(what: Settleable, visibility?: number, options?: CallOptions): Promise<void>;
  peek(queue: string, fields?: object, options?: CallOptions): Promise<Reply>;
  show(queue: string, options?: CallOptions): Promise<Reply>;
  /** Any operation of docs/json.md. */
  request(op: string, fields?: object, options?: CallOptions): Promise<Reply>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export declare function connect(urls: string | Iterable<string>, options?: ConnectOptions): Promise<Client>;
