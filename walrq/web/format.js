// Numbers, ages and bytes as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const RATE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (number) => WHOLE.format(number);
export const short = (number) => (number < 100000 ? WHOLE.format(number) : SHORT.format(number));
export const rate = (number) => (number >= 10000 ? SHORT.format(number) : number >= 100 ? WHOLE.format(Math.round(number)) : RATE.format(number));

/** "12 s", "5 min", "3 h", "2 d" of seconds. */
export function age(seconds) {
  if (!(seconds > 0)) return "–";
  if (seconds < 1) return "< 1 s";
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  if (number < 1048576) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / 1048576).toFixed(1)} MiB`;
}

/** A point in time, in the reader's own zone. */
export function moment(ms) {
  return ms ? new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "–";
}

/** Bytes that are no text, as a dump of hexadecimal digits. */
export function dump(base64, most = 256) {
  const text = atob(base64);
  const lines = [];
  for (let at = 0; at < Math.min(text.length, most); at += 16) {
    const part = [...text.slice(at, at + 16)];
    const digits = part.map((each) => each.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    const shown = part.map((each) => (each >= " " && each <= "~" ? each : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}
