// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const newYork = { timeZone: "America/New_York", hourCycle: "h23" };
const minute = new Intl.DateTimeFormat("en", { ...newYork, hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { ...newYork, weekday: "short", day: "numeric", month: "short", year: "numeric" });

export const number = (value) => whole.format(value);
export const tenths = (value) => tenth.format(value);

export function duration(seconds) {
  if (seconds >= 0.9995) return `${three.format(seconds)} s`;
  return `${three.format(seconds * 1000)} ms`;
}

export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A moment as the hour and minute of New York. */
export const atMinute = (moment) => minute.format(moment);
export const onDay = (moment) => day.format(moment);
