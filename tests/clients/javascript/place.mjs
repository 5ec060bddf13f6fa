// Where the service is, for all programs of this folder, and how they tell what they have found.
import { neonConfig } from "@neondatabase/serverless";

neonConfig.fetchEndpoint = `${process.env.TUPLEGATE_URL}/sql`;

export const table = process.env.TUPLEGATE_TABLE;

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
