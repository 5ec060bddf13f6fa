/** A plan as a tree of nodes, with the one that costs most marked. */
import { formatCount } from "../parts/show";
import { misjudgement, type PlanNode } from "./plan";

const FAR_OFF = 10;

export function PlanTree({ plan }: { plan: PlanNode }) {
  return (
    <div class="plan">
      {plan.executionMs !== null && (
        <p class="plan-sum">
          Execution {plan.executionMs.toFixed(2)} ms · planning {(plan.planningMs ?? 0).toFixed(2)} ms
        </p>
      )}
      <ul class="plan-tree" role="tree" aria-label="Plan">
        <Node node={plan} />
      </ul>
    </div>
  );
}

function Node({ node }: { node: PlanNode }) {
  const off = misjudgement(node);
  return (
    <li role="treeitem" aria-expanded={node.children.length ? true : undefined}>
      <div class={node.isCostly ? "plan-node costly" : "plan-node"}>
        <div class="plan-line">
          <b>{node.title}</b> <bdi class="mono">{node.subject}</bdi>
          {node.isCostly && <span class="badge warn">costliest</span>}
          {off >= FAR_OFF && (
            <span class="badge bad" title="Rows estimated against actual">
              estimate off ×{formatCount(Math.round(off))}
            </span>
          )}
        </div>
        <div class="plan-numbers">
          <progress class="plan-bar" max={1} value={node.part} aria-label="Part of the whole" />
          <span>{Math.round(node.part * 100)} %</span>
          {node.ownMs !== null && <span>{node.ownMs.toFixed(2)} ms itself</span>}
          <span>
            {formatCount(node.rowsEstimated * node.loops)} rows estimated
            {node.rowsActual !== null && `, ${formatCount(node.rowsActual)} actual`}
          </span>
          {node.loops > 1 && <span>{formatCount(node.loops)} loops</span>}
          <span>cost {node.cost.toFixed(2)}</span>
        </div>
        {node.notes.map((note) => (
          <div class="plan-note mono" key={note}>
            {note}
          </div>
        ))}
      </div>
      {node.children.length > 0 && (
        <ul role="group">
          {node.children.map((child) => (
            <Node key={child.id} node={child} />
          ))}
        </ul>
      )}
    </li>
  );
}
