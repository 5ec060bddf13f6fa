// Where the service is, for all programs of this folder, and how they tell what they have found.
import { neonConfig } from "@neondatabase/serverless";
import ws from "ws";

neonConfig.fetchEndpoint = `${process.env.TUPLEGATE_URL}/sql`;
neonConfig.wsProxy = `${process.env.TUPLEGATE_URL.replace(/^https?:\/\//, "")}/v2`;
neonConfig.webSocketConstructor = globalThis.WebSocket ?? ws; // Node.js has its own since version 22
neonConfig.useSecureWebSocket = process.env.TUPLEGATE_URL.startsWith("https:");

export const table = process.env.TUPLEGATE_TABLE;

/** The address of a tunnel to the service, where there is one. */
export const tunnel = process.env.TUPLEGATE_TUNNEL;

export function connectionString(key = process.env.TUPLEGATE_API_KEY, database = "main") {
  return `postgresql://any:${key}@localhost/${database}`;
}

export async function failureOf(work) {
  try {
    await work();
  } catch (error) {
    return error;
  }
  throw new Error("it did not fail");
}

export function tell(found) {
  console.log(JSON.stringify(found, (_, value) => (typeof value === "bigint" ? `${value}n` : value)));
}
