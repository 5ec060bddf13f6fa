// node-postgres through the tunnel.
import pg from "pg";
import { tell, tunnel } from "./place.mjs";
import { runScenario } from "./scenario.mjs";

tell(await runScenario({ ...pg, settings: { connectionString: tunnel } }));
