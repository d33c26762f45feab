// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const allThree = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

/** A time span, given in seconds. */
export function duration(seconds, digits = three) {
  if (seconds === 0) return "0 ms";
  const size = Math.abs(seconds);
  if (size < 0.0009995) return `${digits.format(seconds * 1e6)} µs`;
  if (size < 0.9995) return `${digits.format(seconds * 1e3)} ms`;
  if (size < 120) return `${digits.format(seconds)} s`;
  if (size < 7200) return `${whole.format(Math.round(seconds / 60))} min`;
  return `${whole.format(Math.round(seconds / 3600))} h`;
}

/** The same with three digits always, for a column. */
export const lined = (seconds) => duration(seconds, allThree);

export const number = (value) => whole.format(value);
export const rounded = (value) => three.format(value);

export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export const batches = (count) => counted(count, "batch", "batches");

/** What a record's size counts. */
export function sized(entry) {
  if (entry.isRun) return counted(entry.triggers, "trigger");
  const of = entry.capacity === null ? "" : `/${number(entry.capacity)}`;
  const what = entry.kind === "loader" ? "key" : "item";
  return `${number(entry.size)}${of} ${what}${entry.size === 1 && !of ? "" : "s"}`;
}

/** The same in short, for a column. */
export function tally(entry) {
  if (entry.isRun) return number(entry.triggers);
  return entry.capacity === null ? number(entry.size) : `${number(entry.size)}/${number(entry.capacity)}`;
}

const clockTime = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

/** A moment, given in seconds since 1970. */
export function clock(seconds) {
  return clockTime.format(new Date(seconds * 1000));
}

/** A place as people find it. */
export function place({ file, line, function: name }) {
  return file ? `${file}:${line}` : name;
}

/** A loader without its parameters. */
export const label = (name) => name.split("(")[0];

const HINTS = {
  loop: "Loads awaited in a loop",
  cleared: "Fetched again after clear()",
  window: "A window in which nothing comes",
  limit: "Batches queue for a slot",
  missing: "Most keys are missing",
  behind: "Queued behind another loader",
};
export const hintTitle = (kind) => HINTS[kind] ?? kind;
