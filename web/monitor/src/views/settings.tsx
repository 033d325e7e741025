import { useState } from "react";

import { DataTable, type Column } from "../parts/table";
import type { ConfigValue, Detail } from "../types";

type Variable = [string, string];

export function Environment({ detail }: { detail: Detail }) {
  const [shown, setShown] = useState<ReadonlySet<string>>(new Set());
  const toggle = (name: string): void => {
    const next = new Set(shown);
    if (!next.delete(name)) next.add(name);
    setShown(next);
  };
  const columns: Column<Variable>[] = [
    { name: "Variable", cell: ([name]) => <code>{name}</code>, by: ([name]) => name },
    {
      name: "Value",
      cell: ([name, value]) => {
        if (!detail.shows_env_values) return <span className="dim">hidden</span>;
        return (
          <span className="value">
            {shown.has(name) ? <code>{value}</code> : <span className="dim">••••••</span>}
            <button type="button" className="small" aria-label={`${shown.has(name) ? "Hide" : "Show"} the value of ${name}`} onClick={() => toggle(name)}>
              {shown.has(name) ? "Hide" : "Show"}
            </button>
          </span>
        );
      },
    },
  ];
  return (
    <>
      <p className="hint">
        {detail.shows_env_values
          ? "Variables that the program has from the target. Values are shown one at a time."
          : "Variables that the program has from the target. Values may be secrets and did not come to this page; `standin ui --show-env-values` brings them."}
      </p>
      <DataTable
        caption="Environment"
        rows={detail.state.env}
        columns={columns}
        keyOf={([name]) => name}
        textOf={([name]) => name}
        empty="The program has no variables of the target."
      />
    </>
  );
}

const CONFIG: Column<ConfigValue>[] = [
  { name: "Key", cell: (row) => <code>{row.key}</code>, by: (row) => row.key },
  { name: "Value", cell: (row) => <code>{row.value}</code>, by: (row) => row.value },
  { name: "Reason", cell: (row) => <span className={row.is_default ? "dim" : ""}>{row.reason}</span>, by: (row) => row.reason },
];

export function Config({ detail }: { detail: Detail }) {
  const [onlySet, setOnlySet] = useState(true);
  const rows = detail.config.filter((row) => !onlySet || !row.is_default);
  return (
    <>
      <p className="hint">
        {detail.info.config_path ? (
          <>
            From <code>{detail.info.config_path}</code>, the environment and flags.
          </>
        ) : (
          "There is no configuration file: everything is a default, a variable or a flag."
        )}{" "}
        <label className="chip">
          <input type="checkbox" checked={onlySet} onChange={(event) => setOnlySet(event.target.checked)} /> Only what differs from defaults
        </label>
      </p>
      <DataTable
        caption="Configuration"
        rows={rows}
        columns={CONFIG}
        keyOf={(row) => row.key}
        textOf={(row) => `${row.key} ${row.value} ${row.reason}`}
        empty="Everything is as it is by default."
      />
    </>
  );
}
