import { useEffect, useState, useSyncExternalStore } from "react";

import { useVersion } from "./api";
import { Operator } from "./parts/operator";
import { useHash, useNow, useTheme } from "./hooks";
import { Keys } from "./parts/keys";
import { SessionList } from "./views/list";
import { SessionView } from "./views/session";
import type { Store } from "./store";

export function App({ store }: { store: Store }) {
  const { sessions, connection } = useSyncExternalStore(store.subscribe, store.get);
  const [hash, setHash] = useHash();
  const [theme, nextTheme] = useTheme();
  const version = useVersion();
  const [showsKeys, setShowsKeys] = useState(false);
  const now = useNow();
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (event.key === "?" && !inField) setShowsKeys(true);
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);

  const [id = "", tab = ""] = hash.split("/");
  const chosen = sessions.find((session) => session.info.session_id === id);
  const live = sessions.filter((session) => session.ended === undefined && session.info.health.status !== "ended");
  useEffect(() => {
    const target = chosen ? `${chosen.info.target} · ` : "";
    document.title = `${target}Standin sessions`;
  }, [chosen]);

  return (
    <div className={chosen ? "app has-choice" : "app"}>
      <a className="skip" href="#main" onClick={(event) => focusMain(event)}>
        Skip to content
      </a>
      <header className="top">
        <a className="brand" href="#/">
          <img src="/icon.svg" alt="" width="26" height="26" />
          <span>Standin</span>
        </a>
        <p className="summary" role="status">
          {connection === "connected" ? (
            <>
              <span className="dot healthy" aria-hidden="true" /> {live.length === 1 ? "1 session" : `${live.length} sessions`}
            </>
          ) : (
            <>
              <span className="dot reconnecting" aria-hidden="true" />{" "}
              {connection === "lost" ? "standin ui does not respond; reconnecting" : "connecting"}
            </>
          )}
        </p>
        <p className="version">
          {version && (
            <>
              <span title={`Licence: ${version.licence}`}>{version.version}</span> <Operator operator={version.operator} />
            </>
          )}
        </p>
        <button type="button" className="plain" onClick={nextTheme} aria-label={`Colours: ${theme}. Change`} title={`Colours: ${theme}`}>
          {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}
        </button>
        <button type="button" className="plain" onClick={() => setShowsKeys(true)} aria-label="Keyboard shortcuts" title="Keyboard shortcuts">
          ?
        </button>
      </header>
      <nav aria-label="Sessions" className="side">
        <SessionList sessions={sessions} chosen={id} now={now} onRemove={(removed) => store.remove(removed)} />
      </nav>
      <main id="main" tabIndex={-1}>
        {chosen ? (
          <SessionView key={id} session={chosen} tab={tab} now={now} onTab={(next) => setHash(`${id}/${next}`)} />
        ) : (
          <Welcome isEmpty={sessions.length === 0} />
        )}
      </main>
      {showsKeys && <Keys onClose={() => setShowsKeys(false)} />}
    </div>
  );
}

function focusMain(event: React.MouseEvent): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Welcome({ isEmpty }: { isEmpty: boolean }) {
  return (
    <div className="welcome">
      {isEmpty ? (
        <>
          <h1>No sessions yet</h1>
          <p>A session appears here as soon as it starts, from any terminal of yours:</p>
          <pre>standin exec -t deployment/checkout -- ./checkout</pre>
        </>
      ) : (
        <>
          <h1>Choose a session</h1>
          <p>It shows the session's operations at the target, its incoming traffic, and its problems.</p>
        </>
      )}
    </div>
  );
}
