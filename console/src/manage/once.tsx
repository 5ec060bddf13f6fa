/** A secret that is shown once. */
import { copyText } from "../parts/toast";

export function Once({ secret, what, onClose }: { secret: string; what: string; onClose: () => void }) {
  return (
    <section class="once" aria-label="New key">
      <b>{what}</b>
      <p>It is shown this once: copy it now. The service keeps only its hash.</p>
      <code class="once-secret" tabIndex={0}>
        {secret}
      </code>
      <div class="toolbar">
        <button type="button" class="primary small" onClick={() => void copyText(secret, "Key copied")}>
          Copy the key
        </button>
        <button type="button" class="small" onClick={onClose}>
          I have it
        </button>
      </div>
    </section>
  );
}
