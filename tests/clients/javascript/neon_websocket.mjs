// Pool and Client of Neon's driver, over a WebSocket.
import { Client, Pool } from "@neondatabase/serverless";
import { connectionString, failureOf, tell } from "./place.mjs";
import { runScenario } from "./scenario.mjs";

/** The driver sends the password ahead, so a refusal comes with the first statement. */
async function refusal(address) {
  const client = new Client(address);
  client.on("error", () => {});
  const { code } = await failureOf(async () => {
    await client.connect();
    await client.query("select 1");
  });
  return code;
}

const key = await refusal(connectionString("svc_k_wrong"));
const database = await refusal(connectionString(undefined, "nowhere"));

tell({ ...(await runScenario({ Pool, Client, settings: { connectionString: connectionString() } })), key, database });
