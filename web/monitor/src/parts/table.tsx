import { useMemo, useState, type ReactNode } from "react";

import { useSearchKey } from "./search";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => ReactNode;
  /** The sort key; a column without it is not sortable. */
  by?: (row: Row) => string | number;
  isNumber?: boolean;
}

interface Props<Row> {
  caption: string;
  rows: Row[];
  columns: Column<Row>[];
  keyOf: (row: Row) => string;
  textOf: (row: Row) => string;
  isProblem?: (row: Row) => boolean;
  /** Additional filters. */
  filters?: ReactNode;
  empty: string;
}

/** The number of rows that are shown at first. More are shown on demand. */
const INITIAL_ROWS = 200;

export function DataTable<Row>({ caption, rows, columns, keyOf, textOf, isProblem, filters, empty }: Props<Row>) {
  const [search, setSearch] = useState("");
  const [onlyProblems, setOnlyProblems] = useState(false);
  const [order, setOrder] = useState<{ name: string; down: boolean }>();
  const [shown, setShown] = useState(INITIAL_ROWS);
  const field = useSearchKey();
  const found = useMemo(() => {
    const query = search.toLowerCase();
    const matches = rows.filter(
      (row) => (!onlyProblems || isProblem?.(row)) && (query === "" || textOf(row).toLowerCase().includes(query)),
    );
    const by = columns.find((column) => column.name === order?.name)?.by;
    if (by && order) {
      const compare = (one: Row, other: Row): number => {
        const [a, b] = [by(one), by(other)];
        return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      };
      matches.sort((one, other) => (order.down ? -compare(one, other) : compare(one, other)));
    }
    return matches;
  }, [rows, columns, search, onlyProblems, order, isProblem, textOf]);
  if (rows.length === 0) {
    return (
      <>
        {filters && <div className="filters">{filters}</div>}
        <p className="empty">{empty}</p>
      </>
    );
  }
  return (
    <>
      <div className="filters">
        <input ref={field} type="search" placeholder="Search (/)" aria-label={`Search in ${caption}`} value={search} onChange={(event) => setSearch(event.target.value)} />
        {isProblem && (
          <label className="chip">
            <input type="checkbox" checked={onlyProblems} onChange={(event) => setOnlyProblems(event.target.checked)} /> Only problems
          </label>
        )}
        {filters}
        <span className="count" role="status">
          {found.length === rows.length ? rows.length.toLocaleString() : `${found.length.toLocaleString()} of ${rows.length.toLocaleString()}`}
        </span>
      </div>
      <div className="scroll" role="region" aria-label={caption} tabIndex={0}>
        <table>
          <caption className="unseen">{caption}</caption>
          <thead>
            <tr>
              {columns.map((column) => {
                const sorted = order?.name === column.name ? (order.down ? "descending" : "ascending") : undefined;
                return (
                  <th key={column.name} scope="col" className={column.isNumber ? "number" : ""} aria-sort={sorted}>
                    {column.by ? (
                      <button type="button" onClick={() => setOrder({ name: column.name, down: sorted ? sorted === "ascending" : Boolean(column.isNumber) })}>
                        {column.name}
                        <span aria-hidden="true">{sorted === "ascending" ? " ↑" : sorted ? " ↓" : ""}</span>
                      </button>
                    ) : (
                      column.name
                    )}
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {found.slice(0, shown).map((row) => (
              <tr key={keyOf(row)} className={isProblem?.(row) ? "problem" : ""}>
                {columns.map((column) => (
                  <td key={column.name} className={column.isNumber ? "number" : ""}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.length > shown && (
        <button type="button" className="more" onClick={() => setShown(shown * 4)}>
          Show more ({(found.length - shown).toLocaleString()})
        </button>
      )}
    </>
  );
}
