import { age, bytes, plural } from "../format";
import { Charts } from "../parts/charts";
import type { Session } from "../store";
import type { Suggestion } from "../suggestions";

interface Props {
  session: Session;
  advice: Suggestion[];
  now: number;
  isLive: boolean;
}

export function Overview({ session, advice, now, isLive }: Props) {
  const { info } = session;
  const { files, dns, outgoing, incoming } = info.counters;
  return (
    <div className="overview">
      {advice.length > 0 && (
        <section aria-labelledby="advice">
          <h2 id="advice">Suggestions</h2>
          <ul className="advice">
            {advice.map((suggestion) => (
              <li key={suggestion.id}>
                <strong>{suggestion.title}</strong>
                <p>{suggestion.advice}</p>
                {suggestion.items.length > 0 && (
                  <details>
                    <summary>{suggestion.items.length === 1 ? "Show it" : `Show ${suggestion.items.length}`}</summary>
                    <ul>
                      {suggestion.items.slice(0, 200).map((item) => (
                        <li key={item}>
                          <code>{item}</code>
                        </li>
                      ))}
                    </ul>
                  </details>
                )}
              </li>
            ))}
          </ul>
        </section>
      )}
      <section aria-labelledby="numbers">
        <h2 id="numbers">Totals</h2>
        <dl className="numbers">
          <Number name="Requests" value={incoming.requests} more={`${incoming.stolen} stolen, ${incoming.mirrored} mirrored`} bad={incoming.failed} />
          <Number name="Incoming" value={incoming.connections} more={`${incoming.open} open · ${bytes(incoming.received_bytes + incoming.sent_bytes)}`} />
          <Number name="Outgoing" value={outgoing.connections} more={`${outgoing.open} open · ${bytes(outgoing.received_bytes + outgoing.sent_bytes)}`} bad={outgoing.failed} />
          <Number name="Remote files" value={files.remote} more={`${bytes(files.read_bytes)} · ${files.local.toLocaleString()} local`} bad={files.failed} />
          <Number name="DNS queries" value={dns.queries} more={`${dns.cached} from cache`} bad={dns.failed} />
        </dl>
      </section>
      <section aria-labelledby="traffic">
        <h2 id="traffic">Traffic</h2>
        <Charts events={session.events} now={now} isLive={isLive} />
      </section>
      <section aria-labelledby="ports">
        <h2 id="ports">Ports</h2>
        {info.ports.length === 0 ? (
          <p className="empty">The program listens on no port that gets the target's traffic.</p>
        ) : (
          <ul className="ports">
            {info.ports.map((port) => (
              <li key={`${port.transport}${port.port}`}>
                <strong>
                  {port.port}
                  {port.local_port !== port.port && ` → ${port.local_port}`}
                </strong>
                <span className={`tag ${port.mode}`}>{port.mode}</span>
                <span>{port.filter ? `requests that ${port.filter}` : "all traffic"}</span>
                {port.cluster && <span className="tag">{port.cluster}</span>}
                <span className="dim">
                  {plural(port.requests, "request")}, {plural(port.connections, "connection")}
                  {port.last_traffic !== undefined && isLive && `, last ${age(now - port.last_traffic)} ago`} · {REDIRECT_CHECKS[port.redirect_check] ?? port.redirect_check}
                </span>
              </li>
            ))}
          </ul>
        )}
      </section>
    </div>
  );
}

/** How far the redirection of traffic was verified. */
const REDIRECT_CHECKS: Record<string, string> = {
  unverified: "not checked",
  loopback: "checked on loopback only",
  external: "checked from outside",
};

function Number({ name, value, more, bad }: { name: string; value: number; more: string; bad?: number }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        <b>{value.toLocaleString()}</b>
        {bad !== undefined && bad > 0 && <span className="bad">{bad.toLocaleString()} failed</span>}
        <small>{more}</small>
      </dd>
    </div>
  );
}
