import { Fragment, useState } from "react";

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
        Variables that the program has from the target.{" "}
        {detail.shows_env_values ? (
          "Values are shown one at a time."
        ) : (
          <>
            Values may be secrets and are not sent to this page; <code className="whole">standin ui --show-env-values</code> shows them.
          </>
        )}
      </p>
      <DataTable
        caption="Environment"
        rows={detail.state.env.toSorted(([one], [other]) => one.localeCompare(other))}
        columns={columns}
        keyOf={([name]) => name}
        textOf={([name]) => name}
        empty="The program has no variables of the target."
      />
    </>
  );
}

/** What each bundle does. */
const MAGIC: Record<string, string> = {
  "magic.aws": "AWS tools act as the target: no profile and no key of this machine, and ~/.aws is an empty folder.",
  "magic.auto_mount": "Volumes that are mounted at the target are read there, wherever they are mounted.",
  "magic.proxy": "A web proxy of this machine is not used, because connections leave from the target.",
};

/** Breaks lines between the parts of a text, and elsewhere only where a part does not fit. */
function Parts({ text, after }: { text: string; after: string }) {
  const parts = text.split(after);
  return (
    <code className="parts">
      {parts.map((part, index) => (
        <Fragment key={index}>
          {part}
          {index < parts.length - 1 && after}
          <wbr />
        </Fragment>
      ))}
    </code>
  );
}

const CONFIG: Column<ConfigValue>[] = [
  { name: "Key", cell: (row) => <Parts text={row.key} after="." />, by: (row) => row.key },
  { name: "Value", cell: (row) => <Parts text={row.value} after="," />, by: (row) => row.value },
  { name: "Reason", cell: (row) => <span className={row.is_default ? "dim" : ""}>{row.reason}</span>, by: (row) => row.reason },
];

export function Config({ detail }: { detail: Detail }) {
  const [onlySet, setOnlySet] = useState(true);
  const rows = detail.config.filter((row) => !onlySet || !row.is_default);
  const magic = Object.entries(MAGIC).filter(([bundle]) => detail.config.some((row) => row.reason.includes(bundle)));
  return (
    <>
      <p className="hint">
        {detail.info.config_path ? (
          <>
            From <code>{detail.info.config_path}</code>, the environment and flags.
          </>
        ) : (
          "There is no configuration file: everything is a default, a variable or a flag."
        )}
      </p>
      <DataTable
        caption="Configuration"
        filters={
          <label className="chip">
            <input type="checkbox" checked={onlySet} onChange={(event) => setOnlySet(event.target.checked)} /> Only what differs from defaults
          </label>
        }
        rows={rows}
        columns={CONFIG}
        keyOf={(row) => row.key}
        textOf={(row) => `${row.key} ${row.value} ${row.reason}`}
        empty="All settings have their default values."
      />
      {magic.length > 0 && (
        <section className="magic" aria-labelledby="magic">
          <h2 id="magic">What magic has added</h2>
          <dl>
            {magic.map(([bundle, text]) => (
              <div key={bundle}>
                <dt>
                  <code>{bundle}</code>
                </dt>
                <dd>
                  {text} <span className="dim">Off with</span> <code>{bundle}: false</code>
                </dd>
              </div>
            ))}
          </dl>
        </section>
      )}
    </>
  );
}
