/** A plan of the engine, as EXPLAIN (FORMAT JSON) gives it, with what a reader looks for worked out. */

export interface PlanNode {
  id: number;
  title: string;
  subject: string;
  notes: string[];
  cost: number;
  rowsEstimated: number;
  rowsActual: number | null;
  loops: number;
  /** Milliseconds in the node itself, without its children; null where it was not run. */
  ownMs: number | null;
  totalMs: number | null;
  ownCost: number;
  /** The part of the whole that the node itself takes, by time where it was run, else by cost. */
  part: number;
  isCostly: boolean;
  children: PlanNode[];
  planningMs: number | null;
  executionMs: number | null;
}

interface Json {
  [name: string]: unknown;
}

const NOTES = [
  "Filter",
  "Index Cond",
  "Hash Cond",
  "Merge Cond",
  "Join Filter",
  "Recheck Cond",
  "Sort Key",
  "Group Key",
  "Sort Method",
  "Rows Removed by Filter",
];

export function readPlan(value: unknown): PlanNode {
  const parsed = (typeof value === "string" ? JSON.parse(value) : value) as unknown as Json[];
  const top = parsed[0]!;
  let id = 0;
  const root = readNode(top["Plan"] as unknown as Json);
  root.planningMs = (top["Planning Time"] as number | undefined) ?? null;
  root.executionMs = (top["Execution Time"] as number | undefined) ?? null;
  markCostly(root);
  return root;

  function readNode(node: Json): PlanNode {
    const own = id++;
    const children = ((node["Plans"] ?? []) as unknown as Json[]).map(readNode);
    const loops = Number(node["Actual Loops"] ?? 1);
    const totalMs = node["Actual Total Time"] === undefined ? null : Number(node["Actual Total Time"]) * loops;
    const cost = Number(node["Total Cost"] ?? 0);
    return {
      id: own,
      title: [node["Join Type"] && node["Join Type"] !== "Inner" ? node["Join Type"] : "", node["Node Type"]]
        .filter(Boolean)
        .join(" "),
      subject: describe(node),
      notes: NOTES.filter((name) => node[name] !== undefined).map((name) => `${name}: ${text(node[name]!)}`),
      cost,
      rowsEstimated: Number(node["Plan Rows"] ?? 0),
      rowsActual: node["Actual Rows"] === undefined ? null : Number(node["Actual Rows"]) * loops,
      loops,
      totalMs,
      ownMs: totalMs === null ? null : Math.max(0, totalMs - sum(children, (child) => child.totalMs ?? 0)),
      ownCost: Math.max(0, cost - sum(children, (child) => child.cost)),
      part: 0,
      isCostly: false,
      children,
      planningMs: null,
      executionMs: null,
    };
  }
}

function describe(node: Json): string {
  const relation = node["Relation Name"] ?? node["Function Name"] ?? node["CTE Name"] ?? "";
  const alias = node["Alias"] && node["Alias"] !== relation ? ` ${node["Alias"]}` : "";
  const index = node["Index Name"] ? `by ${node["Index Name"]}` : "";
  return [relation ? `${relation}${alias}` : "", index].filter(Boolean).join(" ");
}

function text(value: unknown): string {
  return Array.isArray(value) ? value.map(String).join(", ") : String(value);
}

function sum<T>(items: T[], of: (item: T) => number): number {
  return items.reduce((total, item) => total + of(item), 0);
}

export function listNodes(root: PlanNode): PlanNode[] {
  return [root, ...root.children.flatMap(listNodes)];
}

function markCostly(root: PlanNode): void {
  const nodes = listNodes(root);
  const weigh = (node: PlanNode) => node.ownMs ?? node.ownCost;
  const whole = sum(nodes, weigh) || 1;
  for (const node of nodes) node.part = weigh(node) / whole;
  nodes.reduce((most, node) => (node.part > most.part ? node : most)).isCostly = true;
}

/** Return how far the estimate is off, as a factor of at least 1. */
export function misjudgement(node: PlanNode): number {
  if (node.rowsActual === null) return 1;
  const estimated = Math.max(1, node.rowsEstimated * node.loops);
  const actual = Math.max(1, node.rowsActual);
  return Math.max(estimated / actual, actual / estimated);
}
