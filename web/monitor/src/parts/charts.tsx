import { useMemo } from "react";

import { clock, duration } from "../format";
import type { Entry, Request } from "../types";

const WIDTH = 600;
const HEIGHT = 110;
const BARS = 60;

interface Slice {
  from: number;
  good: number;
  bad: number;
  /** Sorted. */
  latencies: number[];
}

export const requestsOf = (events: Entry[]): Request[] => events.filter((entry) => entry.type === "IncomingRequest");
/** The requests that were delivered to the program. */
const deliveredOf = (events: Entry[]): Request[] => requestsOf(events).filter((request) => request.reason === undefined);

/** Requests and their latency over time: the last two minutes of a live session, all of an ended one. */
export function Charts({ events, now, isLive }: { events: Entry[]; now: number; isLive: boolean }) {
  const slices = useMemo(() => slice(deliveredOf(events), now, isLive), [events, now, isLive]);
  const highest = Math.max(1, ...slices.map((part) => part.good + part.bad));
  const slowest = Math.max(1_000, ...slices.map((part) => percentile(part.latencies, 95)));
  const total = slices.reduce((sum, part) => sum + part.good + part.bad, 0);
  const failed = slices.reduce((sum, part) => sum + part.bad, 0);
  const all = slices.flatMap((part) => part.latencies).sort((one, other) => one - other);
  const span = slices.length > 0 ? ((slices[1]?.from ?? 0) - (slices[0]?.from ?? 0)) * BARS : 0;
  const minutes = isLive ? "in the last two minutes" : `in ${duration(span * 1000)}`;
  const width = WIDTH / BARS;
  return (
    <div className="charts">
      <figure>
        <figcaption>
          <strong>Requests</strong> <span>{`${total} ${minutes}, ${failed} failed`}</span>
        </figcaption>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${total} requests ${minutes}, of which ${failed} failed`}>
          <Grid />
          {slices.map((part, index) => {
            const good = (part.good / highest) * (HEIGHT - 6);
            const bad = (part.bad / highest) * (HEIGHT - 6);
            return (
              <g key={part.from}>
                <title>{`${clock(part.from)}: ${part.good + part.bad} requests, ${part.bad} failed`}</title>
                <rect className="good" x={index * width + 1} y={HEIGHT - good} width={width - 2} height={good} rx="1.5" />
                <rect className="bad" x={index * width + 1} y={HEIGHT - good - bad} width={width - 2} height={bad} rx="1.5" />
              </g>
            );
          })}
        </svg>
        <Axis from={slices[0]?.from} to={slices.at(-1)?.from} top={`${highest} per ${duration((span / BARS) * 1000)}`} />
      </figure>
      <figure>
        <figcaption>
          <strong>Latency</strong>{" "}
          <span>{all.length > 0 ? `median ${duration(percentile(all, 50))}, 95 % within ${duration(percentile(all, 95))}` : "no responses yet"}</span>
        </figcaption>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={all.length > 0 ? `Median latency ${duration(percentile(all, 50))}, 95 percent within ${duration(percentile(all, 95))}` : "No responses yet"}
        >
          <Grid />
          {slices.map((part, index) => {
            if (part.latencies.length === 0) return null;
            const [middle, high] = [50, 95].map((percent) => (percentile(part.latencies, percent) / slowest) * (HEIGHT - 8));
            const x = (index + 0.5) * width;
            return (
              <g key={part.from}>
                <title>{`${clock(part.from)}: median ${duration(percentile(part.latencies, 50))}, 95 % within ${duration(percentile(part.latencies, 95))}`}</title>
                <line className="spread" x1={x} x2={x} y1={HEIGHT - (middle ?? 0) - 3} y2={HEIGHT - (high ?? 0) - 3} />
                <line className="median" x1={x} x2={x} y1={HEIGHT - (middle ?? 0) - 3} y2={HEIGHT - (middle ?? 0) - 3} />
              </g>
            );
          })}
        </svg>
        <Axis from={slices[0]?.from} to={slices.at(-1)?.from} top={duration(slowest)} />
      </figure>
    </div>
  );
}

function Grid() {
  return (
    <g className="grid" aria-hidden="true">
      {[0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => (
        <line key={y} x1="0" x2={WIDTH} y1={y} y2={y} />
      ))}
    </g>
  );
}

function Axis({ from, to, top }: { from?: number; to?: number; top: string }) {
  return (
    <div className="axis" aria-hidden="true">
      <span>{from === undefined ? "" : clock(from).slice(0, 8)}</span>
      <span>top: {top}</span>
      <span>{to === undefined ? "" : clock(to).slice(0, 8)}</span>
    </div>
  );
}

function slice(requests: Request[], now: number, isLive: boolean): Slice[] {
  const step = isLive ? 2_000 : Math.max(1_000, Math.ceil(((requests.at(-1)?.time ?? now) - (requests[0]?.time ?? now) + 1) / BARS));
  const start = isLive ? (Math.floor(now / step) - BARS + 1) * step : (requests[0]?.time ?? now);
  const slices: Slice[] = Array.from({ length: BARS }, (_, index) => ({ from: start + index * step, good: 0, bad: 0, latencies: [] }));
  for (const request of requests) {
    const part = slices[Math.floor((request.time - start) / step)];
    if (!part) continue;
    if (request.status === undefined || request.status >= 500) part.bad += 1;
    else part.good += 1;
    if (request.status !== undefined) part.latencies.push(request.latency_us);
  }
  slices.forEach((part) => part.latencies.sort((one, other) => one - other));
  return slices;
}

export function percentile(sorted: number[], percent: number): number {
  return sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)] ?? 0;
}

/** A sparkline of the requests of the last minute. */
export function Spark({ events, now }: { events: Entry[]; now: number }) {
  const bars = 30;
  const counts = Array.from({ length: bars }, () => 0);
  for (let index = events.length - 1; index >= 0; index -= 1) {
    const entry = events[index];
    if (!entry || now - entry.time > bars * 2_000) break;
    const bar = bars - 1 - Math.max(0, Math.floor((now - entry.time) / 2_000));
    if (entry.type === "IncomingRequest") counts[bar] = (counts[bar] ?? 0) + 1;
  }
  const highest = Math.max(1, ...counts);
  return (
    <svg className="spark" viewBox={`0 0 ${bars * 4} 20`} preserveAspectRatio="none" aria-hidden="true">
      {counts.map((count, index) => {
        const height = Math.max(1, (count / highest) * 20);
        return <rect key={index} className={count > 0 ? "good" : "none"} x={index * 4} width="3" y={20 - height} height={height} />;
      })}
    </svg>
  );
}
