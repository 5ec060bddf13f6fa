/** Code to copy that reaches the chosen database. The key is a variable, so that none lands in a file. */

export interface Snippet {
  id: string;
  title: string;
  about: string;
  code: string;
}

const KEY = "TUPLEGATE_API_KEY";
/** A port that no PostgreSQL of the reader's own has by default. */
const TUNNEL_PORT = 6432;

export function listSnippets(dataUrl: string, database: string | null): Snippet[] {
  const name = database ?? "main";
  const host = dataUrl.replace(/^https?:\/\//, "");
  const isPlain = dataUrl.startsWith("http://");
  return [
    {
      id: "curl",
      title: "curl",
      about: "One statement, one answer.",
      code: `export ${KEY}='svc_k_…'\n\ncurl ${dataUrl}/v1/query \\\n  -H "Authorization: Bearer $${KEY}" \\\n  -H 'Tuplegate-Database: ${name}' \\\n  -H 'Content-Type: application/json' \\\n  -d '{"sql": "select $1::int + 1 as next", "params": [41]}'`,
    },
    {
      id: "python",
      title: "Python",
      about: "The client that comes with Tuplegate.",
      code: `import os\n\nfrom tuplegate.client import Client\n\nwith Client("${dataUrl}", os.environ["${KEY}"], database="${name}") as client:\n    for row in client.query("select $1::int + 1 as next", [41]):\n        print(row["next"])`,
    },
    {
      id: "javascript",
      title: "JavaScript",
      about: "Plain fetch: Node.js 18 and newer, Deno, Bun.",
      code: `const answer = await fetch("${dataUrl}/v1/query", {\n  method: "POST",\n  headers: {\n    Authorization: \`Bearer \${process.env.${KEY}}\`,\n    "Content-Type": "application/json",\n    "Tuplegate-Database": "${name}",\n  },\n  body: JSON.stringify({ sql: "select $1::int + 1 as next", params: [41] }),\n});\nconst { success, rows, error } = await answer.json();\nif (!success) throw new Error(error.message);\nconsole.log(rows);`,
    },
    {
      id: "psql",
      title: "psql",
      about: "PostgreSQL's own shell, over HTTPS.",
      code: `export ${KEY}='svc_k_…'\n\ntuplegate psql --url ${dataUrl} --database ${name}`,
    },
    {
      id: "tunnel",
      title: "Tunnel",
      about: "For any PostgreSQL program: pgAdmin, DBeaver, pg_dump, JDBC, Metabase, …",
      code: `export ${KEY}='svc_k_…'\n\n# Listens on this machine until Ctrl-C, and adds the key by itself.\ntuplegate tunnel --url ${dataUrl} --port ${TUNNEL_PORT}\n\n# In another terminal:\npsql postgresql://127.0.0.1:${TUNNEL_PORT}/${name} -c 'select 41 + 1 as next'`,
    },
    {
      id: "neon",
      title: "Neon's driver",
      about: "@neondatabase/serverless, and so Drizzle, Kysely and Prisma.",
      code: `import { neon, neonConfig } from "@neondatabase/serverless";\n\nneonConfig.fetchEndpoint = "${dataUrl}/sql";\n\nconst sql = neon(\`postgresql://any:\${process.env.${KEY}}@localhost/${name}\`);\nconsole.log(await sql\`select \${41}::int + 1 as next\`);`,
    },
    {
      id: "neon-ws",
      title: "Neon's driver, WebSocket",
      about:
        "A connection of PostgreSQL's own protocol, with transactions. Browsers, Deno, Bun, and Node.js 22 and newer.",
      code: `import { Pool, neonConfig } from "@neondatabase/serverless";\n\nneonConfig.wsProxy = "${host}/v2";${isPlain ? "\nneonConfig.useSecureWebSocket = false;" : ""}\n\nconst pool = new Pool({ connectionString: \`postgresql://any:\${process.env.${KEY}}@localhost/${name}\`, max: 4 });\nconst { rows } = await pool.query("select $1::int + 1 as next", [41]);\nconsole.log(rows);\nawait pool.end();`,
    },
    {
      id: "sqlalchemy",
      title: "SQLAlchemy",
      about: "The dialect that comes with Tuplegate.",
      code: `import os\n\nimport sqlalchemy\n\nimport tuplegate.sqlalchemy\n\nkey = os.environ["${KEY}"]\nengine = sqlalchemy.create_engine(f"tuplegate://:{key}@${host}/${name}")\nwith engine.begin() as connection:\n    print(connection.scalar(sqlalchemy.text("select :n + 1"), {"n": 41}))`,
    },
  ];
}
