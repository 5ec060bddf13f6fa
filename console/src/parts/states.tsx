/** Empty, waiting and failed: each says what to do next. */
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";

export function FailureBox({ failure, onRetry }: { failure: Failure; onRetry?: () => void }) {
  const { body } = failure;
  return (
    <div class="failure" role="alert">
      <p class="failure-message">
        {body.message}
        {body.sqlstate && <code class="failure-code">{body.sqlstate}</code>}
      </p>
      {body.detail && <p class="failure-more">{body.detail}</p>}
      {body.hint && <p class="failure-more">Hint: {body.hint}</p>}
      {failure.requestId && <p class="failure-more faint">Request {failure.requestId}</p>}
      {onRetry && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h3>{title}</h3>
      {children}
    </div>
  );
}

/** A line that moves while something is fetched; it says what. */
export function Waiting({ what }: { what: string }) {
  return (
    <div class="waiting" role="status">
      <span class="waiting-line" aria-hidden="true" />
      {what}
    </div>
  );
}

export interface Loaded<T> {
  value: T | null;
  failure: Failure | null;
  isLoading: boolean;
  reload: () => void;
}

/** Load something for a component, anew when one of the inputs changes. The value before stays until then. */
export function useLoaded<T>(load: () => Promise<T>, inputs: unknown[]): Loaded<T> {
  const [value, setValue] = useState<T | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [isLoading, setLoading] = useState(true);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    setLoading(true);
    load().then(
      (loaded) => {
        if (!isCurrent) return;
        setValue(() => loaded);
        setFailure(null);
        setLoading(false);
      },
      (error: unknown) => {
        if (!isCurrent) return;
        setFailure(asFailure(error));
        setLoading(false);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [...inputs, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { value, failure, isLoading, reload };
}

/** Show what was loaded, or why it was not. */
export function Shown<T>({
  of,
  what,
  children,
}: {
  of: Loaded<T>;
  what: string;
  children: (value: T) => ComponentChildren;
}) {
  if (of.failure) return <FailureBox failure={of.failure} onRetry={of.reload} />;
  if (of.value === null) return <Waiting what={what} />;
  return <>{children(of.value)}</>;
}
