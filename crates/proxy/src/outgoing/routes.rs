//! Cache of the source addresses that the target uses for its routes. The agent sends them together with DNS answers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::RouteHint;
use tokio::time::Instant;

use crate::agent::{decode_ip, errno_of};

/// The target's routes may change, so entries expire.
const TTL: Duration = Duration::from_secs(60);
const MAX_ENTRIES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct RouteCache(Mutex<HashMap<IpAddr, CachedRoute>>);

#[derive(Debug, Clone, Copy)]
struct CachedRoute {
    learned_at: Instant,
    /// The target's own address, or why there is no route.
    source: Result<IpAddr, Errno>,
}

impl RouteCache {
    /// The target's own address on the route to `address`, or why there is no route. `None` if it is not cached.
    pub(crate) fn get(&self, address: IpAddr) -> Option<Result<IpAddr, Errno>> {
        let routes = self.0.lock();
        let route = routes.get(&address.to_canonical())?;
        (route.learned_at.elapsed() < TTL).then_some(route.source)
    }

    pub(crate) fn insert(&self, hints: &[RouteHint]) {
        let mut routes = self.0.lock();
        if routes.len() + hints.len() > MAX_ENTRIES {
            routes.clear();
        }
        for hint in hints {
            let Some(to) = decode_ip(&hint.address) else {
                continue;
            };
            let route = CachedRoute {
                learned_at: Instant::now(),
                source: decode_ip(&hint.from).ok_or_else(|| errno_of(hint.failure.as_ref())),
            };
            routes.insert(to, route);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::Failure;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn routes_are_cached_until_they_expire() {
        let routes = RouteCache::default();
        let hint = |address: &[u8], from: &[u8], failure| RouteHint {
            address: address.to_vec().into(),
            from: from.to_vec().into(),
            failure,
        };
        let unreachable = Failure::from_errno(libc::ENETUNREACH, "");
        routes.insert(&[
            hint(&[10, 0, 0, 1], &[10, 0, 0, 9], None),
            hint(&[10, 0, 0, 2], &[], Some(unreachable)),
            hint(&[1], &[2], None),
        ]);
        let get = |text: &str| routes.get(text.parse().unwrap());
        assert_eq!(get("10.0.0.1"), Some(Ok([10, 0, 0, 9].into())));
        assert_eq!(get("::ffff:10.0.0.1"), Some(Ok([10, 0, 0, 9].into())));
        assert_eq!(get("10.0.0.2"), Some(Err(Errno::ENETUNREACH)));
        assert_eq!(get("10.0.0.3"), None);
        advance(TTL).await;
        assert_eq!(get("10.0.0.1"), None);
    }
}
