// Queries by Neon's driver, as many at once as asked for, for some seconds; prints what came of them as JSON.
import { neon, neonConfig } from "@neondatabase/serverless";

const given = JSON.parse(process.argv[2]);
neonConfig.fetchEndpoint = given.endpoint;
const sql = neon(given.connection);

const times = [];
let errors = 0;
const end = performance.now() + given.seconds * 1000;

async function ask() {
  while (performance.now() < end) {
    const id = 1 + Math.floor(Math.random() * given.numbers);
    const began = performance.now();
    try {
      const rows = await sql.query(given.query, [id]);
      if (rows.length !== 1 || rows[0].id !== id || rows[0].email !== `user${id}@example.org`) errors += 1;
    } catch {
      errors += 1;
    }
    times.push(performance.now() - began);
  }
}

const began = performance.now();
await Promise.all(Array.from({ length: given.at_once }, ask));
const lasted = (performance.now() - began) / 1000;
times.sort((a, b) => a - b);
const at = (part) => 1000 * times[Math.min(times.length - 1, Math.floor(times.length * part))];
const per_second = (times.length - errors) / lasted;
console.log(JSON.stringify({ per_second, errors, requests: times.length, size: 0, p50_us: at(0.5), p99_us: at(0.99) }));
