// Figures and names in readable form.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (Math.abs(number) >= 1023.5 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return (unit === 0 ? String(Math.round(number)) : number.toPrecision(3)) + " " + UNITS[unit];
}

export function rate(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 0.5) return "0 B/s";
  return (number > 0 ? "+" : "−") + bytes(Math.abs(number)) + "/s";
}

// The leak rate of a process or a call site, if it leaks.
export function leakRate(judged) {
  return judged && judged.verdict === "leak" ? rate(judged.leak_bytes_per_s) : "–";
}

export function count(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en");
}

// The CLI's format: 42s, 3m12s, 2h05m or 3d04h.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  for (const [unit, length, lesser, part] of [["d", 86400, "h", 3600], ["h", 3600, "m", 60], ["m", 60, "s", 1]]) {
    if (whole < length) continue;
    return Math.floor(whole / length) + unit + String(Math.floor((whole % length) / part)).padStart(2, "0") + lesser;
  }
  return whole + "s";
}

export function clock(time_s) {
  return new Date(1000 * time_s).toTimeString().slice(0, 8);
}

// As in the CLI: long type names of the C++ library, with the names that everybody uses.
const EVERYDAY_NAMES = [
  ["std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"],
  ["std::basic_string_view<char, std::char_traits<char> >", "std::string_view"],
  ["std::__cxx11::", "std::"],
];

export function readable(name) {
  for (const [long, short] of EVERYDAY_NAMES) name = name.replaceAll(long, short);
  return name;
}

// Without parameters, and with as many classes and namespaces, from the right, as fit.
export function shortName(name, width) {
  name = readable(name);
  if (name.length <= width) return name;
  const bare = name.replace(/(?<=[^:(]|operator\(\))\([^()]*\)(?: const)?$/, "");
  if (bare.length <= width) return bare;
  const parts = bare.replace(/(?<=.)<[^<>]*(?:<[^<>]*>[^<>]*)*>/g, "<…>").split(/(?<=::|\.)/);
  let short = parts.pop();
  while (parts.length && parts.at(-1).length + short.length + 1 <= width) short = parts.pop() + short;
  return parts.length ? "…" + short : short;
}

// Its place in the program: that of the program's function that called a library, if a library is charged.
export function placeName(site) {
  const place = site.called_by || site;
  return site.type || (place.location || place.module || "").split("/").pop();
}

const LIMITS = { cgroup: "its control group", "address-space": "RLIMIT_AS", data: "RLIMIT_DATA",
  host: "the machine", "managed-heap": "the managed heap" };

export function limitWords(verdict) {
  if (!verdict || !verdict.limit || verdict.limit_reached_s === null) return null;
  return `${duration(verdict.limit_reached_s)} (${bytes(verdict.limit.limit_bytes)} of ${LIMITS[verdict.limit.kind]})`;
}

// The nearest limit without a forecast, unless it is that of the machine.
export function nearestLimitWords(verdict) {
  if (!verdict || !verdict.limit || verdict.limit_reached_s !== null || verdict.limit.kind === "host") return null;
  return `${bytes(verdict.limit.limit_bytes)} of ${LIMITS[verdict.limit.kind]}, ${bytes(verdict.limit.used_bytes)} used`;
}

export function shareWords(shares) {
  return shares.map((share) => `${Math.round(100 * share.share)}% ${share.what}`).join(", ");
}
