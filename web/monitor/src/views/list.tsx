import { age, bytes, statusName } from "../format";
import { Spark } from "../parts/charts";
import type { Session } from "../store";

interface Props {
  sessions: Session[];
  chosen: string;
  now: number;
  onRemove: (id: string) => void;
}

export function SessionList({ sessions, chosen, now, onRemove }: Props) {
  return (
    <ul className="sessions">
      {sessions.map((session) => (
        <Card key={session.info.session_id} session={session} isChosen={session.info.session_id === chosen} now={now} onRemove={onRemove} />
      ))}
    </ul>
  );
}

function Card({ session, isChosen, now, onRemove }: { session: Session; isChosen: boolean; now: number; onRemove: (id: string) => void }) {
  const { info } = session;
  const { incoming, outgoing } = info.counters;
  const status = info.health.status;
  const flow = incoming.received_bytes + incoming.sent_bytes + outgoing.received_bytes + outgoing.sent_bytes;
  return (
    <li className={status === "ended" ? "card ended" : "card"} data-session={info.session_id}>
      <a href={`#${info.session_id}`} aria-current={isChosen ? "page" : undefined}>
        <span className="row">
          <span className={`dot ${status}`} aria-hidden="true" />
          <strong className="target">{info.target || info.session_id}</strong>
          <span className="status">{statusName(status)}</span>
        </span>
        <code className="command">{info.command.join(" ")}</code>
        {info.clusters.length > 0 && <span className="clusters">{info.clusters.join(", ")}</span>}
        <span className="row facts">
          <span>{status === "ended" ? "ended" : info.started_at && age(now - Date.parse(info.started_at))}</span>
          <span>{info.ports.length > 0 ? info.ports.map((port) => `:${port.port}`).join(" ") : "no ports"}</span>
          <span>{incoming.requests.toLocaleString()} req</span>
          <span>{bytes(flow)}</span>
        </span>
        <Spark events={session.events} now={now} />
      </a>
      {session.ended !== undefined && (
        <button type="button" className="plain remove" aria-label={`Remove ${info.target} from the list`} onClick={() => onRemove(info.session_id)}>
          ×
        </button>
      )}
    </li>
  );
}
