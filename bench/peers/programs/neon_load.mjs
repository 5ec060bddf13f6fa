// Queries by Neon's driver, as many at once as asked for, for some seconds; prints what came of them as JSON.
//
// Node's own fetch takes about a millisecond of a core for each request, so that it would be what is measured. The driver
// takes another one (neonConfig.fetchFunction): here a connection for each query at a time, and answers with a length.
import { connect } from "node:net";
import { neon, neonConfig } from "@neondatabase/serverless";

const given = JSON.parse(process.argv[2]);
const endpoint = new URL(given.endpoint);
const idle = [];

function open() {
  const socket = connect({ host: endpoint.hostname, port: Number(endpoint.port), noDelay: true });
  const connection = { socket, data: Buffer.alloc(0), settle: null };
  socket.on("data", (data) => {
    connection.data = connection.data.length ? Buffer.concat([connection.data, data]) : data;
    const end = connection.data.indexOf("\r\n\r\n");
    if (end < 0) return;
    const head = connection.data.latin1Slice(0, end);
    const whole = end + 4 + Number(/^content-length: *(\d+)/im.exec(head)[1]);
    if (connection.data.length < whole) return;
    const status = Number(head.slice(9, 12));
    const text = connection.data.utf8Slice(end + 4, whole);
    connection.data = connection.data.subarray(whole);
    idle.push(connection);
    connection.settle.resolve({ status, ok: status < 300, text: async () => text, json: async () => JSON.parse(text) });
  });
  socket.on("error", (error) => connection.settle.reject(error));
  socket.on("close", () => connection.settle.reject(new Error("the server closed the connection")));
  return connection;
}

function fetch(_, { method, headers, body }) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  const length = `content-length: ${Buffer.byteLength(body)}\r\n`;
  const connection = idle.pop() ?? open();
  return new Promise((resolve, reject) => {
    connection.settle = { resolve, reject };
    const head = `${method} ${endpoint.pathname} HTTP/1.1\r\nhost: ${endpoint.host}\r\n`;
    connection.socket.write(`${head}content-type: application/json\r\n${lines.join("")}${length}\r\n${body}`);
  });
}

neonConfig.fetchEndpoint = given.endpoint;
neonConfig.fetchFunction = fetch;
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
process.exit(0);
