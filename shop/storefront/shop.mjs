// What every service of the shop has: who it is, its configuration and its secret.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { hostname } from 'node:os';

// Carries the identity as JSON in HTTP answers.
export const IDENTITY_HEADER = 'shop-identity';

const CONFIG_DEFAULTS = { greeting: 'Welcome', currency: 'EUR', discount_percent: 0, low_stock: 10 };

export function identity(service, env = process.env) {
  const pod = env.POD_NAME || hostname();
  return {
    service,
    cluster: env.CLUSTER_NAME || 'none',
    pod,
    // A StatefulSet's ordinal or a ReplicaSet's suffix.
    replica: pod.slice(pod.lastIndexOf('-') + 1),
  };
}

// Reads the file anew each time: it is small, and it changes under a running pod.
export async function config(env = process.env) {
  try {
    const text = await readFile(env.SHOP_CONFIG || '/etc/shop/shop.json', 'utf8');
    return { ...CONFIG_DEFAULTS, ...JSON.parse(text) };
  } catch {
    return CONFIG_DEFAULTS;
  }
}

// Whether the secret is there, and which one it is, without telling the secret.
export async function apiKey(env = process.env) {
  try {
    const secret = await readFile(env.SHOP_API_KEY_FILE || '/var/run/secrets/shop/api-key');
    const fingerprint = createHash('sha256').update(secret).digest('hex').slice(0, 12);
    return { present: true, fingerprint: `sha256:${fingerprint}` };
  } catch {
    return { present: false, fingerprint: null };
  }
}
