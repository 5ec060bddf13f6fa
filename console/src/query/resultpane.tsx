/** The results below the editor: tabs, what there is to say, and the rows. */
import { useEffect, useState } from "preact/hooks";
import { FailureBox, Empty } from "../parts/states";
import { formatCount, formatMicros, plural } from "../parts/show";
import { useStore } from "../parts/store";
import { TabList } from "../parts/tabs";
import { PlanTree } from "./plantree";
import { cancelRunning, chosenResult, closeResult, pinResult, type Result, results } from "./results";
import { RowsPane } from "./rowspane";

export function ResultPane() {
  const all = useStore(results);
  const chosen = useStore(chosenResult);
  const result = all.find((one) => one.id === chosen) ?? all.at(-1);
  if (!result) {
    return (
      <div class="results">
        <Empty title="Results appear here">
          <p>
            <kbd>Ctrl Enter</kbd> runs the statement at the cursor or the selection, <kbd>Ctrl Shift Enter</kbd>{" "}
            everything as one transaction.
          </p>
        </Empty>
      </div>
    );
  }
  return (
    <section class="results" aria-label="Results">
      <div class="tabs">
        <TabList
          label="Results"
          tabs={all.map((one) => ({
            id: one.id,
            title: <ResultTitle of={one} />,
            hint: one.sql.slice(0, 500),
            state: one.state,
          }))}
          chosen={result.id}
          onChoose={(id) => chosenResult.set(id)}
        />
        <button
          type="button"
          class="quiet small"
          aria-pressed={result.isPinned}
          title="A result that is kept stays when something else is run"
          onClick={() => pinResult(result)}
        >
          Keep
        </button>
        <button type="button" class="quiet small" aria-label="Close this result" onClick={() => closeResult(result.id)}>
          ×
        </button>
      </div>
      <div class="result-body" role="tabpanel" aria-label={result.title} key={result.id}>
        <Status result={result} />
        <Body result={result} />
      </div>
    </section>
  );
}

function ResultTitle({ of: result }: { of: Result }) {
  return (
    <>
      {result.isPinned && (
        <span aria-label="kept" role="img">
          ◆
        </span>
      )}{" "}
      {result.title}
    </>
  );
}

/** Return the milliseconds since the result was begun, while it runs. */
function useElapsed(result: Result): number {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    if (result.state !== "running") return undefined;
    const timer = window.setInterval(() => setNow(performance.now()), 100);
    return () => window.clearInterval(timer);
  }, [result, result.state]);
  return Math.max(0, (result.endedAt ?? now) - result.startedAt);
}

function Status({ result }: { result: Result }) {
  const elapsed = useElapsed(result);
  const count = result.rows?.count ?? 0;
  if (result.state === "running") {
    return (
      <div class="status running">
        <span class="waiting-line" aria-hidden="true" />
        <span role="status">
          {plural(count, "row")}
          {count > 0 && elapsed > 500 && `, ${formatCount(Math.round((count / elapsed) * 1000))} a second`}
        </span>
        <span class="faint">{(elapsed / 1000).toFixed(1)} s</span>
        <button type="button" class="small" onClick={cancelRunning}>
          Cancel
        </button>
      </div>
    );
  }
  const words = [
    result.state === "cancelled" ? "Cancelled" : result.state === "failed" ? "Failed" : null,
    result.rows ? plural(count, "row") : null,
    result.affected ? `${plural(result.affected, "row")} affected` : null,
    !result.rows && !result.affected && result.state === "done" && !result.plan ? "Done" : null,
  ].filter(Boolean);
  return (
    <div class="status">
      <span role="status">{words.join(" · ")}</span>
      {result.timings && (
        <span class="faint" title="Time in the engine, and in the service as a whole">
          {formatMicros(result.timings.exec_us)} engine · {formatMicros(result.timings.total_us)} service ·{" "}
          {elapsed.toFixed(0)} ms here
        </span>
      )}
      {result.remark && <span class="faint">{result.remark}</span>}
    </div>
  );
}

function Body({ result }: { result: Result }) {
  return (
    <>
      {result.failure && <FailureBox failure={result.failure} />}
      {result.notices.length > 0 && (
        <ul class="notices" aria-label="Notices">
          {result.notices.map((notice, at) => (
            <li key={at}>
              <b>{notice.severity}</b> {notice.message}
              {notice.detail && <div class="faint">{notice.detail}</div>}
              {notice.hint && <div class="faint">Hint: {notice.hint}</div>}
            </li>
          ))}
        </ul>
      )}
      {result.plan && <PlanTree plan={result.plan} />}
      {result.rows && (
        <RowsPane
          rows={result.rows}
          version={result.version}
          isComplete={result.state !== "running"}
          sql={result.sql}
        />
      )}
    </>
  );
}
