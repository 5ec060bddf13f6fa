// D1 as Miniflare serves it: a worker that runs the posted SQL. Prints its address; ends on SIGTERM.
import { Miniflare } from "miniflare";

const worker = `
export default {
  async fetch(request, env) {
    const { sql, params, statements } = await request.json();
    if (statements) {
      const results = await env.DB.batch(statements.map((text) => env.DB.prepare(text)));
      return Response.json({ results: results.map((result) => result.results) });
    }
    const statement = params ? env.DB.prepare(sql).bind(...params) : env.DB.prepare(sql);
    return Response.json({ rows: (await statement.all()).results });
  },
};`;

const miniflare = new Miniflare({
  modules: true,
  script: worker,
  host: "127.0.0.1",
  port: 0,
  d1Databases: { DB: "bench" },
  d1Persist: process.argv[2],
  compatibilityDate: "2026-07-01",
});
process.on("SIGTERM", async () => {
  await miniflare.dispose();
  process.exit(0);
});
console.log(String(await miniflare.ready));
