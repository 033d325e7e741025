//! From where the target reaches addresses, as far as it was told together with their names.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use interceptor::Errno;
use protocol::rpc::Reach;
use tokio::time::Instant;

use crate::agent::{address, errno};

/// The target's routes may change, so what was told is believed for a while only.
const BELIEVED: Duration = Duration::from_secs(60);
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<HashMap<IpAddr, Known>>);

#[derive(Debug, Clone, Copy)]
struct Known {
    told: Instant,
    from: Result<IpAddr, Errno>,
}

impl Routes {
    /// The target's own address towards another, or why there is no way. Nothing if it is not known.
    pub(crate) fn get(&self, address: IpAddr) -> Option<Result<IpAddr, Errno>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&address.to_canonical())?;
        (known.told.elapsed() < BELIEVED).then_some(known.from)
    }

    pub(crate) fn learn(&self, told: &[Reach]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + told.len() > MOST {
            known.clear();
        }
        for reach in told {
            let Some(to) = address(&reach.address) else {
                continue;
            };
            let from = address(&reach.from).ok_or_else(|| errno(reach.failure.as_ref()));
            let told = Instant::now();
            known.insert(to, Known { told, from });
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::Failure;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_told_is_believed_for_a_while() {
        let routes = Routes::default();
        let reach = |address: &[u8], from: &[u8], failure| Reach {
            address: address.to_vec().into(),
            from: from.to_vec().into(),
            failure,
        };
        let no_way = Failure::from_errno(libc::ENETUNREACH, "");
        routes.learn(&[
            reach(&[10, 0, 0, 1], &[10, 0, 0, 9], None),
            reach(&[10, 0, 0, 2], &[], Some(no_way)),
            reach(&[1], &[2], None),
        ]);
        let get = |text: &str| routes.get(text.parse().unwrap());
        assert_eq!(get("10.0.0.1"), Some(Ok([10, 0, 0, 9].into())));
        assert_eq!(get("::ffff:10.0.0.1"), Some(Ok([10, 0, 0, 9].into())));
        assert_eq!(get("10.0.0.2"), Some(Err(Errno::ENETUNREACH)));
        assert_eq!(get("10.0.0.3"), None);
        advance(BELIEVED).await;
        assert_eq!(get("10.0.0.1"), None);
    }
}
