import { useMemo, useState } from "react";

import { kill, useDetail } from "../api";
import { age, plural, statusName } from "../format";
import { Dialog } from "../parts/dialog";
import { Tabs, type Tab } from "../parts/tabs";
import { requestsOf } from "../parts/charts";
import { suggestions } from "../suggestions";
import { Config, Environment } from "./settings";
import { Events } from "./events";
import { Dns, Files, Peers } from "./tables";
import { Overview } from "./overview";
import type { Session } from "../store";

interface Props {
  session: Session;
  tab: string;
  now: number;
  onTab: (tab: string) => void;
}

export function SessionView({ session, tab, now, onTab }: Props) {
  const { info, events } = session;
  const isLive = info.health.status !== "ended";
  const isReadable = info.health.status !== "other_version";
  const detail = useDetail(info.session_id, isLive && isReadable);
  const requests = useMemo(() => requestsOf(events), [events]);
  const advice = useMemo(() => (detail ? suggestions(detail.state, isLive ? now : 0) : []), [detail, isLive, now]);
  const loading = () => <p className="empty">Loading…</p>;
  const tabs: Tab[] = [
    {
      id: "overview",
      label: "Overview",
      badge: advice.length,
      isWarning: true,
      content: () => <Overview session={session} advice={advice} now={now} isLive={isLive} />,
    },
    { id: "events", label: "Events", badge: events.length, content: () => <Events events={events} missed={session.missed} caption="Events" /> },
    {
      id: "requests",
      label: "Requests",
      badge: requests.length,
      content: () => <Events events={requests} missed={session.missed} caption="Requests" isRequests />,
    },
    { id: "files", label: "Files", content: () => (detail ? <Files detail={detail} /> : loading()) },
    { id: "dns", label: "DNS", content: () => (detail ? <Dns detail={detail} /> : loading()) },
    { id: "connections", label: "Connections", content: () => (detail ? <Peers detail={detail} /> : loading()) },
    { id: "environment", label: "Environment", content: () => (detail ? <Environment detail={detail} /> : loading()) },
    { id: "configuration", label: "Configuration", content: () => (detail ? <Config detail={detail} /> : loading()) },
  ];
  return (
    <article className="session">
      <header className="title">
        <a className="back" href="#/">
          ← All sessions
        </a>
        <div className="row">
          <span className={`dot ${info.health.status}`} aria-hidden="true" />
          <h1>{info.target || info.session_id}</h1>
          <span className="status">{statusName(info.health.status)}</span>
          {isLive && <Kill session={session} />}
        </div>
        <p className="about">
          <code>{info.command.join(" ")}</code>
          {info.started_at && <span>{isLive ? `for ${age(now - Date.parse(info.started_at))}` : `started ${new Date(info.started_at).toLocaleString()}`}</span>}
          {info.processes.length > 0 && (
            <span title={info.processes.map((process) => `${process.process_name} (${process.pid})`).join("\n")}>
              {plural(info.processes.length, "process", "processes")}
            </span>
          )}
          {info.clusters.length > 0 && <span>{info.clusters.join(", ")}</span>}
          <span className="id" title="The session's id">
            {info.session_id}
          </span>
        </p>
        {info.health.reason && isLive && (
          <p className="alarm" role="alert">
            {info.health.reason}
          </p>
        )}
      </header>
      {isReadable && <Tabs tabs={tabs} chosen={tab || "overview"} onChoose={onTab} />}
    </article>
  );
}

function Kill({ session }: { session: Session }) {
  const [isConfirming, setIsConfirming] = useState(false);
  const [state, setState] = useState<"idle" | "ending">("idle");
  const [error, setError] = useState("");
  const end = async (): Promise<void> => {
    setState("ending");
    setError("");
    try {
      await kill(session.info.session_id);
      setIsConfirming(false);
    } catch (reason) {
      setError(reason instanceof Error ? reason.message : String(reason));
      setState("idle");
    }
  };
  return (
    <>
      <button type="button" className="danger" onClick={() => setIsConfirming(true)} disabled={state === "ending"}>
        {state === "ending" ? "Ending…" : "End session"}
      </button>
      {isConfirming && (
        <Dialog title="End this session?" onClose={() => setIsConfirming(false)}>
          <p>
            <code>{session.info.command.join(" ")}</code> and all of its child processes are terminated, after five seconds forcibly. Stolen traffic goes
            to <strong>{session.info.target}</strong> again.
          </p>
          {error && (
            <p className="alarm" role="alert">
              {error}
            </p>
          )}
          <div className="actions">
            <button type="button" onClick={() => setIsConfirming(false)}>
              Cancel
            </button>
            <button type="button" className="danger" onClick={() => void end()} disabled={state === "ending"}>
              End session
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}
