import { Dialog } from "./dialog";

const KEYS: [string, string][] = [
  ["/", "Search in the list"],
  ["p", "Pause or resume events"],
  ["↑ ↓ or k j", "Previous or next event or request"],
  ["Enter", "Show its details"],
  ["Esc", "Close details or dialog"],
  ["← → Home End", "Change the tab, when a tab has the focus"],
  ["?", "This list"],
];

export function Keys({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="keys">
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <div className="actions">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
