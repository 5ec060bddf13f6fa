// Checks and derives addresses of the service. Pure.

const DEFAULT_URL = "http://127.0.0.1:8080";
const DEFAULT_CONTROL_URL = "http://127.0.0.1:8082";
const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/**
 * Return the address without a slash at its end.
 *
 * @param {unknown} url
 */
export function checkUrl(url) {
  const parts = parse(url);
  if (parts === null || !["http:", "https:"].includes(parts.protocol) || parts.search || parts.hash) {
    throw new TypeError(`${JSON.stringify(url)} is not the address of a service; one looks like ${DEFAULT_URL}`);
  }
  if (parts.username || parts.password) {
    throw new TypeError("the address of a service holds no user or password; the key is the second argument");
  }
  return String(url).replace(/\/+$/, "");
}

/**
 * @param {unknown} url
 * @returns {URL | null}
 */
function parse(url) {
  try {
    return new URL(String(url));
  } catch {
    return null;
  }
}

/**
 * Return the address of the control plane, as the banner of the data plane at `url` names it.
 *
 * The token will be sent there, so it must be as safe: another machine's banner cannot name a loopback address, and
 * both addresses use TLS or neither does.
 *
 * @param {{ control_url?: string | null }} banner
 * @param {string} url
 */
export function readControlUrl(banner, url) {
  const guess = url === DEFAULT_URL ? DEFAULT_CONTROL_URL : url;
  let found;
  try {
    found = checkUrl(banner.control_url);
  } catch {
    return guess;
  }
  const own = new URL(url);
  const other = new URL(found);
  const leadsAstray = LOOPBACK.has(other.hostname) && !LOOPBACK.has(own.hostname);
  return other.protocol !== own.protocol || leadsAstray ? guess : found;
}
