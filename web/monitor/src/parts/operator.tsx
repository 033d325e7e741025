import type { Operator as OperatorStatus } from "../types";

/** Which operator the user's cluster has, with its version and its licensee. */
export function Operator({ operator }: { operator: OperatorStatus }) {
  const { text, title } = describe(operator);
  return (
    <span className="wide" data-operator={operator.status} title={title}>
      · {text}
    </span>
  );
}

function describe(operator: OperatorStatus): { text: string; title?: string } {
  switch (operator.status) {
    case "unknown":
      return { text: "asking the cluster for its operator" };
    case "not_configured":
      return { text: "no cluster is configured", title: operator.reason };
    case "absent":
      return { text: `no operator in ${operator.cluster}` };
    case "unavailable":
      return { text: "the operator is not available", title: operator.reason };
    case "running": {
      const { license } = operator;
      const text = `operator ${operator.version} in ${operator.cluster}`;
      if (!license) return { text };
      const end = license.expire_at ? ` until ${license.expire_at}` : "";
      const subscription = license.subscription_id ? `, subscription ${license.subscription_id}` : "";
      return { text: `${text} · licensed to ${license.organization}${end}`, title: `${license.name}${subscription}` };
    }
  }
}
