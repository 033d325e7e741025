import { useRef, type KeyboardEvent, type ReactNode } from "react";

export interface Tab {
  id: string;
  label: string;
  badge?: number;
  /** Whether the badge counts problems. */
  isWarning?: boolean;
  content: () => ReactNode;
}

export function Tabs({ tabs, chosen, onChoose }: { tabs: Tab[]; chosen: string; onChoose: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const current = tabs.find((tab) => tab.id === chosen) ?? tabs[0];
  if (!current) return null;
  const move = (event: KeyboardEvent): void => {
    const index = tabs.indexOf(current);
    const targets: Record<string, number> = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tabs.length - 1 };
    const target = targets[event.key];
    if (target === undefined) return;
    const next = (target + tabs.length) % tabs.length;
    const tab = tabs[next];
    if (tab) {
      event.preventDefault();
      onChoose(tab.id);
      list.current?.querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
    }
  };
  return (
    <>
      <div className="tabs" role="tablist" aria-label="Views" ref={list}>
        {tabs.map((tab) => (
          <button
            type="button"
            role="tab"
            key={tab.id}
            id={`tab-${tab.id}`}
            aria-selected={tab === current}
            aria-controls="panel"
            tabIndex={tab === current ? 0 : -1}
            onClick={() => onChoose(tab.id)}
            onKeyDown={move}
          >
            {tab.label}
            {tab.badge !== undefined && tab.badge > 0 && <span className={tab.isWarning ? "badge warning" : "badge"}>{tab.badge.toLocaleString()}</span>}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="panel" aria-labelledby={`tab-${current.id}`} className="panel">
        {current.content()}
      </div>
    </>
  );
}
