/** Parts of the console that are loaded when they are needed. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { makeFailure } from "../api/http";
import { FailureBox, Waiting } from "./states";

interface LazyProps<P> {
  load: () => Promise<ComponentType<P>>;
  what: string;
  props: P;
}

/** Show a component once its code is there. Files of a former version are gone after an update. */
export function Lazy<P extends object>({ load, what, props }: LazyProps<P>) {
  const [Part, setPart] = useState<ComponentType<P> | null>(null);
  const [isMissing, setMissing] = useState(false);
  const start = () => {
    setMissing(false);
    load().then(
      (loaded) => setPart(() => loaded),
      () => setMissing(true),
    );
  };
  useEffect(start, [what]);
  if (isMissing) {
    const hint = "The network may be down, or the console was updated: then load the page again. Drafts are kept.";
    return <FailureBox failure={makeFailure("part_missing", `${what} could not be loaded.`, hint)} onRetry={start} />;
  }
  return Part ? <Part {...props} /> : <Waiting what={`Loading ${what}`} />;
}
