//! Counts the users of the operator: the last active day of each user, in a ConfigMap that all replicas share.
//!
//! Nothing waits for it, and nothing depends on it. Names are not stored, only digests that distinguish users, with a
//! retention of thirty days.

use std::collections::BTreeMap;

use api::operator::Statistics;
use api::session::SessionOwner;
use error_chain::error_chain;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::background::Background;
use crate::error::{Error, KubeResultExt as _, Result};
use crate::settings::Settings;

/// The chart creates it empty, so that the operator needs no permission to create ConfigMaps.
const CONFIG_MAP: &str = "mirrord-operator-users";
/// The queue length of the writer. A user that is dropped here is recorded again with the next reconciliation.
const QUEUE_LENGTH: usize = 256;
/// The length of a user's digest. A longer one would only make the object larger.
const KEY_BYTES: usize = 16;
const MONTH_DAYS: i64 = 30;

/// The last active day of each user.
type Days = BTreeMap<String, Date>;

/// Records active users.
pub(crate) struct Users {
    /// The keys of active users, for the writer.
    active: mpsc::Sender<String>,
}

impl Users {
    pub(crate) fn start(client: Client, settings: &Settings, background: &Background) -> Self {
        let (active, keys) = mpsc::channel(QUEUE_LENGTH);
        let maps = Api::namespaced(client, &settings.namespace);
        background.spawn("users", write_users(maps, keys));
        Self { active }
    }

    /// Records that a user is active. Nothing is written for a user that was recorded today.
    pub(crate) fn record(&self, owner: &SessionOwner) {
        let _ = self.active.try_send(key(&owner.k8s_username));
    }
}

/// The number of active users. `None` if the ConfigMap cannot be read.
pub(crate) async fn statistics(
    client: &Client,
    settings: &Settings,
    now: Timestamp,
) -> Option<Statistics> {
    let maps = Api::namespaced(client.clone(), &settings.namespace);
    match read(&maps).await {
        Ok(days) => Some(count_users(&days, day(now))),
        Err(error) => {
            tracing::debug!(error = error_chain(&error), "user count failed");
            None
        }
    }
}

async fn write_users(maps: Api<ConfigMap>, mut keys: mpsc::Receiver<String>) {
    let mut cached = Days::new();
    while let Some(key) = keys.recv().await {
        let today = day(Timestamp::now());
        if cached.get(&key) == Some(&today) {
            continue;
        }
        match write(&maps, &key, today).await {
            Ok(days) => cached = days,
            // The user is recorded again with the next reconciliation of the session.
            Err(error) => tracing::debug!(error = error_chain(&error), "user update failed"),
        }
    }
}

async fn read(maps: &Api<ConfigMap>) -> Result<Days> {
    let map = maps.get(CONFIG_MAP).await;
    let map = map.action(format!("read the ConfigMap {CONFIG_MAP}"))?;
    Ok(days(map.data.unwrap_or_default()))
}

/// Records a user, and returns the resulting days of all users.
async fn write(maps: &Api<ConfigMap>, key: &str, today: Date) -> Result<Days, Error> {
    let mut days = read(maps).await?;
    if let Some(patch) = patch(&days, key, today) {
        // Concurrent writes of replicas do not conflict: they write different keys or the same day.
        let patch = json!({ "data": patch });
        let patched = maps
            .patch(CONFIG_MAP, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        patched.action(format!("write the ConfigMap {CONFIG_MAP}"))?;
    }
    days.insert(key.to_owned(), today);
    Ok(days)
}

fn day(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

fn key(name: &str) -> String {
    let digest = Sha256::digest(name);
    let bytes = digest.iter().take(KEY_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Parses the data. Entries that are no dates are ignored.
fn days(data: BTreeMap<String, String>) -> Days {
    let days = data.into_iter();
    days.filter_map(|(key, day)| Some((key, day.parse().ok()?)))
        .collect()
}

/// The patch that records a user and removes expired ones. `None` if the user was recorded today.
fn patch(days: &Days, key: &str, today: Date) -> Option<Value> {
    if days.get(key) == Some(&today) {
        return None;
    }
    let expired = days.iter().filter(|(_, day)| !is_in_month(**day, today));
    let mut patch: BTreeMap<&str, Option<String>> =
        expired.map(|(key, _)| (key.as_str(), None)).collect();
    patch.insert(key, Some(today.to_string()));
    Some(json!(patch))
}

fn count_users(days: &Days, today: Date) -> Statistics {
    let count = |is_counted: &dyn Fn(Date) -> bool| {
        let users = days.values().filter(|day| is_counted(**day)).count();
        u32::try_from(users).unwrap_or(u32::MAX)
    };
    Statistics {
        dau: count(&|day| day >= today),
        mau: count(&|day| is_in_month(day, today)),
    }
}

/// Whether a day is one of the last thirty, which include today.
fn is_in_month(day: Date, today: Date) -> bool {
    // The subtraction only fails for the first days that `Date` can represent.
    today
        .checked_sub(MONTH_DAYS.days())
        .is_ok_and(|before| day > before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days_of(days: &[(&str, &str)]) -> Days {
        let days = days
            .iter()
            .map(|(key, day)| ((*key).to_owned(), day.parse().unwrap()));
        days.collect()
    }

    fn today() -> Date {
        "2026-03-31".parse().unwrap()
    }

    #[test]
    fn users_are_counted_per_day_and_per_month() {
        let days = days_of(&[
            ("a", "2026-03-31"),
            ("b", "2026-03-30"),
            ("c", "2026-03-02"),
            ("d", "2026-03-01"),
            // Written by a replica whose clock is ahead.
            ("e", "2026-04-01"),
        ]);
        assert_eq!(count_users(&days, today()), Statistics { dau: 2, mau: 4 });
        assert_eq!(
            count_users(&Days::new(), today()),
            Statistics { dau: 0, mau: 0 }
        );
    }

    #[test]
    fn users_are_recorded_once_a_day_and_expire() {
        let days = days_of(&[
            ("a", "2026-03-31"),
            ("b", "2026-03-30"),
            ("d", "2026-03-01"),
        ]);
        assert_eq!(patch(&days, "a", today()), None);
        let again = json!({"b": "2026-03-31", "d": null});
        assert_eq!(patch(&days, "b", today()), Some(again));
        let back = json!({"d": "2026-03-31"});
        assert_eq!(patch(&days, "d", today()), Some(back));
    }

    #[test]
    fn keys_are_valid_and_hide_the_user_name() {
        let found = key("system:serviceaccount:shop:anna");
        assert_eq!(found.len(), 32);
        assert!(found.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(found, key("system:serviceaccount:shop:bert"));
        let others = [("README".to_owned(), "not a day".to_owned())];
        assert_eq!(days(others.into()), Days::new());
    }
}
