// Runs scenarios one after the other, in whatever runtime it is started with, and prints a line of JSON after each: its
// name, and why it failed or null.

import { Client } from "@tuplegate/client";
import * as scenarios from "./scenarios.mjs";

const { url, control, unused, key, runs } = JSON.parse(globalThis.process.env.TUPLEGATE_SCENARIOS);
for (const { name, through, retries } of runs) {
  const client = new Client(through, key, { controlUrl: control, retries });
  const direct = new Client(url, key, { controlUrl: control });
  const failed = await scenarios[name]({ client, direct, url, control, unused, key }).then(
    () => null,
    (error) => String(error?.stack ?? error),
  );
  console.log(JSON.stringify([name, failed]));
}
