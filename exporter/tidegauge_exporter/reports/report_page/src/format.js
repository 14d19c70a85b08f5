// How the report writes quantities: as tidegauge.core.units does, so that tables and plots agree.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** "12.0 MiB"; whole bytes below 1 KiB. */
export function bytes(count) {
  const sign = count < 0 ? "-" : "";
  let amount = Math.abs(count);
  if (amount < 1023.5) return `${Math.round(amount) ? sign : ""}${Math.round(amount)} B`;
  let exponent = 0;
  while ((amount >= 1023.95 || exponent === 0) && exponent < UNITS.length - 1) {
    amount /= 1024;
    exponent += 1;
  }
  return `${sign}${amount.toFixed(1)} ${UNITS[exponent]}`;
}

/** The ticks of an axis in one unit: "0 GiB", "1.5 GiB". */
export function byteTicks(ticks) {
  const largest = Math.max(...ticks.map(Math.abs), 1);
  const exponent = Math.min(Math.floor(Math.log2(largest) / 10), UNITS.length - 1);
  return ticks.map((tick) => `${Number((tick / 1024 ** exponent).toFixed(2))} ${UNITS[exponent]}`);
}

export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** "1 line", "12 lines". */
export function several(number, one) {
  return `${count(number)} ${number === 1 ? one : `${one}s`}`;
}

/** "29.8%", as the tables of a profile have it. */
export function percent(part, whole) {
  return `${(whole ? (100 * part) / whole : 0).toFixed(1)}%`;
}

export function share(part, whole) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  return `${percent >= 10 || percent === 0 ? Math.round(percent) : percent.toFixed(1)} %`;
}

/** Microseconds as a person reads them: "12.3 ms". */
export function duration(us) {
  if (us < 1000) return `${Math.round(us)} \u00b5s`;
  if (us < 1e6) return `${(us / 1e3).toFixed(1)} ms`;
  return us < 120e6 ? `${(us / 1e6).toFixed(2)} s` : `${(us / 60e6).toFixed(1)} min`;
}
